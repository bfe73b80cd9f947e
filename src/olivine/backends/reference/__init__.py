"""The reference backend: NumPy, in float32 throughout, and simple enough to check by reading."""

from olivine.backends.base import CHUNK, Compiled, CompileOptions, Weights, refuse_cache_type
from olivine.backends.reference.dequantize import dequantize
from olivine.backends.reference.program import ReferenceProgram
from olivine.plan import Plan

__all__ = ["CACHE_TYPE", "DRAWS", "PAGE_SIZE", "ReferenceProgram", "compile", "dequantize"]

PAGE_SIZE = 16
CACHE_TYPE = "F32"
DRAWS = False  # no program of it is a DrawingProgram


def compile(plan: Plan, weights: Weights, options: CompileOptions) -> Compiled:
    """The plan in NumPy, with a KV cache of F32 by default."""
    cache_type = options.cache_type or CACHE_TYPE
    refuse_cache_type(plan, cache_type)
    counts, size = options.pages(PAGE_SIZE, CHUNK, cache_type)
    program = ReferenceProgram(
        plan,
        weights,
        page_counts=counts,
        page_size=PAGE_SIZE,
        cache_type=cache_type,
        collectives=options.collectives,
    )
    return Compiled(program, "reference", size, cache_type)
