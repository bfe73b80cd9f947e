"""Backends run plans. Each lives in a folder of its own and is imported only when it is chosen."""

from olivine.backends.base import (
    BROKEN,
    CACHE_TYPES,
    CHUNK,
    NOTHING_LEGAL,
    Batch,
    ClosingProgram,
    Draw,
    DrawingProgram,
    Drawn,
    Program,
    Result,
    Sampling,
    TokenLogprobs,
    Weights,
    refuse_cache_type,
)

__all__ = [
    "BROKEN",
    "CACHE_TYPES",
    "CHUNK",
    "NOTHING_LEGAL",
    "Batch",
    "ClosingProgram",
    "Draw",
    "DrawingProgram",
    "Drawn",
    "Program",
    "Result",
    "Sampling",
    "TokenLogprobs",
    "Weights",
    "refuse_cache_type",
]
