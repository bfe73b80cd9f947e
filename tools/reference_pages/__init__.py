"""The pages of docs/reference, each by a function `page`, which returns its text."""
