"""Attention of generated rows: each program reads splits of the keys of one KV head, the last one merges.

Splits begin at multiples of their size, which a row's position decides, and are merged in their order, so
neither the batch nor the grid decides a bit. Where every row is of a sequence of its own, the same kernel
also normalizes and rotates the row's query and key and writes key and value into the cache; a program that
has one split fetches the keys before them while the projection still runs.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from olivine.backends.cuda.kernels.heads import Chain, partner, rotation, turned
from olivine.backends.cuda.kernels.launches import LAUNCH, begin, with_little_shared_memory
from olivine.backends.cuda.kernels.norm import NormWeight, factor_of
from olivine.backends.cuda.kernels.products import product
from olivine.backends.cuda.tiles import multiprocessors

LONG = 2048  # from this position on a split has four blocks of keys, before it has one
_WARPS = 8
_SHARED = 10  # percent of the most there can be: the driver takes more where a program needs it


@dataclass(frozen=True)
class Fresh:
    """Keys and values as they come from the projection, and what happens to queries and keys."""

    k: torch.Tensor
    v: torch.Tensor
    q_chain: Chain
    k_chain: Chain
    v_norm: NormWeight | None
    turns: torch.Tensor | None  # of kernels/heads.py


@triton.jit
def _block(
    keys, values, table, key, seen, d, group,
    D: tl.constexpr, GROUPS: tl.constexpr, PAGE: tl.constexpr,
):  # fmt: skip
    """A block of keys and values, zeros where nothing is seen."""
    page = tl.load(table + key // PAGE, mask=seen, other=0).to(tl.int64)
    slot = ((page * PAGE + key % PAGE) * GROUPS + group) * D
    there = seen[:, None] & (d < D)[None, :]
    k = tl.load(keys + slot[:, None] + d[None, :], mask=there, other=0.0)
    v = tl.load(values + slot[:, None] + d[None, :], mask=there, other=0.0)
    return k, v


@triton.jit
def _seen(query, k, v, key, first, position, scale, peak, total, y):
    """What queries [D, HEADS] find in a block of keys, added to what they found before."""
    scores = product(k, query, tl.zeros((k.shape[0], query.shape[1]), tl.float32)) * scale
    scores = tl.where(((key < position) & (key >= first))[:, None], scores, float("-inf"))
    new = tl.maximum(peak, tl.max(scores, 0))  # there is a key to be seen, or the row's own
    p = tl.exp(scores - new[None, :])
    old = tl.exp(peak - new)
    total = total * old + tl.sum(p, 0)
    y = product(tl.trans(v), p, y * old[None, :])
    return new, total, y


@triton.jit
def _span(split, size, first, position, KEYS: tl.constexpr):
    """The first key of a split that may be visible, in whole blocks, and the key after its last."""
    return tl.maximum(split * size, first // KEYS * KEYS), tl.minimum((split + 1) * size, position + 1)


@triton.jit
def _split(
    query, own, new_v, k, v, keys, values, pages, result, partial, peaks, sums,
    low, high, first, position, count, base, which, group, scale,
    D: tl.constexpr, BLOCK_D: tl.constexpr, SHARE: tl.constexpr, HEADS: tl.constexpr, GROUPS: tl.constexpr,
    PAGE: tl.constexpr, KEYS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """What the queries find in a split, whose first block is k and v, is written: the result, or a part."""
    d = tl.arange(0, BLOCK_D)
    peak, total, y = _opened(own, new_v, high == position + 1, HEADS, BLOCK_D)
    key = low + tl.arange(0, KEYS)
    peak, total, y = _seen(query, k, v, key, first, position, scale, peak, total, y)
    # Fetching ahead takes some hundred instructions, which those pay too that have no more than a block.
    for start in tl.range(low + KEYS, high, KEYS, num_stages=STAGES):
        key = start + tl.arange(0, KEYS)
        k, v = _block(keys, values, pages, key, key < position, d, group, D, GROUPS, PAGE)
        peak, total, y = _seen(query, k, v, key, first, position, scale, peak, total, y)
    _leave(peak, total, y, result, partial, peaks, sums, count, base + which, group, D, BLOCK_D, SHARE, HEADS)


@triton.jit
def _splits(
    query, own, new_v, keys, values, pages, result, partial, peaks, sums,
    low, end, size, first, first_split, position, count, base, group, scale,
    D: tl.constexpr, BLOCK_D: tl.constexpr, SHARE: tl.constexpr, HEADS: tl.constexpr, GROUPS: tl.constexpr,
    PAGE: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """As `_split`, of all from `low` to `end`: one loop over their blocks, so that the next one is always on
    its way."""
    d = tl.arange(0, BLOCK_D)
    peak, total, y = _opened(own, new_v, False, HEADS, BLOCK_D)
    for start in tl.range(low, end, KEYS, num_stages=2):
        key = start + tl.arange(0, KEYS)
        k, v = _block(keys, values, pages, key, (key < position) & (key >= first), d, group, D, GROUPS, PAGE)
        split = start // size
        high = tl.minimum((split + 1) * size, position + 1)
        opens = (start == low) | (start == split * size)
        new_peak, new_total, new_y = _opened(own, new_v, high == position + 1, HEADS, BLOCK_D)
        peak = tl.where(opens, new_peak, peak)
        total = tl.where(opens, new_total, total)
        y = tl.where(opens, new_y, y)
        peak, total, y = _seen(query, k, v, key, first, position, scale, peak, total, y)
        if start + KEYS >= high:
            at = base + split - first_split
            _leave(peak, total, y, result, partial, peaks, sums, count, at, group, D, BLOCK_D, SHARE, HEADS)


@triton.jit
def _opened(own, new_v, last, HEADS: tl.constexpr, BLOCK_D: tl.constexpr):
    """With what a split begins: the last one with the row's own key."""
    peak = tl.where(last, own, float("-inf"))
    total = tl.where(last, 1.0, 0.0) + tl.zeros((HEADS,), tl.float32)
    y = tl.where(last, new_v.to(tl.float32), 0.0)[:, None] + tl.zeros((BLOCK_D, HEADS), tl.float32)
    return peak, total, y


