"""Backends run plans. Each lives in a folder of its own and is imported only when it is chosen."""

from olivine.backends.base import CACHE_TYPES, Batch, Chain, ChainProgram, Choice, Program, Result, Weights

__all__ = ["CACHE_TYPES", "Batch", "Chain", "ChainProgram", "Choice", "Program", "Result", "Weights"]
