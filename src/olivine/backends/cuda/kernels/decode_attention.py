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

from olivine.backends.cuda.kernels.dot import INTERPRETED, dot
from olivine.backends.cuda.kernels.heads import HeadTransform, QkvTransform, norm_rotate_pairs
from olivine.backends.cuda.kernels.norm import exact_inv_rms, exact_sum, norm_weight
from olivine.backends.cuda.kernels.paged import PagedCache, RowPlaces, load_cached
from olivine.backends.cuda.kernels.pdl import LAUNCH, begin, keep_loads_early, set_shared_memory_carveout
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
    total = total * old + _sum_of_weights(p)
    y = y * old[None, :]
    if MANY:
        return new, total, tl.trans(dot(tl.trans(p), v, tl.trans(y)))
    return new, total, dot(tl.trans(v), p, y)


@triton.jit
def _sum_of_weights(p):
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
def _load_own(codes, scales, head, at, there, D: tl.constexpr):
    """Columns of the row's own key or value, from its place in the cache."""
    y = tl.load(codes + head * D + at, mask=there, other=0)
    if scales is not None:
        own_scale = tl.load(scales + head * (D // 32) + at // 32, mask=there, other=0.0)
        y = (y.to(tl.float32) * own_scale).to(tl.bfloat16)
    return y


@triton.jit
def _transformed(
    q, new_kv, norms, angles, row, kv_head, cache, head, is_last, splits,
    HEADS: tl.constexpr, D: tl.constexpr, QUERIES: tl.constexpr, TRANSFORMED: tl.constexpr,
    INTERLEAVED: tl.constexpr,
):  # fmt: skip
    """Transformed queries [HEADS, D], their products with the row's key, and its value.

    Key and value are the new ones, which the last program stores, or else as the cache has them.

    A step waits for all of this, on few multiprocessors. So weights and angles are loaded before the wait,
    all that comes from the projection right after it, and warps do not wait for each other: a warp has a
    query or two, and the key too. Columns are in two tiles, for the first and the second of each pair that is
    rotated.
    """
    h = tl.arange(0, TRANSFORMED)[:, None]
    pair = tl.arange(0, D // 2)[None, :] + h * 0
    d = tl.arange(0, D)
    first = pair * 2 if INTERLEAVED else pair
    second = first + (1 if INTERLEAVED else D // 2)
    q_w = _load_pairs(norms[0], first, second)
    k_w = None
    v_w = None
    if new_kv is not None:
        k_w = _load_pairs(norms[1], first, second)
        if norms[2] is not None:
            v_w = norm_weight(norms[2], d, d < D)
    rotation = None
    if angles is not None:
        at = angles + row.to(tl.int64) * D + pair
        rotation = (tl.load(at), tl.load(at + D // 2))
    begin()
    q_there = (h < QUERIES) & (pair >= 0)
    query = (
        tl.load(q + h * D + first, mask=q_there, other=0.0),
        tl.load(q + h * D + second, mask=q_there, other=0.0),
    )
    if new_kv is None:
        key = (
            _load_own(cache.k, cache.k_scales, head, first, pair >= 0, D).to(tl.float32),
            _load_own(cache.k, cache.k_scales, head, second, pair >= 0, D).to(tl.float32),
        )
        value = _load_own(cache.v, cache.v_scales, head, d, d < D, D)
    else:
        new_k, new_v, k_stride, v_stride = new_kv
        new_k += row.to(tl.int64) * k_stride + kv_head * D
        key = (tl.load(new_k + first), tl.load(new_k + second))
        value = tl.load(new_v + row.to(tl.int64) * v_stride + kv_head * D + d)
    keep_loads_early(splits)
    if new_kv is not None:
        key = norm_rotate_pairs(key, norms[1], k_w, rotation, D)
        if norms[2] is not None:
            value = value * exact_inv_rms(value, None, D, norms[2].eps) * v_w
        value = value.to(tl.bfloat16)
        # Without a branch, which would keep the compiler from computing the queries at the same time.
        k_at = cache.k + head * D
        stored = h < tl.where(is_last, 1, 0)
        tl.store(k_at + first, key[0].to(tl.bfloat16), mask=stored)
        tl.store(k_at + second, key[1].to(tl.bfloat16), mask=stored)
        tl.store(cache.v + head * D + d, value, mask=d < tl.where(is_last, D, 0))
    query = norm_rotate_pairs(query, norms[0], q_w, rotation, D)
    own = exact_sum(_rounded(query[0]) * _rounded(key[0]), _rounded(query[1]) * _rounded(key[1]))
    both = tl.join(query[0].to(tl.bfloat16), query[1].to(tl.bfloat16))
    if not INTERLEAVED:
        both = tl.permute(both, (0, 2, 1))
    if not INTERPRETED:
        # Nothing, but the compiler does not look behind it. It would see that two tiles were joined, and then
        # take other columns for an instruction of the tensor cores than for queries from memory, which would
        # change the order of sums.
        both = tl.inline_asm_elementwise(
            "mov.b32 $0, $1;", "=r,r", [both], tl.bfloat16, is_pure=False, pack=2
        )
    # What fills up the heads of a product is never read.
    MORE: tl.constexpr = HEADS // TRANSFORMED
    both = tl.broadcast_to(tl.reshape(both, (1, TRANSFORMED, D)), (MORE, TRANSFORMED, D))
    own = tl.broadcast_to(tl.reshape(own, (1, TRANSFORMED)), (MORE, TRANSFORMED))
    return tl.reshape(both, (HEADS, D)), tl.reshape(own, (HEADS,)), value


@triton.jit
def _load_pairs(norm, first, second):
    """The weights of a norm, for both columns of each pair."""
    found = None
    if norm is not None:
        found = (norm_weight(norm, first, first >= 0), norm_weight(norm, second, first >= 0))
    return found


@triton.jit
def _rounded(y):
    return y.to(tl.bfloat16).to(tl.float32)


@triton.jit(do_not_specialize=["splits"])  # or it is compiled again while a conversation grows
def _decode_attention(
    rows, new_kv, norms, angles, cache, scratch, places, scale, window, splits,
    D: tl.constexpr, BLOCK_D: tl.constexpr, QUERIES: tl.constexpr, HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr, PARTS: tl.constexpr, PAGE: tl.constexpr, KEYS: tl.constexpr, STAGES: tl.constexpr,
    LONG: tl.constexpr, AT_ONCE: tl.constexpr, MERGED: tl.constexpr, LOOP: tl.constexpr,
    SPARSE: tl.constexpr, TRANSFORMED: tl.constexpr, INTERLEAVED: tl.constexpr,
):  # fmt: skip
    """rows are q, its stride and out; new_kv are k and v with their strides, or None. If TRANSFORMED is not
    0, q and these are as the projection gave them, and are normalized and rotated here, in a tile of so many
    queries: norms are those of q, k and v (`NormWeight` or None), angles may be None. cache is
    `CachePointers`, scratch `SplitPointers`, places `RowPlaces`. A KV head has PARTS of QUERIES each."""
    q, q_stride, out = rows
    row = tl.program_id(0)
    part = tl.program_id(1)
    kv_head = part // PARTS
    which = tl.program_id(2)
    if not TRANSFORMED:
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
        if TRANSFORMED:
            query, own, new_v = _transformed(
                q_row + part * (QUERIES * D), new_kv, norms, angles, row, kv_head, cache, head,
                (which == programs - 1) & (part % PARTS == 0), splits,
                HEADS, D, QUERIES, TRANSFORMED, INTERLEAVED,
            )  # fmt: skip
        else:
            fine = (h < QUERIES)[:, None] & (d < D)[None, :]
            query = tl.load(q_row + (part * QUERIES + h)[:, None] * D + d[None, :], mask=fine, other=0.0)
            new_k = _load_own(cache.k, cache.k_scales, head, d, d < D, D)
            new_v = _load_own(cache.v, cache.v_scales, head, d, d < D, D)
            own = exact_sum(query.to(tl.float32) * new_k.to(tl.float32)[None, :], None)
            own = tl.reshape(own, (HEADS,))
        # The row's own key is scored by itself, so that the others can be loaded before it exists.
        query = tl.trans(query)
        own = own * scale
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
    elif TRANSFORMED:
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


def can_transform(transform: HeadTransform, head_dim: int) -> bool:
    """Whether attention can normalize and rotate heads by itself: whole ones, of 16 columns, 32, 64 and so
    on. Others are transformed by a launch before it."""
    rotary = transform.rotary
    is_whole = rotary is None or 2 * len(rotary.frequencies) == head_dim
    return is_whole and head_dim == max(16, triton.next_power_of_2(head_dim))


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

    With a transform, which `can_transform` must allow, q is what the projection gave; and so are the new keys
    and values of the rows, which are transformed and stored. Without new ones the cache has those of the rows
    already, and what it has of other rows must be there when the kernel starts: it is loaded before the wait.
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
    norms, angles, interleaved, transformed = (None, None, None), None, False, 0
    if transform is not None:
        assert can_transform(transform.q, head_dim)
        transformed = max(4, triton.next_power_of_2(queries))
        norms, angles = transform.norms, transform.angles
        interleaved = transform.q.rotary is not None and transform.q.rotary.interleaved
    # Eight queries are multiplied as more are, as rows: as eight columns they were not tried on a GPU.
    heads = max(8, triton.next_power_of_2(queries + 1))
    kernel = _decode_attention[(rows, parts, workers)](
        (q, q.stride(0), out), None if new_kv is None else (*new_kv, *(each.stride(0) for each in new_kv)),
        norms, angles, cache.pointers(), pointers, places,
        scale, (1 << 30) if window is None else window, splits,
        D=head_dim, BLOCK_D=block, QUERIES=queries, HEADS=heads,
        KV_HEADS=kv_heads, PARTS=parts_each, PAGE=page, KEYS=keys_at_once,
        STAGES=1 if max_position < LONG else 2, LONG=LONG, AT_ONCE=splits_at_once,
        MERGED=triton.next_power_of_2(queries), LOOP=workers < splits, SPARSE=sparse,
        TRANSFORMED=transformed, INTERLEAVED=interleaved,
        num_warps=warps, num_stages=2, enable_fp_fusion=False, **LAUNCH,
    )  # fmt: skip
    if sparse:
        set_shared_memory_carveout(kernel, _CARVEOUT)
