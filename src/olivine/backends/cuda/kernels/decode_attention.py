"""Attention of decode rows: flash decoding over pages. A program reads splits of the keys of one KV head for
some or all of its queries; the last program to finish merges them.

Splits begin at multiples of their size, which the row's position decides, and are merged in their order, so
neither the batch nor the grid changes a bit of the result; sums of weights are exact, so that it does not
matter either how many queries a program has. Where every row has a sequence to itself, the same kernel also
applies norm and rotary embedding to the row's query and key and writes key and value into the cache; where
the cache has them already, it does so with the query alone. A program with one split then loads the older
keys while the projection still runs.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from olivine.backends.cuda.kernels.dot import dot
from olivine.backends.cuda.kernels.heads import (
    HeadTransform,
    QkvTransform,
    cos_sin,
    norm_rotate,
    rotary_partner,
)
from olivine.backends.cuda.kernels.norm import exact_inv_rms, norm_weight
from olivine.backends.cuda.kernels.paged import PagedCache, RowPlaces, load_cached
from olivine.backends.cuda.kernels.pdl import LAUNCH, begin, set_shared_memory_carveout
from olivine.backends.cuda.tiles import multiprocessors, tiling_is_bit_exact

LONG = 2048  # from this position on a split is four blocks of keys, before it is one
_CARVEOUT = 10  # percent of the most shared memory: the driver gives more where a program needs it


class SplitPointers(NamedTuple):
    """Memory for the partial results of splits: sums of values, the largest scores and the sums of weights;
    and how many programs of a row and of the same queries have finished."""

    partial: torch.Tensor
    peaks: torch.Tensor
    sums: torch.Tensor
    finished: torch.Tensor


@triton.jit
def _load_block(paged, key, seen, d, D: tl.constexpr, KV_HEADS: tl.constexpr, PAGE: tl.constexpr):
    """A block of keys and values; zeros where `seen` is false. `paged` is the cache, the row's page table and
    the KV head."""
    cache, pages, group = paged
    page = tl.load(pages + key // PAGE, mask=seen, other=0).to(tl.int64)
    head = (page * PAGE + key % PAGE) * KV_HEADS + group
    there = seen[:, None] & (d < D)[None, :]
    k = load_cached(cache.k, cache.k_scales, head, there, D, 0, d.shape[0])
    v = load_cached(cache.v, cache.v_scales, head, there, D, 0, d.shape[0])
    return k, v


@triton.jit
def _accumulate(query, k, v, key, first, position, scale, peak, total, y):
    """Adds a block of keys to the online softmax of queries [D, HEADS].

    Sixteen and more queries are the rows of both products. As columns, they would take Hopper's larger tensor
    core instructions, which read beyond the shared memory here (16 queries of 128 columns, Triton 3.6).
    """
    MANY: tl.constexpr = query.shape[1] > 8
    if MANY:
        zeros = tl.zeros((query.shape[1], k.shape[0]), tl.float32)
        scores = tl.trans(dot(tl.trans(query), tl.trans(k), zeros)) * scale
    else:
        scores = dot(k, query, tl.zeros((k.shape[0], query.shape[1]), tl.float32)) * scale
    scores = tl.where(((key < position) & (key >= first))[:, None], scores, float("-inf"))
    new = tl.maximum(peak, tl.max(scores, 0))  # never -inf: there is a visible key, or the row's own
    p = tl.exp(scores - new[None, :])
    old = tl.exp(peak - new)
    total = total * old + _exact_sum(p)
    y = y * old[None, :]
    if MANY:
        return new, total, tl.trans(dot(tl.trans(p), v, tl.trans(y)))
    return new, total, dot(tl.trans(v), p, y)


@triton.jit
def _exact_sum(p):
    """Sums over the first axis of no more than 64 numbers from 0 to 1: in steps of 2^-24, as integers, which
    have the same bits in every order and so in every layout."""
    tl.static_assert(p.shape[0] <= 64)
    steps = (p * 16777216.0 + 0.5).to(tl.int32)
    return tl.sum(steps, 0).to(tl.float32) * (1.0 / 16777216.0)


@triton.jit
def _split_bounds(split, size, first, position, KEYS: tl.constexpr):
    """The first key of a split that may be visible, in whole blocks, and the key after its last."""
    return tl.maximum(split * size, first // KEYS * KEYS), tl.minimum((split + 1) * size, position + 1)


@triton.jit
def _one_split(
    query, own, block, paged, target, at, bounds, visible, scale,
    D: tl.constexpr, QUERIES: tl.constexpr, KV_HEADS: tl.constexpr, PAGE: tl.constexpr, KEYS: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """Attention over one split, whose first `block` is loaded; stores the result, or a partial one.

    `own` is the score and value of the row's own key, `bounds` the split's first key and the key after its
    last, `visible` the row's first visible key and its position; `paged` is as in `_load_block`, `target` and
    `at` are as in `_store_split`.
    """
    low, high = bounds
    first, position = visible
    k, v = block
    d = tl.arange(0, query.shape[0])
    peak, total, y = _start(own, high == position + 1)
    key = low + tl.arange(0, KEYS)
    peak, total, y = _accumulate(query, k, v, key, first, position, scale, peak, total, y)
    # Pipelining costs some hundred instructions, also for programs that have only one block.
    for start in tl.range(low + KEYS, high, KEYS, num_stages=STAGES):
        key = start + tl.arange(0, KEYS)
        k, v = _load_block(paged, key, key < position, d, D, KV_HEADS, PAGE)
        peak, total, y = _accumulate(query, k, v, key, first, position, scale, peak, total, y)
    _store_split(peak, total, y, target, at, D, QUERIES)


@triton.jit
def _many_splits(
    query, own, paged, target, at, bounds, visible, size, scale,
    D: tl.constexpr, QUERIES: tl.constexpr, KV_HEADS: tl.constexpr, PAGE: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """As `_one_split`, for all splits of `size` keys within the bounds: one loop over their blocks, so that
    the next block is always being loaded. Split 0 has its partial result at `at`."""
    low, end = bounds
    first, position = visible
    d = tl.arange(0, query.shape[0])
    peak, total, y = _start(own, False)
    for start in tl.range(low, end, KEYS, num_stages=2):
        key = start + tl.arange(0, KEYS)
        seen = (key < position) & (key >= first)
        k, v = _load_block(paged, key, seen, d, D, KV_HEADS, PAGE)
        split = start // size
        high = tl.minimum((split + 1) * size, position + 1)
        opens = (start == low) | (start == split * size)
        new_peak, new_total, new_y = _start(own, high == position + 1)
        peak = tl.where(opens, new_peak, peak)
        total = tl.where(opens, new_total, total)
        y = tl.where(opens, new_y, y)
        peak, total, y = _accumulate(query, k, v, key, first, position, scale, peak, total, y)
        if start + KEYS >= high:
            _store_split(peak, total, y, target, at + split, D, QUERIES)


@triton.jit
def _start(own, last):
    """The softmax state that a split starts from: the last one with the row's own key, others empty."""
    score, value = own
    peak = tl.where(last, score, float("-inf"))
    total = tl.where(last, 1.0, 0.0) + tl.zeros((score.shape[0],), tl.float32)
    y = tl.where(last, value.to(tl.float32), 0.0)[:, None]
    return peak, total, y + tl.zeros((value.shape[0], score.shape[0]), tl.float32)


