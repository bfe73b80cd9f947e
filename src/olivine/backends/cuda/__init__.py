"""The CUDA backend: Triton kernels, decode steps as CUDA graphs, sampling on the device.

Import it only when it is chosen: it brings torch and triton (the extra `cuda`).
"""

from functools import partial
from threading import Thread

from olivine.backends.base import Compiled, CompileOptions, Weights, refuse_cache_type
from olivine.backends.cuda.kernels import hash_kernels
from olivine.backends.cuda.program import CHUNK, PAGE_SIZE, CudaProgram, device_name
from olivine.backends.cuda.weights import device_bytes, free_bytes, spare_bytes
from olivine.backends.devices import hash_triton
from olivine.plan import Plan

__all__ = [
    "CACHE_TYPE",
    "CHUNK",
    "DRAWS",
    "PAGE_SIZE",
    "CudaProgram",
    "compile",
    "device_bytes",
    "device_name",
    "free_bytes",
    "spare_bytes",
]

CACHE_TYPE = "BF16"
DRAWS = True  # its programs are DrawingPrograms


def _hash() -> None:
    """By these hashes Triton finds a kernel in its cache."""
    hash_kernels()
    hash_triton().join()


def compile(plan: Plan, weights: Weights, options: CompileOptions) -> Compiled:
    """The plan on the GPU, which gets a copy of the weights; the KV cache may take what these leave."""
    cache_type = options.cache_type or CACHE_TYPE
    refuse_cache_type(plan, cache_type)
    hashing = Thread(target=_hash, daemon=True)  # while weights are copied
    hashing.start()
    counts, size = options.pages(PAGE_SIZE, CHUNK, cache_type, partial(spare_bytes, plan, weights))
    program = CudaProgram(
        plan,
        weights,
        page_counts=counts,
        cache_type=cache_type,
        progress=options.progress,
        collectives=options.collectives,
    )
    hashing.join()
    return Compiled(program, f"cuda {device_name()}", size, cache_type, reads_files=False)
