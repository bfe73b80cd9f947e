"""Attention of towers: queries, keys and values are rows of the batch, each sequence whole, and no cache is
written. Flash attention; a program has up to ROWS rows of one sequence and one head.

Keys and values come by tensor descriptors (TMA on Hopper), which take the rows and columns from the products'
result as it is. A tile may reach into the next sequence, whose keys have no weight, and into the columns of
the next head, which are multiplied by zero or not stored; beyond the last row it has zeros.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from olivine.backends.cuda.kernels.activations import limited
from olivine.backends.cuda.kernels.dot import dot
from olivine.backends.cuda.kernels.pdl import LAUNCH, begin

TILE = 128  # rows of a tile in `tiles`
LARGE: tl.constexpr = tl.constexpr(2.0**64)  # a sum of exponentials that may soon overflow


@triton.jit
def _scores(queries, cache, row, column, BLOCK_D: tl.constexpr, REST: tl.constexpr, KEYS: tl.constexpr):
    query, rest_query = queries
    keys, _, rest_keys, _ = cache
    k = keys.load([row, column])
    scores = dot(query, tl.trans(k), tl.zeros((query.shape[0], KEYS), tl.float32))
    if REST > 0:
        rest_k = rest_keys.load([row, column + BLOCK_D])
        scores = dot(rest_query, tl.trans(rest_k), scores)
    return scores


@triton.jit
def _attend(
    sums, queries, begin, end, cache, row, column, until, scale,
    BLOCK_D: tl.constexpr, REST: tl.constexpr, KEYS: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """The sums after the keys from `begin` to before `end`. Unless MASKED, every row sees all of them."""
    peak, total, y, rest_y = sums
    _, values, _, rest_values = cache
    for at in range(begin, end, KEYS):
        scores = _scores(queries, cache, row + at, column, BLOCK_D, REST, KEYS)
        if MASKED:
            visible = (at + tl.arange(0, KEYS))[None, :] <= until[:, None]
            scores = tl.where(visible, scores, float("-inf"))
        new = tl.maximum(peak, tl.max(scores, 1) * scale)
        safe = tl.where(new == float("-inf"), 0.0, new) if MASKED else new
        p = tl.exp2(scores * scale - safe[:, None])
        old = tl.exp2(peak - safe)
        total = total * old + tl.sum(p, 1)
        v = values.load([row + at, column])
        if MASKED:  # what is not there may be infinite in another sequence
            there = (at + tl.arange(0, KEYS) < end)[:, None]
            v = tl.where(there, v, 0.0)
        y = dot(p, v, y * old[:, None])
        if REST > 0:
            rest_v = rest_values.load([row + at, column + BLOCK_D])
            if MASKED:
                rest_v = tl.where(there, rest_v, 0.0)
            rest_y = dot(p, rest_v, rest_y * old[:, None])
        peak = new
    return peak, total, y, rest_y


@triton.jit
def _attend_from_first(
    sums, queries, end, cache, row, column, scale,
    BLOCK_D: tl.constexpr, REST: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """As `_attend` over all keys before `end`, but from a row's scores their maximum among the first block is
    subtracted: no block waits for a maximum, and nothing is rescaled."""
    _, total, y, rest_y = sums
    _, values, _, rest_values = cache
    peak = tl.max(_scores(queries, cache, row, column, BLOCK_D, REST, KEYS), 1) * scale
    for at in range(0, end, KEYS):
        scores = _scores(queries, cache, row + at, column, BLOCK_D, REST, KEYS)
        p = tl.exp2(scores * scale - peak[:, None])
        total += tl.sum(p, 1)
        y = dot(p, values.load([row + at, column]), y)
        if REST > 0:
            rest_y = dot(p, rest_values.load([row + at, column + BLOCK_D]), rest_y)
    return peak, total, y, rest_y


@triton.jit
def _whole_attention(
    q, keys, values, rest_keys, rest_values, out, limits, tiles, positions, last, q_stride, scale,
    D: tl.constexpr, BLOCK_D: tl.constexpr, REST: tl.constexpr, Q_PER_KV: tl.constexpr,
    PER_TILE: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """A head is BLOCK_D columns and, if REST is not 0, the REST after them: 72 columns are 64 and 16. limits
    may be None."""
    part = tl.program_id(0)
    head = tl.program_id(1)
    begin()
    start = tl.load(tiles + part // PER_TILE * 2) + part % PER_TILE * ROWS
    size = tl.load(tiles + part // PER_TILE * 2 + 1) - part % PER_TILE * ROWS
    i = tl.arange(0, ROWS)
    d = tl.arange(0, BLOCK_D)
    row = (start + i).to(tl.int64)
    first = start - tl.load(positions + start, mask=size > 0, other=0)  # of the sequence
    until = tl.load(last + row, mask=i < size, other=-1)
    end = tl.max(until, 0) + 1
    all_see = tl.min(tl.where(i < size, until, 1 << 30), 0)  # the last key that every row sees
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
    cut = tl.minimum(all_see + 1, end) // KEYS * KEYS
    queries = (query, rest_query)
    cache = (keys, values, rest_keys, rest_values)
    column = head // Q_PER_KV * D
    begun = sums
    if cut > 0:
        sums = _attend_from_first(sums, queries, cut, cache, first, column, scale, BLOCK_D, REST, KEYS)
        # Where a score is far above those of the first block, exponentials overflow: once more, with maxima.
        if tl.max(tl.where(sums[1] < LARGE, 0, 1), 0) > 0:
            sums = _attend(
                begun, queries, 0, cut, cache, first, column, until, scale, BLOCK_D, REST, KEYS, False
            )
    sums = _attend(sums, queries, cut, end, cache, first, column, until, scale, BLOCK_D, REST, KEYS, True)
    _, total, y, rest_y = sums
    total = tl.where(total == 0, 1.0, total)[:, None]
    at_out = out + row[:, None] * (tl.num_programs(1) * D) + head * D
    tl.store(at_out + d[None, :], limited(y / total, limits).to(out.dtype.element_ty), mask=fine)
    if REST > 0:
        tl.store(
            at_out + rest[None, :], limited(rest_y / total, limits).to(out.dtype.element_ty), mask=rest_fine
        )


def _parts(head_dim: int) -> tuple[int, int]:
    """The columns of a head as powers of two: one that holds them all, or two that are less together."""
    whole = max(16, triton.next_power_of_2(head_dim))
    rest = max(16, triton.next_power_of_2(head_dim - whole // 2))
    return (whole, 0) if whole == 16 or rest >= whole // 2 else (whole // 2, rest)


def takes(k: torch.Tensor, v: torch.Tensor, head_dim: int) -> bool:
    """Whether descriptors can have these keys and values: in BF16, and with rows at multiples of 16 bytes."""
    aligned = all(x.stride(1) == 1 and x.stride(0) % 8 == 0 and x.data_ptr() % 16 == 0 for x in (k, v))
    return aligned and k.dtype == v.dtype == torch.bfloat16 and head_dim <= 256


def whole_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    tiles: torch.Tensor,
    positions: torch.Tensor,
    last: torch.Tensor,
    *,
    head_dim: int,
    scale: float,
    limits: torch.Tensor | None = None,
) -> None:
    """q, out [T, H · d], k and v [T, G · d] in BF16, for the rows that `tiles` lists. Row t sees the keys of
    its sequence up to position last[t]. `limits` are those of out."""
    if tiles.shape[0] == 0:
        return
    heads, kv_heads = q.shape[1] // head_dim, k.shape[1] // head_dim
    block, rest = _parts(head_dim)
    # The fastest on an H200.
    rows, keys, warps, stages = {64: (128, 64, 4, 3) if rest else (64, 128, 4, 3), 128: (128, 64, 8, 3)}.get(
        block, (64, 64, 4, 2)
    )
    wide = [TensorDescriptor.from_tensor(x, [keys, block]) for x in (k, v)]
    narrow = [TensorDescriptor.from_tensor(x, [keys, max(16, rest)]) for x in (k, v)]
    _whole_attention[(tiles.shape[0] * (TILE // rows), heads)](
        q, *wide, *narrow, out, limits, tiles, positions, last, q.stride(0), scale * math.log2(math.e),
        D=head_dim, BLOCK_D=block, REST=rest, Q_PER_KV=heads // kv_heads,
        PER_TILE=TILE // rows, ROWS=rows, KEYS=keys, num_warps=warps, num_stages=stages, **LAUNCH,
    )  # fmt: skip
