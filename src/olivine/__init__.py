"""Olivine: an inference engine for open-weight language models."""
