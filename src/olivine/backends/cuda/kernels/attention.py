"""Attention of generated rows: each program reads SPLIT keys of one KV head, the last one to finish merges.

Splits begin at multiples of SPLIT of the sequence, and are merged in their order, so neither the batch nor
the grid decides a bit.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from olivine.backends.cuda.kernels.launches import LAUNCH, begin
from olivine.backends.cuda.kernels.products import product

SPLIT = 64
_KEYS = 64  # that are read at once
_AT_ONCE = 16  # splits that a merge takes at once


@triton.jit
def _attend(
    q, keys, values, out, partial, peaks, sums, finished, positions, sequences, table,
    table_stride, q_stride, scale, window, splits,
    D: tl.constexpr, BLOCK_D: tl.constexpr, SHARE: tl.constexpr, HEADS: tl.constexpr, GROUPS: tl.constexpr,
    PAGE: tl.constexpr, SPLIT: tl.constexpr, KEYS: tl.constexpr, AT_ONCE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    group = tl.program_id(1)
    begin()
    position = tl.load(positions + row)
    first = tl.maximum(position - window + 1, 0)
    first_split = first // SPLIT
    count = position // SPLIT - first_split + 1  # splits that hold a visible key
    which = tl.program_id(2)
    if (position >= 0) & (which < count):
        h = tl.arange(0, HEADS)
        d = tl.arange(0, BLOCK_D)
        head = group * SHARE + h
        fine = (h < SHARE)[:, None] & (d < D)[None, :]
        at = q + row.to(tl.int64) * q_stride + head[:, None] * D + d[None, :]
        query = tl.load(at, mask=fine, other=0.0)
        sequence = tl.load(sequences + row).to(tl.int64)
        peak = tl.full((HEADS,), float("-inf"), tl.float32)
        total = tl.zeros((HEADS,), tl.float32)
        y = tl.zeros((HEADS, BLOCK_D), tl.float32)
        low = tl.maximum((first_split + which) * SPLIT, first // KEYS * KEYS)
        high = tl.minimum((first_split + which + 1) * SPLIT, position + 1)
        for start in range(low, high, KEYS):
            key = start + tl.arange(0, KEYS)
            visible = (key <= position) & (key >= first)
            page = tl.load(table + sequence * table_stride + key // PAGE, mask=visible, other=0).to(tl.int64)
            slot = ((page * PAGE + key % PAGE) * GROUPS + group) * D
            there = visible[:, None] & (d < D)[None, :]
            k = tl.load(keys + slot[:, None] + d[None, :], mask=there, other=0.0)
            v = tl.load(values + slot[:, None] + d[None, :], mask=there, other=0.0)
            scores = product(query, tl.trans(k), tl.zeros((HEADS, KEYS), tl.float32)) * scale
            scores = tl.where(visible[None, :], scores, float("-inf"))
            new = tl.maximum(peak, tl.max(scores, 1))  # a key of each block is visible
            p = tl.exp(scores - new[:, None])
            old = tl.exp(peak - new)
            total = total * old + tl.sum(p, 1)
            y = product(p, v, y * old[:, None])
            peak = new
        result = out + row.to(tl.int64) * (GROUPS * SHARE * D) + head[:, None] * D + d[None, :]
        if count == 1:
            tl.store(result, (y / total[:, None]).to(out.dtype.element_ty), mask=fine)
        else:
            base = (row.to(tl.int64) * GROUPS + group) * splits
            place = (base + which) * SHARE + h
            tl.store(partial + place[:, None] * D + d[None, :], y, mask=fine)
            tl.store(peaks + place, peak, mask=h < SHARE)
            tl.store(sums + place, total, mask=h < SHARE)
            tl.debug_barrier()  # all of the program's stores come before its count
            before = tl.atomic_add(finished + row * GROUPS + group, 1, sem="acq_rel")
            if before == count - 1:
                tl.store(finished + row * GROUPS + group, 0)  # ready for the next launch
                for index in tl.static_range(SHARE):
                    _merge(
                        partial, peaks, sums, out, base, index, count,
                        row.to(tl.int64) * (GROUPS * SHARE * D) + (group * SHARE + index) * D,
                        D, BLOCK_D, SHARE, AT_ONCE,
                    )  # fmt: skip


@triton.jit
def _merge(
    partial, peaks, sums, out, base, index, count, target,
    D: tl.constexpr, BLOCK_D: tl.constexpr, SHARE: tl.constexpr, AT_ONCE: tl.constexpr,
):  # fmt: skip
    """One head: all splits at once, sixteen by sixteen."""
    d = tl.arange(0, BLOCK_D)
    peak = float("-inf")
    total = 0.0
    y = tl.zeros((BLOCK_D,), tl.float32)
    for start in range(0, count, AT_ONCE):
        s = start + tl.arange(0, AT_ONCE)
        there = s < count
        place = (base + s) * SHARE + index
        m = tl.load(peaks + place, mask=there, other=float("-inf"))
        new = tl.maximum(peak, tl.max(m, 0))
        factor = tl.exp(m - new)
        old = tl.exp(peak - new)
        part = tl.load(
            partial + place[:, None] * D + d[None, :], mask=there[:, None] & (d < D)[None, :], other=0.0
        )
        y = y * old + tl.sum(part * factor[:, None], 0)
        total = total * old + tl.sum(tl.load(sums + place, mask=there, other=0.0) * factor, 0)
        peak = new
    tl.store(out + target + d, (y / total).to(out.dtype.element_ty), mask=d < D)


class Scratch:
    """Where splits leave their results; grows, and is shared by all layers of a step."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._floats = torch.empty(0, device=device)
        self._counts = torch.zeros(0, dtype=torch.int32, device=device)

    def take(self, floats: int, counts: int) -> tuple[torch.Tensor, torch.Tensor]:
        if self._floats.numel() < floats:
            self._floats = torch.empty(floats, device=self._device)
        if self._counts.numel() < counts:
            self._counts = torch.zeros(counts, dtype=torch.int32, device=self._device)
        return self._floats, self._counts


def attend(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    out: torch.Tensor,
    positions: torch.Tensor,
    sequences: torch.Tensor,
    table: torch.Tensor,
    *,
    scale: float,
    window: int | None,
    longest: int,
    scratch: Scratch,
) -> None:
    """q, out [T, H · d]; keys, values [pages, page, G, d]; `longest`: no row's position lies beyond it."""
    rows = q.shape[0]
    if rows == 0:
        return
    _, page, groups, head_dim = keys.shape
    share = q.shape[1] // head_dim // groups
    splits = longest // SPLIT + 1
    if window is not None:
        splits = min(splits, (window - 1) // SPLIT + 2)
    block = max(16, triton.next_power_of_2(head_dim))
    cells = rows * groups * splits * share
    floats, counts = scratch.take(cells * (head_dim + 2), rows * groups)
    partial, peaks, sums = floats, floats[cells * head_dim :], floats[cells * (head_dim + 1) :]
    _attend[(rows, groups, splits)](
        q, keys, values, out, partial, peaks, sums, counts, positions, sequences, table,
        table.stride(0), q.stride(0), scale, (1 << 30) if window is None else window, splits,
        D=head_dim, BLOCK_D=block, SHARE=share, HEADS=max(16, triton.next_power_of_2(share)), GROUPS=groups,
        PAGE=page, SPLIT=SPLIT, KEYS=_KEYS, AT_ONCE=_AT_ONCE, num_warps=4, num_stages=2, **LAUNCH,
    )  # fmt: skip
