"""The default number of threads: the physical cores that this process may run on."""

from __future__ import annotations

import math
import os
from pathlib import Path


def default_threads() -> int:
    """Physical cores in the process's affinity mask, at most the CPU quota of its control group."""
    cpus = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
    count = len({_core(cpu) for cpu in cpus}) if cpus else (os.cpu_count() or 1)
    quota = cpu_quota()
    return max(1, count if quota is None else min(count, math.ceil(quota)))


def _core(cpu: int) -> str:
    """The core of a hardware thread. Threads of a core share its vector units, so one is enough."""
    try:
        return Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").read_text().strip()
    except OSError:
        return str(cpu)


def cpu_quota(root: Path = Path("/sys/fs/cgroup")) -> float | None:
    """The control group's quota in CPUs (version 2, then 1), or None for no limit."""
    try:
        limit, period = (root / "cpu.max").read_text().split()
        return None if limit == "max" else int(limit) / int(period)
    except (OSError, ValueError):
        pass
    try:
        limit_us = int((root / "cpu" / "cpu.cfs_quota_us").read_text())
        period_us = int((root / "cpu" / "cpu.cfs_period_us").read_text())
        return limit_us / period_us if limit_us > 0 else None
    except (OSError, ValueError):
        return None
