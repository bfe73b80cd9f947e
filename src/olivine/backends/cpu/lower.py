"""Lowers a plan to the native library's table of ops.

Ops are grouped: linear ops with the same input (q, k and v; gate and up), with the limits and the gated
activation of their results; and consecutive ops on single rows, with the attention after them. One parallel
loop runs a group, or two, so a step has few of them. Buffers are reassigned for that order.
"""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from olivine.backends.base import Weights
from olivine.backends.cpu import native
from olivine.errors import ModelError
from olivine.plan import Op, Plan, Rotation, Value, Weight, ops, rank_ops, tower_ops
from olivine.plan.buffers import Buffers, assign_buffers
from olivine.plan.clamps import limits_of, share_clamps
from olivine.tensor import Tensor

# In the order of the library's `olv_kind`.
KINDS: tuple[type[ops.Op], ...] = (
    ops.Embed,
    ops.RmsNorm,
    ops.Linear,
    ops.Rope,
    ops.StoreKV,
    ops.Attention,
    ops.Gate,
    ops.Add,
    ops.MoE,
    ops.TakeOutputs,
    ops.Softcap,
    ops.Scale,
    ops.Columns,
    ops.PositionScale,
    rank_ops.AllReduce,
    rank_ops.AllGather,
    rank_ops.Send,
    rank_ops.Receive,
    ops.LayerNorm,
    ops.Activate,
    tower_ops.Input,
    tower_ops.Clamp,
    tower_ops.Standardize,
    tower_ops.PositionEmbed,
    tower_ops.GridRope,
    tower_ops.Pool,
    tower_ops.Conv,
    tower_ops.DepthwiseConv,
    tower_ops.RelativeAttention,
)

# Ops whose rows depend on the same rows of their inputs alone.
ROW_OPS = (ops.RmsNorm, ops.Rope, ops.Add, ops.Scale, ops.PositionScale)
# Those that are grouped in towers only: attention of decoders splits its group by head.
TOWER_ROW_OPS = (
    *ROW_OPS, ops.Gate, ops.Columns, ops.LayerNorm, ops.Activate,
    tower_ops.Clamp, tower_ops.Standardize, tower_ops.PositionEmbed, tower_ops.GridRope,
)  # fmt: skip

RANK_OPS = (rank_ops.AllReduce, rank_ops.AllGather, rank_ops.Send, rank_ops.Receive)


@dataclass
class Lowered:
    """The native table, and the Python objects whose memory it points into."""

    ops: list[native.Op] = field(default_factory=list)
    weights: list[native.Weight] = field(default_factory=list)
    tables: list[np.ndarray[Any, np.dtype[np.float32]]] = field(default_factory=list)
    magnitudes: list[float] = field(default_factory=list)
    axes: list[int] = field(default_factory=list)  # of the tables: the coordinate, or -1 for the position
    buffers: Buffers | None = None
    meetings: dict[int, Op] = field(default_factory=dict)  # where ranks meet, by the number of the op
    keep: list[object] = field(default_factory=list)


def refuse_unsupported(plan: Plan, alone: bool = True) -> None:
    """Raises where the kernels cannot run a plan; `alone`: without other ranks."""
    for op in plan.ops:
        if alone and type(op) in RANK_OPS:
            raise ModelError(f"{plan.name} is a part of a plan, and there are no other ranks")
        if type(op) not in KINDS:
            raise ModelError(f"the CPU backend has no {op.kind}; use device='reference'")
        activation = getattr(op, "activation", None)
        if activation is not None and activation not in native.ACTIVATIONS:
            raise ModelError(f"the CPU backend has no {op.kind} with {activation}; use device='reference'")


def group_linears(plan_ops: Sequence[ops.Op]) -> list[list[ops.Op]]:
    """Linear ops with the same input in one group, at the first one's place; every other op alone."""
    groups: list[list[ops.Op]] = []
    readers: dict[int, list[ops.Op]] = {}
    for op in plan_ops:
        if isinstance(op, ops.Linear):
            if op.x.id in readers:
                readers[op.x.id].append(op)
                continue
            readers[op.x.id] = [op]
            groups.append(readers[op.x.id])
        else:
            groups.append([op])
    return groups


def readers_of(plan: Plan) -> Counter[int]:
    """How many ops read each value; the results of the plan have one reader more."""
    readers = Counter(value.id for op in plan.ops for value in op.inputs())
    readers.update((plan.hidden.id, plan.logits.id))
    return readers


