"""Launchers of what happens to heads: norms, rotary embeddings, the KV cache and attention."""

from __future__ import annotations

import torch

from olivine.backends.cuda import launch_towers
from olivine.backends.cuda.kernels import heads as kernels
from olivine.backends.cuda.kernels import whole_attention as whole
from olivine.backends.cuda.kernels.decode_attention import can_transform, decode_attention
from olivine.backends.cuda.kernels.heads import HeadTransform, QkvTransform, transform_heads
from olivine.backends.cuda.kernels.paged import RowPlaces
from olivine.backends.cuda.kernels.prefill_attention import prefill_attention
from olivine.backends.cuda.lowering import Launch, Lowering
from olivine.backends.cuda.rows import Rows
from olivine.plan import Value, ops
from olivine.plan.fused_ops import HeadNormRotate, QueryAttention, StoreAttention, WholeAttention
from olivine.plan.tower_ops import Clamp

# Generated rows, up to which attention itself normalizes and rotates heads, and stores new keys and values.
MOST_TRANSFORMED = 16
MOST_TOGETHER = 1024  # columns that a program of the heads kernel has of each of its eight rows


def heads_of(
    c: Lowering,
    x: Value,
    out: Value,
    size: int,
    norm: ops.RmsNorm | None,
    rope: ops.Rope | None,
    limit: Clamp | None = None,
) -> Launch:
    """Limits, norm and rotary embedding of each head."""
    transform, limits = c.transform(norm, rope), c.limits(limit)

    def run(rows: Rows) -> None:
        result = c.empty(rows, out)
        transform_heads(rows.values[x.id], result, size, transform, rows.angles_of(transform.rotary), limits)
        rows.values[out.id] = result

    return run


def rope(c: Lowering, op: ops.Rope) -> Launch:
    return heads_of(c, op.x, op.out, op.rotation.head_dim, None, op)


def position_scale(c: Lowering, op: ops.PositionScale) -> Launch:
    def run(rows: Rows) -> None:
        factors = rows.position_factors(op.beta, op.length)
        rows.values[op.out.id] = rows.values[op.x.id] * factors

    return run


def head_norm_rotate(c: Lowering, op: HeadNormRotate) -> Launch:
    return heads_of(c, op.norm.x, op.rope.out, op.norm.size, op.norm, op.rope)


def store_kv(c: Lowering, op: ops.StoreKV) -> Launch:
    """The kernel that stores keys and values together with queries, without queries."""
    nothing = HeadTransform(None, None)
    transform = QkvTransform(nothing, nothing, None, None)

    def run(rows: Rows) -> None:
        k, v = rows.values[op.k.id], rows.values[op.v.id]
        none = k[:, :0]
        kernels.store_kv(none, k, v, none, c.cache(rows, op.cache), _places(rows), transform)

    return run


def attention(c: Lowering, op: ops.Attention) -> Launch:
    def run(rows: Rows) -> None:
        _attend(c, op, rows, rows.values[op.q.id])

    return run


def query_attention(c: Lowering, op: QueryAttention) -> Launch:
    """Only the queries are new: an earlier layer has written the cache in this step."""
    transform, q, cache = c.transform(op.norm, op.rope), op.q, op.attention.cache
    early = c.is_written_before(cache, op) and can_transform(transform, cache.head_dim)

    def run(rows: Rows) -> None:
        raw, angles = rows.values[q.id], rows.angles_of(transform.rotary)
        if not rows.prefill and early and len(raw) <= MOST_TRANSFORMED:
            _attend(
                c, op.attention, rows, raw, QkvTransform(transform, HeadTransform(None, None), None, angles)
            )
            return
        queries = torch.empty((len(raw), q.width), dtype=torch.bfloat16, device=c.device)
        transform_heads(raw, queries, cache.head_dim, transform, angles)
        _attend(c, op.attention, rows, queries)

    return run


def store_attention(c: Lowering, op: StoreAttention) -> Launch:
    q, k, v = op.q, op.k, op.v
    rotary = c.rotary(op.k_rope)
    q_transform = HeadTransform(c.norm(op.q_norm), rotary)
    k_transform = HeadTransform(c.norm(op.k_norm), rotary)
    v_norm = c.norm(op.v_norm)
    by_attention = can_transform(q_transform, op.attention.cache.head_dim)

    def run(rows: Rows) -> None:
        raw_q, raw_k, raw_v = rows.values[q.id], rows.values[k.id], rows.values[v.id]
        transform = QkvTransform(q_transform, k_transform, v_norm, rows.angles_of(rotary))
        # Rows that others of the batch attend to are stored before any attends; and so are many rows, of
        # which each program of the attention would otherwise rotate the same ones again.
        cache = c.cache(rows, op.attention.cache)
        exact = cache.k_scales is None  # else it would have to attend to the key as it is stored
        few = not rows.prefill and len(raw_q) <= MOST_TRANSFORMED
        if few and rows.alone and exact and by_attention:
            _attend(c, op.attention, rows, raw_q, transform, (raw_k, raw_v))
            return
        queries = torch.empty((len(raw_q), q.width), dtype=torch.bfloat16, device=c.device)
        kernels.store_kv(raw_q, raw_k, raw_v, queries, cache, _places(rows), transform)
        _attend(c, op.attention, rows, queries)

    return run


def whole_attention(c: Lowering, op: WholeAttention) -> Launch:
    """Through the cache, where the rows of keys and values are not aligned."""
    store, attend = store_kv(c, op.store), attention(c, op.attention)
    limits, clamp = c.limits(op.limit), None if op.limit is None else launch_towers.clamp(c, op.limit)
    head_dim, scale = op.attention.cache.head_dim, op.attention.scale

    def run(rows: Rows) -> None:
        q, k, v = (rows.values[value.id] for value in (op.attention.q, op.store.k, op.store.v))
        assert rows.tiles is not None and rows.last is not None
        if not whole.takes(k, v, head_dim):
            store(rows)
            attend(rows)
            if clamp is not None:
                clamp(rows)
                del rows.values[op.attention.out.id]
            return
        out = c.empty(rows, op.out)
        places = rows.tiles, rows.positions, rows.last
        whole.whole_attention(q, k, v, out, *places, head_dim=head_dim, scale=scale, limits=limits)
        rows.values[op.out.id] = out

    return run


def _attend(
    c: Lowering,
    op: ops.Attention,
    rows: Rows,
    queries: torch.Tensor,
    transform: QkvTransform | None = None,
    new_kv: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> None:
    cache, places, out = c.cache(rows, op.cache), _places(rows), c.empty(rows, op.out)
    if rows.tiles is not None:
        last = rows.last if op.bidirectional else None
        prefill_attention(
            queries, out, cache, places, rows.tiles, scale=op.scale, window=op.window, last=last
        )
    else:
        decode_attention(
            queries, out, cache, places, scale=op.scale, window=op.window, max_position=rows.max_position,
            scratch=rows.scratch, transform=transform, new_kv=new_kv,
        )  # fmt: skip
    rows.values[op.out.id] = out


def _places(rows: Rows) -> RowPlaces:
    return RowPlaces(rows.positions, rows.sequences)