@triton.jit
def _store_split(peak, total, y, target, at, D: tl.constexpr, QUERIES: tl.constexpr):
    """The result, if there is one split, or the partial result for `_merge`.

    `target` is where the queries' result begins, the scratch of partial results, and the number of splits;
    `at` is the split's place in the scratch.
    """
    result, scratch, count = target
    h = tl.arange(0, y.shape[1])
    d = tl.arange(0, y.shape[0])
    y = tl.trans(y)
    fine = (h < QUERIES)[:, None] & (d < D)[None, :]
    if count == 1:
        to = result + h[:, None] * D + d[None, :]
        tl.store(to, (y / total[:, None]).to(result.dtype.element_ty), mask=fine)
    else:
        place = at * QUERIES + h
        tl.store(scratch.partial + place[:, None] * D + d[None, :], y, mask=fine)
        tl.store(scratch.peaks + place, peak, mask=h < QUERIES)
        tl.store(scratch.sums + place, total, mask=h < QUERIES)


@triton.jit
def _load_own(cache, head, d, D: tl.constexpr):
    """The row's own key and value, from their place in the cache."""
    k = tl.load(cache.k + head * D + d, mask=d < D, other=0)
    v = tl.load(cache.v + head * D + d, mask=d < D, other=0)
    if cache.k_scales is not None:
        own_scale = head * (D // 32) + d // 32
        k = k.to(tl.float32) * tl.load(cache.k_scales + own_scale, mask=d < D, other=0.0)
        v = v.to(tl.float32) * tl.load(cache.v_scales + own_scale, mask=d < D, other=0.0)
        k, v = k.to(tl.bfloat16), v.to(tl.bfloat16)
    return k, v


@triton.jit
def _project(
    q, new_kv, norms, angles, row, kv_head, cache, head, is_last,
    HEADS: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, QUERIES: tl.constexpr,
    ROTATED: tl.constexpr, INTERLEAVED: tl.constexpr,
):  # fmt: skip
    """Transformed queries [HEADS, BLOCK_D], and the row's key and value: the new ones, which the last program
    stores, or else as the cache has them.

    Weights and angles are loaded before the wait: only q, k and v come from kernels just before.
    """
    h = tl.arange(0, HEADS)
    d = tl.arange(0, BLOCK_D)
    # One tile of all that is normalized and rotated: the queries, and after them the key, if it is new.
    wide = d[None, :] + h[:, None] * 0
    is_key = (h == QUERIES)[:, None]
    fine = (h < QUERIES + (0 if new_kv is None else 1))[:, None] & (d < D)[None, :]
    other = rotary_partner(wide, D, ROTATED, INTERLEAVED)
    w = None
    other_w = None
    eps = 0.0
    if norms[0] is not None:
        weight, eps, offset = norms[0]
        if new_kv is not None:
            weight = tl.where(is_key, norms[1].weight, weight)
            offset = tl.where(is_key, norms[1].offset, offset)
            eps = tl.where(is_key, norms[1].eps, eps)
        w = tl.load(weight + wide, mask=fine, other=0.0).to(tl.float32) + offset
        other_w = tl.load(weight + other, mask=fine, other=0.0).to(tl.float32) + offset
    cos = None
    sin = None
    if angles is not None:
        cos, sin = cos_sin(angles + row.to(tl.int64) * ROTATED, wide, fine, D, ROTATED, INTERLEAVED)
    begin()
    source = q + h[:, None] * D
    if new_kv is not None:
        new_k, new_v, k_stride, v_stride = new_kv
        source = tl.where(is_key, new_k + row.to(tl.int64) * k_stride + kv_head * D, source)
    raw = tl.load(source + wide, mask=fine, other=0.0)
    raw_other = tl.load(source + other, mask=fine, other=0.0)
    if new_kv is None:
        key, value = _load_own(cache, head, d, D)
    else:
        value = tl.load(new_v + row.to(tl.int64) * v_stride + kv_head * D + d, mask=d < D, other=0.0)
        if norms[2] is not None:
            v_w = norm_weight(norms[2], d, d < D)
            value = value * exact_inv_rms(value, D, norms[2].eps) * v_w
        value = value.to(tl.bfloat16)
    query = norm_rotate(raw, raw_other, w, other_w, cos, sin, eps, D)
    if new_kv is not None:
        key = tl.sum(tl.where(is_key, query, 0.0), 0).to(tl.bfloat16)
        if is_last:
            tl.store(cache.k + head * D + d, key, mask=d < D)
            tl.store(cache.v + head * D + d, value, mask=d < D)
    return query.to(tl.bfloat16), key, value


@triton.jit(do_not_specialize=["splits"])  # or it is compiled again while a conversation grows
def _decode_attention(
    rows, new_kv, norms, angles, cache, scratch, places, scale, window, splits,
    D: tl.constexpr, BLOCK_D: tl.constexpr, QUERIES: tl.constexpr, HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr, PARTS: tl.constexpr, PAGE: tl.constexpr, KEYS: tl.constexpr, STAGES: tl.constexpr,
    LONG: tl.constexpr, AT_ONCE: tl.constexpr, MERGED: tl.constexpr, LOOP: tl.constexpr,
    SPARSE: tl.constexpr, TRANSFORM: tl.constexpr, ROTATED: tl.constexpr, INTERLEAVED: tl.constexpr,
):  # fmt: skip
    """rows are q, its stride and out; new_kv are k and v with their strides, or None. With TRANSFORM, q and
    these are as the projection gave them, and are normalized and rotated here: norms are those of q, k and v
    (`NormWeight` or None), angles may be None. cache is `CachePointers`, scratch `SplitPointers`, places
    `RowPlaces`. A KV head has PARTS of QUERIES each."""
    q, q_stride, out = rows
    row = tl.program_id(0)
    part = tl.program_id(1)
    kv_head = part // PARTS
    which = tl.program_id(2)
    if not TRANSFORM:
        begin()
    position = tl.load(places.positions + row)
    size = tl.where(position < LONG, KEYS, 4 * KEYS)
    first = tl.maximum(position - window + 1, 0)
    first_split = first // size
    count = position // size - first_split + 1  # splits that hold a visible key
    each = 1  # splits a program
    programs = count
    if LOOP:
        each = tl.cdiv(count, tl.num_programs(2))
        programs = tl.cdiv(count, each)
    if (position >= 0) & (which < programs):
        h = tl.arange(0, HEADS)
        d = tl.arange(0, BLOCK_D)
        pages = cache.table + tl.load(places.sequences + row).to(tl.int64) * cache.table_stride
        paged = (cache, pages, kv_head)
        low, high = _split_bounds(first_split + which * each, size, first, position, KEYS)
        if not LOOP:
            key = low + tl.arange(0, KEYS)
            seen = (key < position) & (key >= first)
            block = _load_block(paged, key, seen, d, D, KV_HEADS, PAGE)
        at = tl.load(pages + position // PAGE).to(tl.int64) * PAGE + position % PAGE
        head = at * KV_HEADS + kv_head
        q_row = q + row.to(tl.int64) * q_stride
        if TRANSFORM:
            query, new_k, new_v = _project(
                q_row + part * (QUERIES * D), new_kv, norms, angles, row, kv_head, cache, head,
                (which == programs - 1) & (part % PARTS == 0),
                HEADS, D, BLOCK_D, QUERIES, ROTATED, INTERLEAVED,
            )  # fmt: skip
        else:
            fine = (h < QUERIES)[:, None] & (d < D)[None, :]
            query = tl.load(q_row + (part * QUERIES + h)[:, None] * D + d[None, :], mask=fine, other=0.0)
            new_k, new_v = _load_own(cache, head, d, D)
        # The row's own key is scored by itself, so that the others can be loaded before it exists.
        query = tl.trans(query)
        same = tl.broadcast_to(new_k[None, :], (16, BLOCK_D))
        own = tl.max(dot(same, query, tl.zeros((16, HEADS), tl.float32)), 0) * scale
        place = row.to(tl.int64) * (KV_HEADS * PARTS) + part
        result = out + place * (QUERIES * D)
        base = place * splits
        target = (result, scratch, count)
        if not LOOP:
            _one_split(
                query, (own, new_v), block, paged, target, base + which, (low, high),
                (first, position), scale, D, QUERIES, KV_HEADS, PAGE, KEYS, STAGES,
            )  # fmt: skip
        else:
            end = tl.minimum((first_split + (which + 1) * each) * size, position + 1)
            _many_splits(
                query, (own, new_v), paged, target, base - first_split, (low, end),
                (first, position), size, scale, D, QUERIES, KV_HEADS, PAGE, KEYS,
            )  # fmt: skip
        if count > 1:
            tl.debug_barrier()  # all of the program's stores come before its count
            before = tl.atomic_add(scratch.finished + place, 1, sem="acq_rel")
            if before == programs - 1:
                tl.store(scratch.finished + place, 0)  # ready for the next launch
                _merge(scratch, result, base, count, D, BLOCK_D, QUERIES, MERGED, AT_ONCE)
    elif TRANSFORM:
        begin()  # no program may end before the kernel before this one


@triton.jit
def _merge(
    scratch, out, base, count,
    D: tl.constexpr, BLOCK_D: tl.constexpr, QUERIES: tl.constexpr, HEADS: tl.constexpr,
    AT_ONCE: tl.constexpr,
):  # fmt: skip
    """Merges the splits of a program's queries, in their order."""
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
            head = h < tl.where(start + i < count, QUERIES, 0)
            top = tl.load(scratch.peaks + at * QUERIES + h, mask=head, other=float("-inf"))
            part = tl.load(
                scratch.partial + at * (QUERIES * D) + cell, mask=head[:, None] & (d < D)[None, :], other=0.0
            )
            found = found + ((top, tl.load(scratch.sums + at * QUERIES + h, mask=head, other=0.0), part),)
            new = tl.maximum(new, top)
        finite = tl.where(h < QUERIES, new, 0.0)
        old = tl.exp(peak - finite)
        total = total * old
        y = y * old[:, None]
        for i in tl.static_range(AT_ONCE):
            factor = tl.exp(found[i][0] - finite)
            total += found[i][1] * factor
            y += found[i][2] * factor[:, None]
        peak = new
    y = y / total[:, None]
    tl.store(out + cell, y.to(out.dtype.element_ty), mask=(h < QUERIES)[:, None] & (d < D)[None, :])


class Scratch:
    """Memory for partial results of splits; grows, and is shared by all layers of a step."""

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


def _parts(q_per_kv: int, programs: int, device: torch.device) -> int:
    """In how many parts programs divide the queries of a KV head, no less than two each: as long as they have
    a multiprocessor each, less to do is sooner done. For more programs, keys would be read too often."""
    parts, most = 1, multiprocessors(device) if tiling_is_bit_exact(device) else 0
    while q_per_kv % (4 * parts) == 0 and programs * 2 * parts <= most:
        parts *= 2
    return parts


def _block_sizes(block: int, q_per_kv: int) -> tuple[int, int, int]:
    """Keys a block, warps (four wait less for each other than eight), and splits that a merge loads at once,
    as registers allow."""
    keys, warps = 64 if block <= 128 else 32, 4 if block <= 256 else 8
    return keys, warps, max(1, min(8, 64 * 32 * warps // (block * triton.next_power_of_2(q_per_kv))))


def decode_attention(
    q: torch.Tensor,
    out: torch.Tensor,
    cache: PagedCache,
    places: RowPlaces,
    *,
    scale: float,
    window: int | None,
    max_position: int,
    scratch: Scratch,
    transform: QkvTransform | None = None,
    new_kv: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> None:
    """q, out [T, H · d]; no row's position exceeds `max_position`; padding rows leave `out` as it is.

    With a transform, q is what the projection gave; and so are the new keys and values of the rows, which are
    transformed and stored. Without new ones the cache has those of the rows already, and what it has of other
    rows must be there when the kernel starts: it is loaded before the wait.
    """
    rows = q.shape[0]
    if rows == 0:
        return
    _, page, kv_heads, head_dim = cache.k.shape
    q_per_kv = q.shape[1] // head_dim // kv_heads
    block = max(16, triton.next_power_of_2(head_dim))
    keys_at_once, warps, splits_at_once = _block_sizes(block, q_per_kv)
    splits = max(min(max_position, LONG - 1) // keys_at_once, max_position // (4 * keys_at_once)) + 1
    if window is not None:
        splits = min(splits, (window - 1) // keys_at_once + 2)
    processors = multiprocessors(q.device)
    parts_each = _parts(q_per_kv, rows * kv_heads * splits, q.device)
    queries, parts = q_per_kv // parts_each, kv_heads * parts_each
    cells = rows * parts * splits * queries
    cells += -cells % 4  # so that all begin at multiples of 16 bytes
    floats, counts = scratch.take(cells * (head_dim + 2), rows * parts)
    pointers = SplitPointers(floats, floats[cells * head_dim :], floats[cells * (head_dim + 1) :], counts)
    workers = splits
    if rows * parts * splits > 2 * processors:  # more programs would queue: each takes several splits
        workers = max(1, (2 if block <= 128 else 1) * processors // (rows * parts))
    # SPARSE changes nothing in the kernel: it makes two of it, and only one asks for little shared memory.
    sparse = rows * parts * workers <= processors
    norms, angles, pairing = (None, None, None), None, HeadTransform(None, None).pairing(head_dim)
    if transform is not None:
        norms, angles, pairing = transform.norms, transform.angles, transform.q.pairing(head_dim)
    kernel = _decode_attention[(rows, parts, workers)](
        (q, q.stride(0), out), None if new_kv is None else (*new_kv, *(each.stride(0) for each in new_kv)),
        norms, angles, cache.pointers(), pointers, places,
        scale, (1 << 30) if window is None else window, splits,
        D=head_dim, BLOCK_D=block, QUERIES=queries, HEADS=max(8, triton.next_power_of_2(queries + 1)),
        KV_HEADS=kv_heads, PARTS=parts_each, PAGE=page, KEYS=keys_at_once,
        STAGES=1 if max_position < LONG else 2, LONG=LONG, AT_ONCE=splits_at_once,
        MERGED=triton.next_power_of_2(queries), LOOP=workers < splits, SPARSE=sparse,
        TRANSFORM=transform is not None, **pairing,
        num_warps=warps, num_stages=2, enable_fp_fusion=False, **LAUNCH,
    )  # fmt: skip
    if sparse:
        set_shared_memory_carveout(kernel, _CARVEOUT)
