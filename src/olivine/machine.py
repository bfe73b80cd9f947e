"""This machine: its CPU, its memory, and its memory bandwidth, which is measured once and kept."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import tempfile
from pathlib import Path

from olivine.backends import cpu
from olivine.engine.budget import spare_bytes
from olivine.folders import cache_folder

MOST = 1 << 30  # bytes that are read to measure: more than the caches of a CPU hold
KEPT = "bandwidth.json"


def cpu_name(proc: Path = Path("/proc")) -> str:
    """The CPU's name as its maker writes it; its architecture where the system does not say."""
    with contextlib.suppress(OSError):
        for line in (proc / "cpuinfo").read_text(errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name" and value.strip():
                return " ".join(value.split())
    return platform.machine() or "unknown"


def bandwidth(*, again: bool = False) -> float:
    """Bytes per second that the CPU reads from memory with the default threads: the limit of decode.

    Measured once, in less than a second, and kept for the same CPU, threads and kernels; `again` measures
    anew. What is measured while other programs keep the CPU busy is not kept. 0: it cannot be measured.
    """
    key, kept = kept_as(), _kept()
    if not again and kept.get(key, 0) > 0:
        return kept[key]
    measured = cpu.read_bandwidth(cpu.default_threads(), max(1 << 24, min(MOST, spare_bytes() // 4)), 3)
    if measured > 0 and not is_busy():
        _keep({**kept, key: measured})
    return measured


def kept_as() -> str:
    """What a bandwidth depends on: one that was measured is kept under this name."""
    return f"{cpu_name()} ×{cpu.default_threads()} {cpu.isa()} {cpu.ABI}"


def is_busy() -> bool:
    """Whether other programs use half of the CPUs or more."""
    try:
        return os.getloadavg()[0] > max(1, (os.cpu_count() or 1) / 2)
    except (OSError, AttributeError):  # as on Windows
        return False


def _kept() -> dict[str, float]:
    """What was measured before; a file that cannot be read counts as none."""
    try:
        found = json.loads((cache_folder() / KEPT).read_text(encoding="utf-8"))
        return {str(key): float(value) for key, value in found.items()}
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return {}


def _keep(measured: dict[str, float]) -> None:
    """Writes the file whole, or not at all: a folder that cannot be written costs a measurement each time."""
    path = cache_folder() / KEPT
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, part = tempfile.mkstemp(dir=path.parent, prefix=f".{KEPT}.")
        with os.fdopen(handle, "w", encoding="utf-8") as out:
            json.dump(measured, out, indent=2)
        os.replace(part, path)
