"""Which page of the KV cache holds which tokens of which sequence."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from olivine.errors import RequestError


class PageTables:
    """Page tables for a fixed number of sequence slots, one a cache group, filled as sequences grow."""

    def __init__(self, page_counts: tuple[int, ...], page_size: int, slots: int, length: int) -> None:
        self.page_size = page_size
        pages = -(-length // page_size)
        self.tables: tuple[npt.NDArray[np.int32], ...] = tuple(
            np.full((slots, pages), -1, np.int32) for _ in page_counts
        )
        self._free = [list(range(count - 1, -1, -1)) for count in page_counts]

    def extend(self, slot: int, length: int) -> None:
        """Gives the slot pages for its first `length` tokens."""
        for table, free in zip(self.tables, self._free, strict=True):
            wanted = -(-length // self.page_size)
            if wanted > table.shape[1]:
                raise RequestError(
                    f"{length} tokens do not fit a context of {table.shape[1] * self.page_size}"
                )
            for page in np.flatnonzero(table[slot, :wanted] < 0):
                if not free:
                    raise RequestError("the KV cache is full")
                table[slot, page] = free.pop()

    def release(self, slot: int) -> None:
        """Takes back all pages of the slot."""
        for table, free in zip(self.tables, self._free, strict=True):
            free.extend(int(page) for page in table[slot] if page >= 0)
            table[slot] = -1

    def free_pages(self) -> tuple[int, ...]:
        return tuple(len(free) for free in self._free)
