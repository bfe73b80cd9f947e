"""What the system is told about the pages of memory-mapped files."""

from __future__ import annotations

import mmap
from contextlib import suppress

import numpy as np

from olivine.tensor import Bytes


def release(data: Bytes) -> None:
    """Release the resident pages of a part of a map (MADV_DONTNEED); does nothing for other memory.

    The pages stay in the system's page cache, but no longer count as this process's.
    """
    _advise(data, "MADV_DONTNEED")


def prefer_huge_pages(data: Bytes) -> None:
    """For a part of a map that is read from end to end, again and again: what of it is not in the system's
    page cache yet is read into pages of 2 MB, if the file system has them. Looking up small ones takes time.
    """
    _advise(data, "MADV_HUGEPAGE")


def _advise(data: Bytes, advice: str) -> None:
    """For the pages that lie wholly in a part of a map. No effect on other memory, and on other systems."""
    whole: object = data
    while isinstance(whole, np.ndarray):
        mapped, whole = whole, whole.base
    if isinstance(whole, memoryview):
        whole = whole.obj
    if not isinstance(whole, mmap.mmap) or not hasattr(mmap, advice) or not data.size:
        return
    start = data.ctypes.data - mapped.ctypes.data
    first = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
    last = (start + data.size) // mmap.PAGESIZE * mmap.PAGESIZE
    if first < last:
        with suppress(OSError):  # this system refuses it
            whole.madvise(getattr(mmap, advice), first, last - first)
