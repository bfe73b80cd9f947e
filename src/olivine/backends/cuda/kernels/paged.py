"""Where the rows of a step lie in the paged KV cache, and how keys and values are stored there: in BF16, or
as int8 codes with a float32 scale for each 32 (Q8_0)."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

GROUP = 32  # columns that share a scale
_GROUP = tl.constexpr(GROUP)
_ROUND = tl.constexpr(12582912.0)  # 1.5 · 2^23: added and subtracted, it rounds to the nearest integer


class CachePointers(NamedTuple):
    """What kernels read of a `PagedCache`."""

    k: torch.Tensor
    v: torch.Tensor
    k_scales: torch.Tensor | None
    v_scales: torch.Tensor | None
    table: torch.Tensor
    table_stride: int


class PagedCache(NamedTuple):
    """The cache of one layer and the page tables of its group: position p of sequence s lives in page
    table[s, p // page size], slot p % page size. (In a kernel, a tuple's `values` are all its members.)"""

    k: torch.Tensor  # [pages, page size, KV heads, d]
    v: torch.Tensor
    table: torch.Tensor  # [sequences, pages] int32
    k_scales: torch.Tensor | None = None  # of codes: [pages, page size, KV heads, d / 32]
    v_scales: torch.Tensor | None = None

    def pointers(self) -> CachePointers:
        return CachePointers(self.k, self.v, self.k_scales, self.v_scales, self.table, self.table.stride(0))


class RowPlaces(NamedTuple):
    """The sequence and position of each row; a padding row has position -1."""

    positions: torch.Tensor  # [T] int32
    sequences: torch.Tensor  # [T] int32


@triton.jit
def load_cached(codes, scales, head, there, D: tl.constexpr, FIRST: tl.constexpr, WIDTH: tl.constexpr):
    """WIDTH columns, from FIRST on, of the heads [N] of a cache; zeros where not `there`."""
    d = FIRST + tl.arange(0, WIDTH)
    y = tl.load(codes + (head * D)[:, None] + d[None, :], mask=there, other=0)
    if scales is not None:
        group = FIRST // _GROUP + tl.arange(0, WIDTH // _GROUP)
        known = (group < D // _GROUP)[None, :] & (head >= 0)[:, None]
        s = tl.load(scales + (head * (D // _GROUP))[:, None] + group[None, :], mask=known, other=0.0)
        N: tl.constexpr = y.shape[0]
        s = tl.reshape(tl.broadcast_to(s[:, :, None], (N, WIDTH // _GROUP, _GROUP)), (N, WIDTH))
        y = (y.to(tl.float32) * s).to(tl.bfloat16)
    return y


@triton.jit
def store_cached(codes, scales, head, y, there, D: tl.constexpr):
    """Heads y [ROWS, BLOCK] to the heads [ROWS, 1] of a cache, where `there` [ROWS, 1]."""
    ROWS: tl.constexpr = y.shape[0]
    BLOCK: tl.constexpr = y.shape[1]
    d = tl.arange(0, BLOCK)[None, :]
    if scales is not None:
        GROUPS: tl.constexpr = BLOCK // _GROUP
        blocks = tl.reshape(y, (ROWS, GROUPS, _GROUP))
        largest = tl.max(tl.abs(blocks), 2)
        inverse = tl.where(largest > 0, tl.div_rn(127.0, tl.where(largest > 0, largest, 1.0)), 0.0)
        y = tl.reshape((blocks * inverse[:, :, None] + _ROUND) - _ROUND, (ROWS, BLOCK))
        group = tl.arange(0, GROUPS)[None, :]
        to = scales + head * (D // _GROUP) + group
        tl.store(to, tl.div_rn(largest, 127.0), mask=there & (group < D // _GROUP))
    tl.store(codes + head * D + d, y.to(codes.dtype.element_ty), mask=there & (d < D))
