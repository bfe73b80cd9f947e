"""What `olivine doctor` finds out: a section for each subject, as facts for programs and lines for people."""