def group_ops(plan: Plan) -> list[list[ops.Op]]:
    """Ops that run together, in the order of the plan except for linear ops."""
    groups: list[list[ops.Op]] = []
    keeps_rows = False  # whether the last group can take another op on rows
    readers = readers_of(plan)
    for group in group_linears(plan.ops):
        op, last = group[0], groups[-1] if groups else []
        # Generated rows, which towers do not have, get their bias later.
        of_tower = plan.input is not None and (
            _is_limit_of(op, last, readers) or _is_activation_of(op, last, readers)
        )
        if _is_gate_of(op, last) or of_tower:
            last.append(op)
            keeps_rows = False
        elif keeps_rows and _joins_rows(plan, op) and _rows(op) == _rows(last[0]):
            last.append(op)
            keeps_rows = not isinstance(op, ops.Attention)
        else:
            groups.append(group)
            keeps_rows = _is_row_op(plan, op)
        if op.output == plan.hidden:
            keeps_rows = False  # a step without logits ends here
    return [part for group in groups for part in _without_lone_stores(group)]


def _without_lone_stores(group: list[ops.Op]) -> list[list[ops.Op]]:
    """Keys and values are stored in a group only if attention ends it."""
    stores = any(isinstance(op, ops.StoreKV) for op in group)
    return [[op] for op in group] if stores and not isinstance(group[-1], ops.Attention) else [group]


def _results(group: Sequence[ops.Op]) -> list[Value | None]:
    """Those of linear ops, after their limits."""
    limited = {op.x.id: op.out for op in group if isinstance(op, tower_ops.Clamp)}
    return [limited.get(op.out.id, op.out) for op in group if isinstance(op, ops.Linear)]


def _is_gate_of(op: ops.Op, group: Sequence[ops.Op]) -> bool:
    """Whether it is a gate, and these are its two linear ops."""
    linears = [each for each in group if isinstance(each, ops.Linear)]
    return (
        isinstance(op, ops.Gate)
        and len(linears) == 2
        and all(linear.bias is None for linear in linears)
        and _results(group) == list(op.inputs())
        and op.activation in ("silu", "gelu_tanh")
    )


def _is_limit_of(op: ops.Op, group: Sequence[ops.Op], readers: Counter[int]) -> bool:
    """Whether it is a clamp that alone reads the result of one of these linear ops, or of their gate."""
    made = [each.output for each in group if isinstance(each, ops.Linear | ops.Gate | ops.Activate)]
    of_linears = bool(group) and isinstance(group[0], ops.Linear)
    return isinstance(op, tower_ops.Clamp) and of_linears and op.x in made and readers[op.x.id] == 1


def _is_activation_of(op: ops.Op, group: Sequence[ops.Op], readers: Counter[int]) -> bool:
    """Whether it is an activation that alone reads the result of this one linear op."""
    return (
        isinstance(op, ops.Activate)
        and _results(group) == [op.x]
        and readers[op.x.id] == 1
        and op.activation in ("silu", "gelu_tanh")
    )


def _is_passing(
    op: ops.Op, group: Sequence[ops.Op], next_group: Sequence[ops.Op], readers: Counter[int]
) -> bool:
    """Whether the next group's one linear op alone reads the result of a gate, after its limit, and the gate
    alone its operands."""
    result = next(
        (each.out for each in group if isinstance(each, tower_ops.Clamp) and each.x == op.output), op.output
    )
    linears = [each for each in next_group if isinstance(each, ops.Linear)]
    return (
        len(linears) == 1
        and linears[0] is next_group[0]
        and linears[0].x == result
        and all(readers[value.id] == 1 for value in (linears[0].x, *op.inputs()))
    )


def _is_row_op(plan: Plan, op: ops.Op) -> bool:
    return isinstance(op, ROW_OPS if plan.input is None else TOWER_ROW_OPS)


def _joins_rows(plan: Plan, op: ops.Op) -> bool:
    """Whether it can follow ops on rows in their group. Attention of towers cannot: it may pad heads."""
    return _is_row_op(plan, op) or (isinstance(op, ops.StoreKV | ops.Attention) and plan.input is None)


def _rows(op: ops.Op) -> str:
    return (op.output or next(op.inputs())).rows


