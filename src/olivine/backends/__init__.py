"""Backends run plans. Each lives in a folder of its own and is imported only when it is chosen."""

from importlib import import_module

from olivine.backends.base import (
    BROKEN,
    CACHE_TYPES,
    CHUNK,
    NOTHING_LEGAL,
    Batch,
    ClosingProgram,
    Compile,
    Compiled,
    CompileOptions,
    Draw,
    DrawingProgram,
    Drawn,
    InterruptedProgram,
    Program,
    Progress,
    Result,
    Sampling,
    Share,
    TokenLogprobs,
    Weights,
    refuse_cache_type,
)

__all__ = [
    "BACKENDS",
    "BROKEN",
    "CACHE_TYPES",
    "CHUNK",
    "NOTHING_LEGAL",
    "Batch",
    "ClosingProgram",
    "Compile",
    "CompileOptions",
    "Compiled",
    "Draw",
    "DrawingProgram",
    "Drawn",
    "InterruptedProgram",
    "Program",
    "Progress",
    "Result",
    "Sampling",
    "Share",
    "TokenLogprobs",
    "Weights",
    "backend",
    "refuse_cache_type",
]

# The package of each device's backend. It has `compile`, as `Compile` says.
BACKENDS = {
    "cpu": "olivine.backends.cpu",
    "cuda": "olivine.backends.cuda",
    "reference": "olivine.backends.reference",
}


def backend(device: str) -> Compile:
    """The `compile` of a device's backend, which is imported here."""
    found: Compile = import_module(BACKENDS[device]).compile
    return found
