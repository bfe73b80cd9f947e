"""Backends run plans. Each lives in a folder of its own and is imported only when it is chosen."""

from olivine.backends.base import Batch, Chain, ChainProgram, Choice, Program, Result, Weights

__all__ = ["Batch", "Chain", "ChainProgram", "Choice", "Program", "Result", "Weights"]
