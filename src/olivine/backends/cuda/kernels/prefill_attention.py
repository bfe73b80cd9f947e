"""Attention of prefill rows: flash attention over pages. A program has up to 128 rows of one sequence and one
head, and goes through all their keys.

Blocks of keys begin at multiples of KEYS of the sequence. A block of which a row sees nothing leaves that
row's sums as they are, to the bit; so it does not matter which rows share a program. Rows that see beyond
their own position (`last`: soft tokens of an image) take the same sums over more keys.
"""

from __future__ import annotations

import math

import numpy as np
import torch
import triton
import triton.language as tl

from olivine.backends.cuda.kernels.dot import dot
from olivine.backends.cuda.kernels.paged import PagedCache, RowPlaces, load_cached
from olivine.backends.cuda.kernels.pdl import LAUNCH, begin
from olivine.backends.cuda.tiles import shared_memory

ROWS = 128  # of a tile


def prefill_tiles(sequences: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """[tiles, 2]: first row and number of rows of each tile: one sequence, consecutive positions."""
    if len(sequences) == 0:
        return np.zeros((0, 2), np.int32)
    breaks = np.flatnonzero((np.diff(sequences) != 0) | (np.diff(positions) != 1)) + 1
    found: list[tuple[int, int]] = []
    for start, stop in zip([0, *breaks.tolist()], [*breaks.tolist(), len(sequences)], strict=True):
        found += [(at, min(ROWS, stop - at)) for at in range(start, stop, ROWS)]
    return np.array(found, np.int32)


@triton.jit
def _attend(
    sums, queries, begin, end, cache, sequence, group, rows_at, scale, window,
    D: tl.constexpr, BLOCK_D: tl.constexpr, REST: tl.constexpr, KV_HEADS: tl.constexpr, PAGE: tl.constexpr,
    KEYS: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """The sums after the keys from `begin` to before `end`. Unless MASKED, every row sees all of them."""
    peak, total, y, rest_y = sums
    query, rest_query = queries
    first, last_key, position, until = rows_at
    d = tl.arange(0, BLOCK_D)
    for at in range(begin, end, KEYS):
        key = at + tl.arange(0, KEYS)
        page_at = cache.table + sequence * cache.table_stride + key // PAGE
        if MASKED:
            seen = (key <= last_key) & (key > first - window)
            page = tl.load(page_at, mask=seen, other=0).to(tl.int64)
            there = seen[:, None] & (d < D)[None, :]
        else:
            page = tl.load(page_at).to(tl.int64)
            there = (d < D)[None, :]
        head = (page * PAGE + key % PAGE) * KV_HEADS + group
        k = load_cached(cache.k, cache.k_scales, head, there, D, 0, BLOCK_D)
        v = load_cached(cache.v, cache.v_scales, head, there, D, 0, BLOCK_D)
        scores = dot(query, tl.trans(k), tl.zeros((query.shape[0], KEYS), tl.float32))
        if REST > 0:
            rest = BLOCK_D + tl.arange(0, REST)
            rest_there = (rest < D)[None, :]
            if MASKED:
                rest_there = seen[:, None] & rest_there
            rest_k = load_cached(cache.k, cache.k_scales, head, rest_there, D, BLOCK_D, REST)
            rest_v = load_cached(cache.v, cache.v_scales, head, rest_there, D, BLOCK_D, REST)
            scores = dot(rest_query, tl.trans(rest_k), scores)
        if MASKED:
            behind = position[:, None] - key[None, :]
            visible = (key[None, :] <= until[:, None]) & (behind < window)
            scores = tl.where(visible, scores, float("-inf"))
        scores *= scale  # last, so that the compiler contracts it alike with a mask and without
        new = tl.maximum(peak, tl.max(scores, 1))
        safe = tl.where(new == float("-inf"), 0.0, new)
        p = tl.exp2(scores - safe[:, None])
        old = tl.exp2(peak - safe)
        total = total * old + tl.sum(p, 1)
        y = dot(p, v, y * old[:, None])
        if REST > 0:
            rest_y = dot(p, rest_v, rest_y * old[:, None])
        peak = new
    return peak, total, y, rest_y


@triton.jit
def _prefill_attention(
    q, cache, out, tiles, places, last, q_stride, scale, window,
    D: tl.constexpr, BLOCK_D: tl.constexpr, REST: tl.constexpr, Q_PER_KV: tl.constexpr,
    KV_HEADS: tl.constexpr, PAGE: tl.constexpr, PER_TILE: tl.constexpr, ROWS: tl.constexpr,
    KEYS: tl.constexpr, BIDIRECTIONAL: tl.constexpr,
):  # fmt: skip
    """cache is `CachePointers`, places `RowPlaces`; `last` is read if BIDIRECTIONAL.

    A head is BLOCK_D columns and, if REST is not 0, the REST after them: 72 columns are 64 and 16, not 128.
    """
    head = tl.program_id(0)
    part = tl.num_programs(1) - 1 - tl.program_id(1)  # the last rows see most keys, so they start first
    group = head // Q_PER_KV
    begin()
    start = tl.load(tiles + part // PER_TILE * 2) + part % PER_TILE * ROWS
    size = tl.load(tiles + part // PER_TILE * 2 + 1) - part % PER_TILE * ROWS
    i = tl.arange(0, ROWS)
    d = tl.arange(0, BLOCK_D)
    row = (start + i).to(tl.int64)
    first = tl.load(places.positions + start, mask=size > 0, other=0)
    end = tl.minimum(first + size, first + ROWS)
    position = first + i
    until = position
    all_see = first  # the last key that every row sees
    final = end - 1  # the last position of a row
    if BIDIRECTIONAL:
        until = tl.load(last + row, mask=i < size, other=-1)
        end = tl.max(until, 0) + 1
        all_see = tl.min(tl.where(i < size, until, 1 << 30), 0)
    sequence = tl.load(places.sequences + start, mask=size > 0, other=0).to(tl.int64)
    fine = (i < size)[:, None] & (d < D)[None, :]
    q_at = q + row[:, None] * q_stride + head * D
    query = tl.load(q_at + d[None, :], mask=fine, other=0.0).to(tl.bfloat16)
    rest_query = query
    rest_y = tl.zeros((ROWS, 1), tl.float32)
    if REST > 0:
        rest = BLOCK_D + tl.arange(0, REST)
        rest_fine = (i < size)[:, None] & (rest < D)[None, :]
        rest_query = tl.load(q_at + rest[None, :], mask=rest_fine, other=0.0).to(tl.bfloat16)
        rest_y = tl.zeros((ROWS, REST), tl.float32)
    sums = (
        tl.full((ROWS,), float("-inf"), tl.float32), tl.zeros((ROWS,), tl.float32),
        tl.zeros((ROWS, BLOCK_D), tl.float32), rest_y,
    )  # fmt: skip
    # Blocks that the window cuts, blocks that all rows see whole, and the rest.
    low = tl.maximum(first - window + 1, 0) // KEYS * KEYS
    whole = tl.maximum(tl.minimum(tl.cdiv(tl.maximum(final - window + 1, 0), KEYS) * KEYS, end), low)
    cut = tl.maximum((tl.minimum(all_see, end - 1) + 1) // KEYS * KEYS, whole)
    queries = (query, rest_query)
    rows_at = (first, end - 1, position, until)
    sums = _attend(
        sums, queries, low, whole, cache, sequence, group, rows_at, scale, window,
        D, BLOCK_D, REST, KV_HEADS, PAGE, KEYS, True,
    )  # fmt: skip
    sums = _attend(
        sums, queries, whole, cut, cache, sequence, group, rows_at, scale, window,
        D, BLOCK_D, REST, KV_HEADS, PAGE, KEYS, False,
    )  # fmt: skip
    sums = _attend(
        sums, queries, cut, end, cache, sequence, group, rows_at, scale, window,
        D, BLOCK_D, REST, KV_HEADS, PAGE, KEYS, True,
    )  # fmt: skip
    _, total, y, rest_y = sums
    total = tl.where(total == 0, 1.0, total)[:, None]
    at_out = out + row[:, None] * (tl.num_programs(0) * D) + head * D
    tl.store(at_out + d[None, :], (y / total).to(out.dtype.element_ty), mask=fine)
    if REST > 0:
        tl.store(at_out + rest[None, :], (rest_y / total).to(out.dtype.element_ty), mask=rest_fine)


def _parts(head_dim: int) -> tuple[int, int]:
    """The columns of a head as powers of two: one that holds them all, or two that are less together."""
    whole = max(16, triton.next_power_of_2(head_dim))
    rest = max(16, triton.next_power_of_2(head_dim - whole // 2))
    return (whole, 0) if not 16 < whole <= 256 or rest >= whole // 2 else (whole // 2, rest)


def prefill_attention(
    q: torch.Tensor,
    out: torch.Tensor,
    cache: PagedCache,
    places: RowPlaces,
    tiles: torch.Tensor,
    *,
    scale: float,
    window: int | None,
    last: torch.Tensor | None = None,
) -> None:
    """q, out [T, H · d], for the rows that `tiles` lists; their keys and values are in the cache. `last` [T]:
    the last position that each row sees, where that is not its own."""
    if tiles.shape[0] == 0:
        return
    _, page, kv_heads, head_dim = cache.k.shape
    heads = q.shape[1] // head_dim
    block, rest = _parts(head_dim)
    wide = block + rest
    # Rows and keys of a program's tile, the fastest on an H200: as many as shared memory holds.
    rows, at_once = {256: (128, 64), 512: (64, 32)}.get(block, (128, 64 if rest else 128))
    warps, stages = (4 if block <= 64 else 8), (3 if block == 128 or rest else 2)
    while at_once > 16 and 2 * wide * (rows + 4 * at_once) > shared_memory(q.device):
        at_once //= 2
    if 2 * wide * (rows + 4 * at_once) > shared_memory(q.device):
        rows //= 2
    _prefill_attention[(heads, tiles.shape[0] * (ROWS // rows))](
        q, cache.pointers(), out, tiles, places, places.positions if last is None else last, q.stride(0),
        scale * math.log2(math.e), (1 << 30) if window is None else window,
        D=head_dim, BLOCK_D=block, REST=rest, Q_PER_KV=heads // kv_heads, KV_HEADS=kv_heads, PAGE=page,
        PER_TILE=ROWS // rows, ROWS=rows, KEYS=at_once, BIDIRECTIONAL=last is not None,
        num_warps=warps, num_stages=stages, **LAUNCH,
    )  # fmt: skip