def lower(plan: Plan, weights: Weights) -> Lowered:
    """The plan's ops as native structs."""

    def decoded(w: Weight) -> np.ndarray[Any, np.dtype[np.float32]]:
        from olivine.backends.reference import dequantize  # rare, and slow to import

        return dequantize(weights[w.name][0])

    def number(w: Weight) -> float:
        return float(decoded(w).item())

    shared = share_clamps(plan, number)
    groups, readers = group_ops(shared), readers_of(shared)
    lowered = Lowered()
    lowered.buffers = buffers = assign_buffers(groups, keep=(plan.hidden, plan.logits))
    cache_at = {cache.id: index for index, cache in enumerate(plan.caches)}
    indices: dict[tuple[str, bool], int] = {}
    tables: dict[tuple[Rotation, str | None, int], int] = {}

    def weight(w: Weight, experts: bool = False) -> int:
        """The index of a weight, or of the first of its experts."""
        key = (w.name, experts)
        if key not in indices:
            indices[key] = len(lowered.weights)
            parts: Sequence[Tensor] = weights[w.name]
            if experts and len(parts) == 1:
                rows = w.shape[1]
                parts = [parts[0].rows(e * rows, (e + 1) * rows) for e in range(w.shape[0])]
            lowered.weights += [native.weight_of(part) for part in parts]
            lowered.keep += parts
        return indices[key]

    def maybe(w: Weight | None) -> int:
        return -1 if w is None else weight(w)

    def table(rotation: Rotation, divisors: Weight | None, axis: int = -1) -> int:
        key = (rotation, divisors.name if divisors else None, axis)
        if key not in tables:
            frequencies = np.array(rotation.frequencies, np.float32)
            if divisors is not None:
                frequencies = frequencies / decoded(divisors)
            tables[key] = len(lowered.tables)
            lowered.tables.append(frequencies)
            lowered.magnitudes.append(rotation.magnitude)
            lowered.axes.append(axis)
        return tables[key]

    for group, next_group in zip(groups, [*groups[1:], []], strict=True):
        linears = sum(isinstance(op, ops.Linear) for op in group)
        for op in group:
            n = native.Op(kind=KINDS.index(type(op)), weight=-1, bias=-1, up=-1, down=-1, cache=-1)
            # Linear ops are counted by the first, and what follows in their group has no count.
            n.count = len(group) if not linears else linears if isinstance(op, ops.Linear) else 0
            values = list(op.inputs())
            shaped = op.output or values[0]
            n.outputs = int(shaped.rows == "outputs")
            n.width = shaped.width
            if op.output is not None:
                n.out = buffers.offsets[op.output.id]
            if values:
                n.a, n.a_width = buffers.offsets[values[0].id], values[0].width
            if len(values) > 1:
                n.b = buffers.offsets[values[1].id]
            if len(values) > 2:
                n.c = buffers.offsets[values[2].id]
            match op:
                case ops.Embed():
                    n.weight, n.scale = weight(op.weight), op.scale
                    n.pad = -1 if op.pad is None else op.pad
                    n.start, n.size = op.first, op.tokens
                case ops.RmsNorm():
                    n.weight, n.size, n.eps, n.offset = maybe(op.weight), op.size, op.eps, op.offset
                case ops.Linear():
                    n.weight, n.bias = weight(op.weight), maybe(op.bias)
                case ops.Rope():
                    n.table, n.head_dim = table(op.rotation, op.divisors), op.rotation.head_dim
                    n.interleaved = int(op.rotation.interleaved)
                case ops.StoreKV():
                    n.cache = cache_at[op.cache.id]
                case ops.Attention():
                    n.cache, n.heads, n.scale = cache_at[op.cache.id], op.heads, op.scale
                    n.kv_heads, n.head_dim = op.cache.kv_heads, op.cache.head_dim
                    n.window, n.bidirectional = op.window or 0, int(op.bidirectional)
                case ops.Gate() | ops.Activate():
                    n.activation = native.ACTIVATIONS[op.activation]
                    n.passing = int(_is_passing(op, group, next_group, readers))
                case ops.Scale():
                    n.weight, n.scale = maybe(op.weight), op.factor
                case ops.Columns():
                    n.start = op.start
                case ops.PositionScale():
                    n.scale, n.size = op.beta, op.length
                case ops.MoE():
                    n.bias = maybe(op.scale)
                    n.weight, n.up, n.down = weight(op.gate, True), weight(op.up, True), weight(op.down, True)
                    n.count, n.top_k, n.normalize = op.router.width, op.top_k, int(op.normalize)
                    n.start, n.size = op.first, op.gate.shape[0]
                    n.activation = native.ACTIVATIONS[op.activation]
                case ops.Softcap():
                    n.scale = op.cap
                case ops.LayerNorm():
                    n.weight, n.bias, n.size, n.eps = weight(op.weight), maybe(op.bias), op.size, op.eps
                case tower_ops.Input():
                    n.scale, n.offset = op.scale, op.shift
                case tower_ops.Clamp():
                    n.scale, n.offset = limits_of(op, number)
                case tower_ops.Standardize():
                    n.weight, n.bias = weight(op.mean), weight(op.scale)
                case tower_ops.PositionEmbed():
                    n.weight, n.start, n.strides = weight(op.table), op.start, op.strides
                case tower_ops.GridRope():
                    n.table, n.head_dim = table(op.rotation, None, 0), op.rotation.head_dim
                    table(op.rotation, None, 1)  # the next one
                case tower_ops.Pool():
                    n.size = op.size
                case tower_ops.Conv():
                    n.weight, n.count = weight(op.weight), op.weight.shape[0]
                    n.steps, n.frames = op.steps, op.frames
                case tower_ops.DepthwiseConv():
                    n.weight, n.size = weight(op.weight), op.weight.shape[1]
                case tower_ops.RelativeAttention():
                    n.weight, n.size = weight(op.relative), op.relative.shape[0]
                    n.heads, n.scale = op.heads, op.cap
            if type(op) in RANK_OPS:
                lowered.meetings[len(lowered.ops)] = op
            lowered.ops.append(n)
    return lowered


