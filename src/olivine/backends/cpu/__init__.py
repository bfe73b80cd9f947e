"""The CPU backend: the plan in native code, weights where the file maps them, one call a step."""

from __future__ import annotations

from olivine.backends.cpu import native as _native
from olivine.backends.cpu.native import guard
from olivine.backends.cpu.program import PAGE_SIZE, CpuProgram
from olivine.backends.cpu.threads import default_threads

__all__ = ["PAGE_SIZE", "CpuProgram", "arithmetic_peak", "default_threads", "guard", "isa", "read_bandwidth"]


def isa() -> str:
    """The instruction set in use: amx, avx512, avx2 or plain. `OLIVINE_ISA` asks for one."""
    return _native.lib().olv_isa().decode()


def read_bandwidth(threads: int, bytes: int = 1 << 30, repeats: int = 5) -> float:
    """Bytes a second that `threads` threads read from memory: the floor of decoding."""
    pool = _native.Pool(threads)  # held here: its threads end with it
    return _native.lib().olv_read_bandwidth(pool.handle, bytes, repeats)


def arithmetic_peak(threads: int, repeats: int = 5) -> dict[str, float]:
    """Operations a second from registers: the floor of reading a prompt."""
    pool = _native.Pool(threads)
    return {
        name: _native.lib().olv_peak(pool.handle, which, repeats)
        for which, name in enumerate(("int8", "bf16"))
    }
