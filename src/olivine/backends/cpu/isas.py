"""The instruction sets of the CPU backend: what each needs of a CPU, and why one is not there."""

from __future__ import annotations

import contextlib
import os
import platform
from pathlib import Path

from olivine.backends.cpu import native

# The best first, with the features that each needs, as Linux names them in /proc/cpuinfo. isa.cpp has the
# same table, and decides.
_AVX2 = ("avx2", "fma", "bmi2")
_AVX512 = ("avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_vnni", *_AVX2)
_X86 = {
    "amx": ("amx_bf16", "amx_tile", "avx512_bf16", *_AVX512),
    "avx512": _AVX512,
    "avxvnni": ("avx_vnni", *_AVX2),
    "avx2": _AVX2,
    "plain": (),
}
_DOTPROD = ("asimddp", "asimdhp")
_ARM = {"i8mm": ("i8mm", "bf16", *_DOTPROD), "dotprod": _DOTPROD, "neon": (), "plain": ()}


def isas() -> dict[str, tuple[str, ...]]:
    """The instruction sets of this architecture, the best first, and what each needs."""
    machine = platform.machine().lower()
    if machine in ("aarch64", "arm64"):
        return _ARM
    return _X86 if machine in ("x86_64", "amd64") else {"plain": ()}


def usable(isa: str) -> bool:
    """Whether this CPU and this build of the library have it. The one in use stays in use."""
    before = native.lib().olv_isa()
    if native.lib().olv_set_isa(isa.encode()):
        return False
    native.lib().olv_set_isa(before)
    return True


def features(proc: Path = Path("/proc")) -> frozenset[str] | None:
    """The CPU's features, or None where the system does not list them."""
    with contextlib.suppress(OSError):
        for line in (proc / "cpuinfo").read_text(errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() in ("flags", "Features"):
                return frozenset(value.split())
    return None


def missing_features(isa: str, found: frozenset[str]) -> list[str]:
    """What an instruction set needs that is not among these features."""
    return sorted(set(isas()[isa]) - found)


def obstacle(isa: str, proc: Path = Path("/proc")) -> str:
    """Why an instruction set that is not usable is not."""
    found = features(proc)
    if found is None:
        return "this CPU does not have it"
    if missing := missing_features(isa, found):
        return f"this CPU has no {', '.join(missing)}"
    if os.name == "posix" and isa == "amx":
        return "the CPU has it, but the system does not let programs use it (Linux 5.16 or later is needed)"
    return "the CPU has it, but the system or this build of the library does not let programs use it"