def array_of(kind: Any, values: Sequence[Any]) -> Any:
    """A ctypes array of the values, of at least one element, because C has no empty arrays."""
    return (kind * max(1, len(values)))(*values)


def stored_head_dim(plan: Plan, head_dim: int, cache_type: str) -> int:
    """The columns that a cache has for a head. AMX multiplies tiles of 32, so the heads of a tower (SigLIP's
    have 72) are padded with zeros there. Those of decoders are not: their caches are sized without it."""
    tiles = native.lib().olv_isa() == b"amx" and cache_type == "BF16" and plan.input is not None
    return -(-head_dim // 32) * 32 if tiles else head_dim


def native_plan(
    plan: Plan,
    lowered: Lowered,
    page_counts: Sequence[int],
    page_size: int,
    cache_type: str,
    meet: Any = None,
    shm: int | None = None,
) -> native.Plan:
    """The struct that `olv_program_new` copies. Its arrays must stay alive until then."""
    buffers = lowered.buffers
    assert buffers is not None
    starts = np.cumsum([0, *map(len, lowered.tables)])
    flat = [float(f) for table in lowered.tables for f in table]
    group_of = {cache.id: index for index, group in enumerate(plan.groups) for cache in group.caches}
    return native.Plan(
        ops=array_of(native.Op, lowered.ops),
        op_count=len(lowered.ops),
        weights=array_of(native.Weight, lowered.weights),
        weight_count=len(lowered.weights),
        frequencies=array_of(ctypes.c_float, flat),
        frequency_start=array_of(ctypes.c_int64, starts.tolist()),
        magnitudes=array_of(ctypes.c_float, lowered.magnitudes),
        axes=array_of(ctypes.c_int32, lowered.axes),
        table_count=len(lowered.tables),
        cache_group=array_of(ctypes.c_int32, [group_of[cache.id] for cache in plan.caches]),
        cache_kv_heads=array_of(ctypes.c_int32, [cache.kv_heads for cache in plan.caches]),
        cache_head_dim=array_of(
            ctypes.c_int32, [stored_head_dim(plan, cache.head_dim, cache_type) for cache in plan.caches]
        ),
        cache_count=len(plan.caches),
        cache_type=native.TYPES[cache_type],
        group_pages=array_of(ctypes.c_int64, page_counts),
        group_count=len(plan.groups),
        page_size=page_size,
        token_width=buffers.token_width,
        output_width=buffers.output_width,
        hidden=buffers.offsets[plan.hidden.id],
        hidden_width=plan.hidden.width,
        logits=buffers.offsets[plan.logits.id],
        logits_width=plan.logits.width,
        shm=shm,
        meet=native.Meet() if meet is None else meet,
    )
