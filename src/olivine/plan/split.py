"""Tensor parallelism: a plan becomes the plans of n ranks. Models do not know.

Heads, the columns inside an MLP, experts and the vocabulary are divided. A linear layer whose output is
divided keeps some rows of its weight, and the one that reads it the columns that fit: then every rank has a
summand of the result, and an all-reduce adds them. All other values are whole on every rank. A norm of the
whole row between two divided values (OLMo's of all heads) gathers the row, and keeps its part of the result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from olivine.errors import OlivineError
from olivine.plan import ops
from olivine.plan.layout import Block, Layout, Range, even, gathers
from olivine.plan.ops import Cache, Op, Value, Weight
from olivine.plan.plan import Plan
from olivine.plan.rank_ops import AllGather, AllReduce


@dataclass(frozen=True)
class Part:
    """What a rank keeps of a stored weight: a range of one axis (0 or the last)."""

    name: str
    axis: int
    start: int
    stop: int


@dataclass(frozen=True)
class Split:
    """The plans of the ranks, what their weights are parts of, and what could not be divided."""

    plans: tuple[Plan, ...]
    parts: Mapping[str, Part]  # by the name of a weight of some rank; the others are whole
    notes: tuple[str, ...]


def split(plan: Plan, ranks: int, block: Block = lambda weight: 1) -> Split:
    """Divides a plan among `ranks`. `block`: columns of a weight are cut at multiples of this."""
    if ranks < 1:
        raise OlivineError(f"a plan is divided among 1 rank or more, not {ranks}")
    if ranks == 1:
        return Split((plan,), {}, ())
    layout = Layout(plan, ranks, block)
    writer = _Writer(plan, layout, ranks)
    plans = tuple(writer.write(rank) for rank in range(ranks))
    return Split(plans, writer.parts, tuple(dict.fromkeys(layout.notes)))


class _Writer:
    """Writes the ops of a rank. Values keep their numbers; summands have new ones."""

    def __init__(self, plan: Plan, layout: Layout, ranks: int) -> None:
        self._plan, self._layout, self._ranks = plan, layout, ranks
        self.parts: dict[str, Part] = {}
        self._groups = {c.id: index for index, group in enumerate(plan.groups) for c in group.caches}
        self._values = 1 + max((op.output.id for op in plan.ops if op.output is not None), default=0)

    def write(self, rank: int) -> Plan:
        self._rank, self._next = rank, self._values
        self._ops: list[Op] = []
        for op in self._plan.ops:
            self._write(op)
        logits = self._gathered(self._plan.logits)
        weights = dict.fromkeys(weight for op in self._ops for weight in op.weights())
        caches = tuple(self._cache(cache) for cache in self._plan.caches)
        name = f"{self._plan.name}, rank {rank} of {self._ranks}"
        return Plan(name, tuple(self._ops), tuple(weights), caches, self._plan.hidden, logits)

    def _new_id(self) -> int:
        self._next += 1
        return self._next - 1

    def _range(self, value: Value) -> Range | None:
        ranges = self._layout.ranges(value)
        return None if ranges is None else ranges[self._rank]

    def _value(self, value: Value) -> Value:
        found = self._range(value)
        return value if found is None else replace(value, width=found[1] - found[0])

    def _cache(self, cache: Cache) -> Cache:
        kv = self._layout.kv.get(cache.id)
        start, stop = (0, cache.kv_heads) if kv is None else kv[self._rank]
        return replace(cache, kv_heads=stop - start, group=self._groups[cache.id])

    def _part(self, weight: Weight, axis: int, found: Range | None) -> Weight:
        """What this rank keeps of a weight."""
        if found is None or found == (0, weight.shape[axis]):
            return weight
        start, stop = found
        shape = list(weight.shape)
        shape[axis] = stop - start
        words = f"{start}:{stop}" if axis == 0 else f":, {start}:{stop}"
        part = Weight(f"{weight.name}[{words}]", tuple(shape))
        self.parts[part.name] = Part(weight.name, axis, start, stop)
        return part

    def _write(self, op: Op) -> None:
        match op:
            case ops.Linear() if self._layout.ranges(op.x) is not None:
                weight = self._part(op.weight, 1, self._range(op.x))
                bias = op.bias if self._rank == 0 else None
                self._sum(op.out, replace(op, x=self._value(op.x), weight=weight, bias=bias))
            case ops.Linear():
                rows = self._range(op.out)
                bias = None if op.bias is None else self._part(op.bias, 0, rows)
                self._ops.append(
                    replace(op, out=self._value(op.out), weight=self._part(op.weight, 0, rows), bias=bias)
                )
            case ops.Embed():
                self._embed(op)
            case ops.MoE():
                self._experts(op)
            case ops.RmsNorm() | ops.LayerNorm() if gathers(op):
                self._norm(op)
            case ops.Scale() if op.weight is not None and op.weight.shape[0] > 1:
                weight = self._part(op.weight, 0, self._range(op.x))
                self._ops.append(replace(op, out=self._value(op.out), x=self._value(op.x), weight=weight))
            case ops.Attention():
                cache, q = self._cache(op.cache), self._value(op.q)
                heads = q.width // cache.head_dim
                self._ops.append(replace(op, out=self._value(op.out), q=q, cache=cache, heads=heads))
            case ops.StoreKV():
                k, v = self._value(op.k), self._value(op.v)
                self._ops.append(replace(op, k=k, v=v, cache=self._cache(op.cache)))
            case _:
                self._ops.append(_renamed(op, self._value))

    def _norm(self, op: ops.RmsNorm | ops.LayerNorm) -> None:
        """Of the whole row, which is gathered for it; then each rank keeps its part."""
        x, mine = self._gathered(op.x), self._range(op.out)
        if mine is None:
            self._ops.append(replace(op, x=x))
            return
        whole = replace(op.out, id=self._new_id())
        self._ops += [
            replace(op, out=whole, x=x),
            ops.Columns(out=self._value(op.out), x=whole, start=mine[0]),
        ]

    def _gathered(self, value: Value) -> Value:
        ranges = self._layout.ranges(value)
        if ranges is None:
            return value
        whole = replace(value, id=self._new_id())
        widths = tuple(stop - start for start, stop in ranges)
        self._ops.append(AllGather(out=whole, x=self._value(value), widths=widths))
        return whole

    def _embed(self, op: ops.Embed) -> None:
        rows = op.weight.shape[0]
        ranges = even(rows, 1, self._ranks)
        if ranges is None:
            self._ops.append(op)
            return
        mine = ranges[self._rank]
        weight = self._part(op.weight, 0, mine)
        self._sum(op.out, replace(op, weight=weight, first=mine[0], vocabulary=op.tokens))

    def _experts(self, op: ops.MoE) -> None:
        ranges = even(op.gate.shape[0], 1, self._ranks)
        if ranges is None:
            self._ops.append(op)
            return
        mine = ranges[self._rank]
        gate, up, down = (self._part(weight, 0, mine) for weight in (op.gate, op.up, op.down))
        scale = None if op.scale is None else self._part(op.scale, 0, mine)
        self._sum(op.out, replace(op, gate=gate, up=up, down=down, scale=scale, first=mine[0]))

    def _sum(self, out: Value, op: Op) -> None:
        """An op whose results are added over the ranks."""
        summand = replace(out, id=self._new_id())
        self._ops += [replace(op, out=summand), AllReduce(out=out, x=summand)]  # type: ignore[call-arg]


def _renamed(op: Op, name: Callable[[Value], Value]) -> Op:
    """The op with other values."""
    found = {key: name(value) for key, value in vars(op).items() if isinstance(value, Value)}
    return replace(op, **found)
