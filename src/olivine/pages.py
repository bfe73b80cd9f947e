"""What the system is told about the pages of memory-mapped files."""

from __future__ import annotations

import mmap
from collections.abc import Iterable
from contextlib import suppress

import numpy as np

from olivine.tensor import Bytes

_HUGE = 2 << 20  # bytes of a huge page


def release(data: Bytes) -> None:
    """Release the resident pages of a part of a map (MADV_DONTNEED); does nothing for other memory.

    The pages stay in the system's page cache, but no longer count as this process's.
    """
    whole, start, end = _place_of(data)
    if whole is not None:
        _advise(whole, "MADV_DONTNEED", start, end)


def prefer_huge_pages(parts: Iterable[Bytes]) -> None:
    """For parts of maps that are read from end to end, again and again: what of them is not in the system's
    page cache yet is read into pages of 2 MB, if the file system has them. Looking up small ones takes time.

    Parts with less than such a page between them are asked for as one range, because a page lies in one: else
    every norm would cut off the ends of the weights beside it.
    """
    ranges: dict[mmap.mmap, list[tuple[int, int]]] = {}
    for data in parts:
        whole, start, end = _place_of(data)
        if whole is not None:
            ranges.setdefault(whole, []).append((start, end))
    for whole, found in ranges.items():
        found.sort()
        start, end = found[0]
        for next_start, next_end in found[1:]:
            if next_start - end >= _HUGE:
                _advise(whole, "MADV_HUGEPAGE", start, end)
                start = next_start
            end = max(end, next_end)
        _advise(whole, "MADV_HUGEPAGE", start, end)


def _place_of(data: Bytes) -> tuple[mmap.mmap | None, int, int]:
    """The map that it is a part of, and where it begins and ends there; no map for other memory."""
    whole: object = data
    mapped = data
    while isinstance(whole, np.ndarray):
        mapped, whole = whole, whole.base
    if isinstance(whole, memoryview):
        whole = whole.obj
    if not isinstance(whole, mmap.mmap) or not data.size:
        return None, 0, 0
    start = data.ctypes.data - mapped.ctypes.data
    return whole, start, start + data.size


def _advise(whole: mmap.mmap, advice: str, start: int, end: int) -> None:
    """For the pages that lie wholly in this range. No effect on systems without such advice."""
    first = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
    last = end // mmap.PAGESIZE * mmap.PAGESIZE
    if hasattr(mmap, advice) and first < last:
        with suppress(OSError):  # this system refuses it
            whole.madvise(getattr(mmap, advice), first, last - first)
