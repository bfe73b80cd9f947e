"""Triton kernels, one subject a file. Each has a launcher that takes torch tensors."""
