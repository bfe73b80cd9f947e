"""How much memory the KV cache may take, and how many pages that makes."""

from __future__ import annotations

from pathlib import Path

from olivine.backends import CHUNK, Share
from olivine.engine.kvcache import KvCache
from olivine.errors import ModelError
from olivine.plan import Plan

# The share of the free memory that the cache may take, by default.
SHARE = 0.5
# Where the system does not say how much is free.
MODEST = 1 << 30


def spare_bytes(proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Memory that can be allocated without swapping: of the machine, and of this control group."""
    found = _meminfo(proc, "MemAvailable")
    try:
        limit = (cgroup / "memory.max").read_text().strip()
        if limit != "max":
            used = int((cgroup / "memory.current").read_text()) - _file_pages(cgroup)
            found.append(max(0, int(limit) - max(0, used)))
    except (OSError, ValueError):
        pass
    return min(found) if found else MODEST


def _file_pages(cgroup: Path) -> int:
    """Bytes of files in memory, which count as used by the control group and make room where it is needed:
    a model's file would else leave nothing for its cache."""
    try:
        lines = [line.split() for line in (cgroup / "memory.stat").read_text().splitlines()]
        return sum(int(line[1]) for line in lines if line[0] in ("active_file", "inactive_file"))
    except (OSError, ValueError, IndexError):
        return 0


def whole_bytes(proc: Path = Path("/proc")) -> int:
    """The machine's memory, used or not; where the system does not say, more than any has."""
    return next(iter(_meminfo(proc, "MemTotal")), 1 << 62)


def _meminfo(proc: Path, field: str) -> list[int]:
    """The bytes of a field of /proc/meminfo, if it is there."""
    try:
        lines = (proc / "meminfo").read_text().splitlines()
        return [1024 * int(line.split()[1]) for line in lines if line.startswith(f"{field}:")]
    except (OSError, ValueError, IndexError):
        return []


def page_counts(
    plan: Plan,
    page_size: int,
    element_bytes: float,
    context: int,
    sequences: int,
    budget: int | None,
    chunk: int,
    share: Share | None = None,
) -> tuple[list[int], int]:
    """Pages of each cache group for `sequences` sequences of `context` tokens, and what they take in bytes:
    of a divided plan, on the device that has this share of it, for which the budget is.

    Fewer if that is more than the budget, but never less than one sequence needs, for which there must be
    the memory. On the CPU it is taken page by page as it is used, so what is never needed costs nothing.
    A step has up to `chunk` prompt rows of all sequences together: only one window needs room for as many.
    """
    least = [KvCache.least(group, context, page_size, chunk) for group in plan.groups]
    further = [KvCache.least(group, context, page_size, min(CHUNK, chunk)) for group in plan.groups]
    here = (plan,) if share is None else share.plans
    each = [
        round(sum(part.bytes_per_token(group, 1) for part in here) * element_bytes * page_size)
        for group in plan.groups
    ]

    def size_of(counts: list[int]) -> int:
        return sum(count * size for count, size in zip(counts, each, strict=True))

    one = size_of(least)
    if budget is None:
        budget = min(max(one, int(SHARE * spare_bytes())), whole_bytes())
    if budget < one:
        raise ModelError(
            f"a context of {context} tokens takes {one / 1e6:.0f} MB of KV cache and the budget is "
            f"{budget / 1e6:.0f} MB: lower the context, raise the budget or choose a smaller cache type"
        )
    more = min(float(sequences - 1), (budget - one) / max(1, size_of(further)))
    counts = [first + int(count * more) for first, count in zip(least, further, strict=True)]
    return counts, size_of(counts)