@triton.jit
def _leave(
    peak, total, y, result, partial, peaks, sums, count, at, group,
    D: tl.constexpr, BLOCK_D: tl.constexpr, SHARE: tl.constexpr, HEADS: tl.constexpr,
):  # fmt: skip
    """The result, if there is one split, or what `_merge` needs of it."""
    h = tl.arange(0, HEADS)
    d = tl.arange(0, BLOCK_D)
    y = tl.trans(y)
    fine = (h < SHARE)[:, None] & (d < D)[None, :]
    if count == 1:
        to = result + (group * SHARE + h)[:, None] * D + d[None, :]
        tl.store(to, (y / total[:, None]).to(result.dtype.element_ty), mask=fine)
    else:
        place = at * SHARE + h
        tl.store(partial + place[:, None] * D + d[None, :], y, mask=fine)
        tl.store(peaks + place, peak, mask=h < SHARE)
        tl.store(sums + place, total, mask=h < SHARE)


@triton.jit(
    do_not_specialize=["splits", "lanes"],
    do_not_specialize_on_alignment=["positions", "sequences", "peaks", "sums"],
)  # or the same code is compiled again while a conversation grows
def _attend(
    q, fresh_k, fresh_v, keys, values, out, partial, peaks, sums, finished, positions, sequences, table,
    q_norm, k_norm, v_norm, angles,
    table_stride, q_stride, k_stride, v_stride, scale, window, splits, lanes, q_eps, q_offset, k_eps,
    k_offset, v_eps, v_offset,
    D: tl.constexpr, BLOCK_D: tl.constexpr, SHARE: tl.constexpr, HEADS: tl.constexpr, GROUPS: tl.constexpr,
    PAGE: tl.constexpr, KEYS: tl.constexpr, STAGES: tl.constexpr, LONG: tl.constexpr, AT_ONCE: tl.constexpr,
    MERGED: tl.constexpr, FRESH: tl.constexpr, LOOP: tl.constexpr, SPARSE: tl.constexpr,
    NORM: tl.constexpr, V_NORM: tl.constexpr, ROPE: tl.constexpr, INTERLEAVED: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    group = tl.program_id(1)
    which = tl.program_id(2)
    if not FRESH:
        begin()
    position = tl.load(positions + row)
    size = tl.where(position < LONG, KEYS, 4 * KEYS)
    first = tl.maximum(position - window + 1, 0)
    first_split = first // size
    count = position // size - first_split + 1  # splits that hold a visible key
    each = 1  # of them, that a program has
    programs = count
    if LOOP:
        each = tl.cdiv(count, lanes)
        programs = tl.cdiv(count, each)
    if (position >= 0) & (which < programs):
        h = tl.arange(0, HEADS)
        d = tl.arange(0, BLOCK_D)
        head = group * SHARE + h
        fine = (h < SHARE)[:, None] & (d < D)[None, :]
        pages = table + tl.load(sequences + row).to(tl.int64) * table_stride
        low, high = _span(first_split + which * each, size, first, position, KEYS)
        if not LOOP:
            key = low + tl.arange(0, KEYS)
            seen = (key < position) & (key >= first)
            k, v = _block(keys, values, pages, key, seen, d, group, D, GROUPS, PAGE)
        at = tl.load(pages + position // PAGE).to(tl.int64) * PAGE + position % PAGE
        own_k = keys + (at * GROUPS + group) * D + d
        own_v = values + (at * GROUPS + group) * D + d
        if FRESH:
            # A tile of all that is normalized and turned: the queries, and after them the key.
            wide = d[None, :] + h[:, None] * 0
            is_key = (h == SHARE)[:, None]
            fine = (h <= SHARE)[:, None] & (d < D)[None, :]
            other = partner(wide, D, INTERLEAVED)
            w = tl.zeros((HEADS, BLOCK_D), tl.float32)
            other_w = w
            if NORM:
                weight = tl.where(is_key, k_norm, q_norm)
                offset = tl.where(is_key, k_offset, q_offset)
                w = tl.load(weight + wide, mask=fine, other=0.0).to(tl.float32) + offset
                other_w = tl.load(weight + other, mask=fine, other=0.0).to(tl.float32) + offset
            cos = w
            sin = w
            if ROPE:
                cos, sin = rotation(angles + row.to(tl.int64) * D, wide, fine, D, INTERLEAVED)
            begin()
            source = tl.where(
                is_key, fresh_k + row.to(tl.int64) * k_stride + group * D,
                q + row.to(tl.int64) * q_stride + head[:, None] * D,
            )  # fmt: skip
            turn = tl.load(source + wide, mask=fine, other=0.0)
            turn_other = tl.load(source + other, mask=fine, other=0.0)
            new_v = tl.load(fresh_v + row.to(tl.int64) * v_stride + group * D + d, mask=d < D, other=0.0)
            if V_NORM:
                v_w = tl.load(v_norm + d, mask=d < D, other=0.0).to(tl.float32) + v_offset
                new_v = new_v * factor_of(new_v, D, v_eps) * v_w
            new_v = new_v.to(tl.bfloat16)
            eps = tl.where(is_key, k_eps, q_eps)
            query = turned(turn, turn_other, w, other_w, cos, sin, eps, D, NORM, ROPE)
            new_k = tl.sum(tl.where(is_key, query, 0.0), 0).to(tl.bfloat16)
            query = query.to(tl.bfloat16)
            if which == programs - 1:
                tl.store(own_k, new_k, mask=d < D)
                tl.store(own_v, new_v, mask=d < D)
        else:
            query = tl.load(
                q + row.to(tl.int64) * q_stride + head[:, None] * D + d[None, :], mask=fine, other=0.0
            )
            new_k = tl.load(own_k, mask=d < D, other=0.0)
            new_v = tl.load(own_v, mask=d < D, other=0.0)
        # The row's own key comes by itself: the others can then be at hand before it is.
        query = tl.trans(query)
        same = tl.broadcast_to(new_k[None, :], (16, BLOCK_D))
        own = tl.max(product(same, query, tl.zeros((16, HEADS), tl.float32)), 0) * scale
        result = out + row.to(tl.int64) * (GROUPS * SHARE * D)
        base = (row.to(tl.int64) * GROUPS + group) * splits
        if not LOOP:
            _split(
                query, own, new_v, k, v, keys, values, pages, result, partial, peaks, sums,
                low, high, first, position, count, base, which, group, scale,
                D, BLOCK_D, SHARE, HEADS, GROUPS, PAGE, KEYS, STAGES,
            )  # fmt: skip
        else:
            end = tl.minimum((first_split + (which + 1) * each) * size, position + 1)
            _splits(
                query, own, new_v, keys, values, pages, result, partial, peaks, sums,
                low, end, size, first, first_split, position, count, base, group, scale,
                D, BLOCK_D, SHARE, HEADS, GROUPS, PAGE, KEYS,
            )  # fmt: skip
        if count > 1:
            tl.debug_barrier()  # all of the program's stores come before its count
            before = tl.atomic_add(finished + row * GROUPS + group, 1, sem="acq_rel")
            if before == programs - 1:
                tl.store(finished + row * GROUPS + group, 0)  # ready for the next launch
                target = out + (row.to(tl.int64) * GROUPS + group) * (SHARE * D)
                _merge(partial, peaks, sums, target, base, count, D, BLOCK_D, SHARE, MERGED, AT_ONCE)
    elif FRESH:
        begin()  # nobody is done before the kernel before it is


@triton.jit
def _merge(
    partial, peaks, sums, out, base, count,
    D: tl.constexpr, BLOCK_D: tl.constexpr, SHARE: tl.constexpr, HEADS: tl.constexpr, AT_ONCE: tl.constexpr,
):  # fmt: skip
    """The splits of one KV head's queries, in their order."""
    h = tl.arange(0, HEADS)
    d = tl.arange(0, BLOCK_D)
    cell = h[:, None] * D + d[None, :]
    peak = tl.full((HEADS,), float("-inf"), tl.float32)
    total = tl.zeros((HEADS,), tl.float32)
    y = tl.zeros((HEADS, BLOCK_D), tl.float32)
    for start in range(0, count, AT_ONCE):
        new = peak
        found = ()
        for i in tl.static_range(AT_ONCE):
            at = base + start + i
            head = h < tl.where(start + i < count, SHARE, 0)
            top = tl.load(peaks + at * SHARE + h, mask=head, other=float("-inf"))
            part = tl.load(
                partial + at * (SHARE * D) + cell, mask=head[:, None] & (d < D)[None, :], other=0.0
            )
            found = found + ((top, tl.load(sums + at * SHARE + h, mask=head, other=0.0), part),)
            new = tl.maximum(new, top)
        finite = tl.where(h < SHARE, new, 0.0)
        old = tl.exp(peak - finite)
        total = total * old
        y = y * old[:, None]
        for i in tl.static_range(AT_ONCE):
            factor = tl.exp(found[i][0] - finite)
            total += found[i][1] * factor
            y += found[i][2] * factor[:, None]
        peak = new
    y = y / total[:, None]
    tl.store(out + cell, y.to(out.dtype.element_ty), mask=(h < SHARE)[:, None] & (d < D)[None, :])


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


def _cut(block: int, share: int) -> tuple[int, int]:
    """Keys of a block, and splits that a merge takes at once, as registers allow."""
    keys = 64 if block <= 128 else 32
    return keys, max(1, min(8, 64 * 32 * _WARPS // (block * triton.next_power_of_2(share))))


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
    fresh: Fresh | None = None,
) -> None:
    """q, out [T, H · d]; keys, values [pages, page, G, d]; `longest`: no row's position lies beyond it.

    With `fresh`, q is what the projection gave, and each row's key and value are still to be stored.
    """
    rows = q.shape[0]
    if rows == 0:
        return
    _, page, groups, head_dim = keys.shape
    share = q.shape[1] // head_dim // groups
    block = max(16, triton.next_power_of_2(head_dim))
    keys_at_once, splits_at_once = _cut(block, share)
    splits = max(min(longest, LONG - 1) // keys_at_once, longest // (4 * keys_at_once)) + 1
    if window is not None:
        splits = min(splits, (window - 1) // keys_at_once + 2)
    cells = rows * groups * splits * share
    floats, counts = scratch.take(cells * (head_dim + 2), rows * groups)
    partial, peaks, sums = floats, floats[cells * head_dim :], floats[cells * (head_dim + 1) :]
    q_norm = None if fresh is None else fresh.q_chain.norm
    k_norm = None if fresh is None else fresh.k_chain.norm
    v_norm = None if fresh is None else fresh.v_norm
    turn = None if fresh is None else fresh.k_chain.turn
    processors = multiprocessors(q.device)
    lanes = splits
    if rows * groups * splits > 2 * processors:  # more programs than that would wait: they have several each
        lanes = max(1, (2 if block <= 128 else 1) * processors // (rows * groups))
    # SPARSE changes nothing in the kernel: it makes two of it, and only one asks for little shared memory.
    sparse = rows * groups * lanes <= processors
    kernel = _attend[(rows, groups, lanes)](
        q, q if fresh is None else fresh.k, q if fresh is None else fresh.v, keys, values, out,
        partial, peaks, sums, counts, positions, sequences, table, q if q_norm is None else q_norm.weight,
        q if k_norm is None else k_norm.weight, q if v_norm is None else v_norm.weight,
        q if fresh is None or fresh.turns is None else fresh.turns,
        table.stride(0), q.stride(0), 0 if fresh is None else fresh.k.stride(0),
        0 if fresh is None else fresh.v.stride(0), scale, (1 << 30) if window is None else window,
        splits, lanes,
        0.0 if q_norm is None else q_norm.eps, 0.0 if q_norm is None else q_norm.offset,
        0.0 if k_norm is None else k_norm.eps, 0.0 if k_norm is None else k_norm.offset,
        0.0 if v_norm is None else v_norm.eps, 0.0 if v_norm is None else v_norm.offset,
        D=head_dim, BLOCK_D=block, SHARE=share, HEADS=max(8, triton.next_power_of_2(share + 1)),
        GROUPS=groups, PAGE=page, KEYS=keys_at_once, STAGES=1 if longest < LONG else 2, LONG=LONG,
        AT_ONCE=splits_at_once, MERGED=triton.next_power_of_2(share), FRESH=fresh is not None,
        LOOP=lanes < splits, SPARSE=sparse,
        NORM=q_norm is not None, V_NORM=v_norm is not None, ROPE=turn is not None,
        INTERLEAVED=turn is not None and turn.interleaved,
        num_warps=_WARPS, num_stages=2, enable_fp_fusion=False, **LAUNCH,
    )  # fmt: skip
    if sparse:
        with_little_shared_memory(kernel, _SHARED)
