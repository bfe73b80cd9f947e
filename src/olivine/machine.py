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
    anew. 0 where it cannot be measured.
    """
    threads = cpu.default_threads()
    key = f"{cpu_name()} ×{threads} {cpu.isa()} {cpu.ABI}"
    kept = _kept()
    if not again and kept.get(key, 0) > 0:
        return kept[key]
    measured = cpu.read_bandwidth(threads, max(1 << 24, min(MOST, spare_bytes() // 4)), 3)
    if measured > 0:
        _keep({**kept, key: measured})
    return measured


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
