"""The CPU backend: runs the plan in native code, on the memory-mapped weights, with one call per step."""

from __future__ import annotations

import os
import platform

from olivine.backends.base import CHUNK, Compiled, CompileOptions, Weights, refuse_cache_type
from olivine.backends.cpu import native as _native
from olivine.backends.cpu.native import ABI, guard
from olivine.backends.cpu.program import PAGE_SIZE, CpuProgram
from olivine.backends.cpu.threads import default_threads
from olivine.plan import Plan

__all__ = [
    "ABI",
    "CACHE_TYPE",
    "DRAWS",
    "PAGE_SIZE",
    "CpuProgram",
    "arithmetic_peak",
    "compile",
    "default_threads",
    "guard",
    "isa",
    "read_bandwidth",
    "slow_kernels",
]


CACHE_TYPE = "BF16"
DRAWS = True  # its programs are DrawingPrograms


def compile(plan: Plan, weights: Weights, options: CompileOptions) -> Compiled:
    """The plan as native code, with a KV cache of BF16 by default."""
    cache_type = options.cache_type or CACHE_TYPE
    refuse_cache_type(plan, cache_type)
    threads = options.threads or default_threads()
    counts, size = options.pages(PAGE_SIZE, CHUNK, cache_type)
    program = CpuProgram(
        plan,
        weights,
        page_counts=counts,
        threads=threads,
        cache_type=cache_type,
        collectives=options.collectives,
    )
    for data, path in options.files:
        guard(program, data, path)
    return Compiled(program, f"cpu×{threads} {isa()}", size, cache_type)


def isa() -> str:
    """The instruction set in use, a name of the table in native/src/isa.cpp. `OLIVINE_ISA` asks for one."""
    return _native.lib().olv_isa().decode()


def slow_kernels() -> str | None:
    """Why the kernels are slow on this machine; None if they are not."""
    if isa() != "plain":
        return None
    if os.environ.get("OLIVINE_ISA"):
        return "OLIVINE_ISA=plain: the kernels are plain C++, several times slower than this CPU could be"
    return (
        f"the kernels are plain C++, several times slower than this CPU ({platform.machine()}) could be: "
        "there are fast ones for aarch64, and for x86-64 with AVX2 or more"
    )


def read_bandwidth(threads: int, bytes: int = 1 << 30, repeats: int = 5) -> float:
    """Bytes per second that `threads` threads read from a buffer of that size: the limit of decode.

    A small buffer stays in the CPU's caches, and so does a model of that size.
    """
    pool = _native.Pool(threads)  # a reference: its threads end with it
    return _native.lib().olv_read_bandwidth(pool.handle, bytes, repeats)


def arithmetic_peak(threads: int, repeats: int = 5) -> dict[str, float]:
    """Operations per second from registers, the limit of prefill, by the type that kernels compute in."""
    pool = _native.Pool(threads)
    kinds = enumerate(("int8", "bf16", "f32"))
    peaks = {name: _native.lib().olv_peak(pool.handle, kind, repeats) for kind, name in kinds}
    return {name: peak for name, peak in peaks.items() if peak > 0}
