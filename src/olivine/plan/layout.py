"""Which columns of each value a rank has, where a plan is divided among ranks: see `split.py`.

Values whose columns belong together (through norms of heads, rotations, gates, sums of two) are divided alike
or not at all: they are found first, and then cut.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TypeGuard

from olivine.plan import ops
from olivine.plan.ops import Cache, Op, Value, Weight
from olivine.plan.plan import Plan

Range = tuple[int, int]  # columns, rows or experts: the first, and the one after the last
Ranges = tuple[Range, ...]  # one a rank
Block = Callable[[Weight], int]  # how many columns of a weight are stored together


def even(total: int, unit: int, ranks: int) -> Ranges | None:
    """Cuts `total` at multiples of `unit`, as evenly as that allows; None where a rank would have nothing."""
    units, rest = divmod(total, unit)
    if rest or units < ranks:
        return None
    return tuple(pairwise(units * rank // ranks * unit for rank in range(ranks + 1)))


@dataclass
class _Columns:
    """Values with the same columns. `unit`: they can only be cut at multiples of it."""

    width: int
    unit: int = 1
    whole: bool = False  # some op needs every column
    made_whole: bool = False  # by a norm of the row: they are cut where attention asks for it
    readers: list[Weight] = field(default_factory=list)  # of linear layers: their columns are cut alike
    ranges: Ranges | None = None


class Layout:
    """The columns that each rank has of each value; None: all of them."""

    def __init__(self, plan: Plan, ranks: int, block: Block) -> None:
        self._plan, self._ranks, self._block = plan, ranks, block
        self._columns: dict[int, _Columns] = {}  # by the value's id
        self._gathering = [op for op in plan.ops if gathers(op)]
        self.notes: list[str] = []
        self.kv: dict[int, Ranges] = {}  # KV heads, by cache, where they are divided
        for op in plan.ops:
            self._follow(op)
        self._of(plan.hidden).whole = True
        while not self._settled():
            pass

    def ranges(self, value: Value) -> Ranges | None:
        return self._of(value).ranges

    def _of(self, value: Value) -> _Columns:
        return self._columns.setdefault(value.id, _Columns(value.width))

    def _join(self, *values: Value, unit: int = 1) -> None:
        first = self._of(values[0])
        first.unit = math.lcm(first.unit, unit)
        for value in values[1:]:
            other = self._of(value)
            if other is first:
                continue
            first.unit = math.lcm(first.unit, other.unit)
            first.whole |= other.whole
            first.made_whole |= other.made_whole
            first.readers += other.readers
            for key, columns in self._columns.items():
                if columns is other:
                    self._columns[key] = first

    def _whole(self, *values: Value) -> None:
        for value in values:
            self._of(value).whole = True

    def _follow(self, op: Op) -> None:
        match op:
            case ops.RmsNorm() | ops.LayerNorm() if op.size == op.x.width:
                self._of(op.x)
                self._of(op.out).made_whole = True
            case ops.RmsNorm() | ops.LayerNorm():
                self._join(op.x, op.out, unit=op.size)
            case ops.Rope():
                self._join(op.x, op.out, unit=op.rotation.head_dim)
            case ops.Scale() | ops.PositionScale() | ops.Activate() | ops.Softcap() | ops.TakeOutputs():
                self._join(op.x, op.out)
            case ops.Gate():
                self._join(op.gate, op.up, op.out)
            case ops.Add():
                self._join(op.a, op.b, op.out)
            case ops.Linear():
                self._of(op.x).readers.append(op.weight)
                self._of(op.out)
            case ops.StoreKV() | ops.Attention():
                for value in (*op.inputs(), *(() if op.output is None else (op.output,))):
                    self._of(value)
            case _:  # Embed, Columns, MoE: whole from the start, or after their sum
                self._whole(*op.inputs(), *(() if op.output is None else (op.output,)))

    def _settled(self) -> bool:
        """Cuts everything anew, and says whether all cuts fit each other; what does not becomes whole."""
        self.kv = {}
        for columns in self._columns.values():
            columns.ranges = None
        attended = [self._cut_heads(cache) for cache in self._plan.caches]
        if not all(attended):
            return False
        gathered = [op.x for op in self._plan.ops if gathers(op) and self.ranges(op.out)]
        for op in self._plan.ops:
            if isinstance(op, ops.Linear):
                columns = self._of(op.out)
                wanted = columns.readers or columns is self._of(self._plan.logits)
                wanted = wanted or any(columns is self._of(value) for value in gathered)
                if wanted and not (columns.whole or columns.made_whole or columns.ranges):
                    self._cut_columns(op, columns)
        fits = True
        for op in self._plan.ops:
            # What is summed over ranks is whole afterwards.
            if isinstance(op, ops.Linear) and self.ranges(op.x) and self.ranges(op.out):
                self._whole(op.out)
                fits = False
        return fits

    def _cut_columns(self, op: ops.Linear, columns: _Columns) -> None:
        unit = math.lcm(columns.unit, *(self._block(weight) for weight in columns.readers))
        columns.ranges = even(columns.width, unit, self._ranks)
        if columns.ranges is None:
            columns.whole = True
            self.notes.append(
                f"{op.weight.name}: {columns.width} columns in units of {unit} cannot be divided among "
                f"{self._ranks} ranks: each has them all"
            )

    def _cut_heads(self, cache: Cache) -> bool:
        """Divides the heads that read and write a cache; False where something was found to be whole."""
        stores = [op for op in self._plan.ops if isinstance(op, ops.StoreKV) and op.cache == cache]
        reads = [op for op in self._plan.ops if isinstance(op, ops.Attention) and op.cache == cache]
        keys = [value for op in stores for value in (op.k, op.v)]
        queries = [value for op in reads for value in (op.q, op.out)]
        if all(self._of(value).whole for value in (*keys, *queries)):
            return True
        cut = None
        if not any(self._of(value).whole for value in (*keys, *queries)):
            cut = self._heads(cache, reads, keys, queries)
            if cut is None:
                heads = "/".join(str(op.heads) for op in reads)
                self.notes.append(
                    f"{cache}: {heads} query heads on {cache.kv_heads} KV heads of {cache.head_dim} cannot "
                    f"be divided among {self._ranks} ranks: each has them all"
                )
        if cut is not None:
            kv, wanted = cut
            self.kv[cache.id] = kv
            if all(self._assign(value, ranges) for value, ranges in wanted):
                return True
        self._whole(*keys, *queries)
        return False

    def _assign(self, value: Value, ranges: Ranges) -> bool:
        columns = self._of(value)
        if columns.ranges is None:
            columns.ranges = ranges
        return columns.ranges == ranges

    def _heads(
        self, cache: Cache, reads: Sequence[ops.Attention], keys: Sequence[Value], queries: Sequence[Value]
    ) -> tuple[Ranges, list[tuple[Value, Ranges]]] | None:
        """KV heads by rank, and the columns by rank of each value that has heads."""
        d = cache.head_dim
        for kv in self._kv_candidates(cache, reads):
            found = [(value, _times(kv, d)) for value in keys]
            for op in reads:
                each = op.heads // cache.kv_heads  # query heads of a KV head
                q = _times(kv, each * d)
                if _overlap(kv):
                    shared = even(op.heads, 1, self._ranks)
                    assert shared is not None
                    q = _times(shared, d)
                found += [(op.q, q), (op.out, q)]
            if all(self._can_be(value, ranges) for value, ranges in found):
                return kv, found
        return None

    def _kv_candidates(self, cache: Cache, reads: Sequence[ops.Attention]) -> Iterable[Ranges]:
        heads, n = cache.kv_heads, self._ranks
        for unit in range(1, heads + 1):
            if heads % unit == 0 and (ranges := even(heads, unit, n)) is not None:
                yield ranges
        # Fewer KV heads than ranks: some ranks have the same KV head, and each its share of the query heads.
        if n % heads == 0 and all(op.heads % n == 0 for op in reads):
            yield tuple((rank * heads // n, rank * heads // n + 1) for rank in range(n))

    def _can_be(self, value: Value, ranges: Ranges) -> bool:
        columns = self._of(value)
        unit = math.lcm(columns.unit, *(self._block(weight) for weight in columns.readers))
        if any(start % unit or stop % unit for start, stop in ranges):
            return False
        # What several ranks have would be added or gathered several times.
        once = columns.readers or columns is self._of(self._plan.logits)
        once = once or any(columns is self._of(op.x) for op in self._gathering)
        return not (_overlap(ranges) and once)


def gathers(op: Op) -> TypeGuard[ops.RmsNorm | ops.LayerNorm]:
    """Whether an op reads whole rows, though its result may be divided."""
    return isinstance(op, ops.RmsNorm | ops.LayerNorm) and op.size == op.x.width


def _times(ranges: Ranges, size: int) -> Ranges:
    return tuple((start * size, stop * size) for start, stop in ranges)


def _overlap(ranges: Ranges) -> bool:
    return any(stop > start for (_, stop), (start, _) in pairwise(ranges))
