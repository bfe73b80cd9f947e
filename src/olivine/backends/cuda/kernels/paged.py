"""Where the rows of a step lie in the paged KV cache."""

from __future__ import annotations

from typing import NamedTuple

import torch


class CachePointers(NamedTuple):
    """What kernels read of a `PagedCache`."""

    k: torch.Tensor
    v: torch.Tensor
    table: torch.Tensor
    table_stride: int


class PagedCache(NamedTuple):
    """The cache of one layer and the page tables of its group: position p of sequence s lives in page
    table[s, p // page size], slot p % page size. (In a kernel, a tuple's `values` are all its members.)"""

    k: torch.Tensor  # [pages, page size, KV heads, d]
    v: torch.Tensor
    table: torch.Tensor  # [sequences, pages] int32

    def pointers(self) -> CachePointers:
        return CachePointers(self.k, self.v, self.table, self.table.stride(0))


class RowPlaces(NamedTuple):
    """The sequence and position of each row; a padding row has position -1."""

    positions: torch.Tensor  # [T] int32
    sequences: torch.Tensor  # [T] int32
