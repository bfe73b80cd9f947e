"""Pipeline parallelism: a plan is cut between its layers into the plans of n stages.

A stage receives the rows that are still needed and hands on what the next one needs. Where a layer reads the
cache of one in a stage before, the keys and values are handed on too, and stored in both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from olivine.errors import OlivineError
from olivine.plan import ops
from olivine.plan.ops import Cache, Op, Value, Weight
from olivine.plan.plan import Plan
from olivine.plan.rank_ops import Receive, Send

NEAR = 6  # ops: a cut hands on no more than the places so near to it would


def stages(plan: Plan, count: int, size: Callable[[Weight], int]) -> tuple[Plan, ...]:
    """Cuts a plan into `count` stages, so that the largest has as few bytes of weights as can be."""
    if count < 1:
        raise OlivineError(f"a plan is cut into 1 stage or more, not {count}")
    if count == 1:
        return (plan,)
    if plan.input is not None:
        raise OlivineError(f"{plan.name} is a tower, and runs whole")
    places = _places(plan)
    if len(places) < count - 1:
        raise OlivineError(f"{plan.name} can be cut at {len(places)} places: {count} stages are too many")
    cuts = [0, *_balanced(plan, places, count, size), len(plan.ops)]
    return tuple(
        _stage(plan, start, stop, f"{plan.name}, stage {index} of {count}")
        for index, (start, stop) in enumerate(pairwise(cuts))
    )


def _live(plan: Plan) -> list[list[Value]]:
    """The values that are handed on where the plan is cut before op i, for each i."""
    stored = {op.cache.id: op for op in plan.ops if isinstance(op, ops.StoreKV)}
    made: dict[Value, int] = {}
    last: dict[Value, int] = {}
    for index, op in enumerate(plan.ops):
        used = list(op.inputs())
        if isinstance(op, ops.Attention):
            used += stored[op.cache.id].inputs()
        last.update(dict.fromkeys(used, index))
        if op.output is not None:
            made[op.output] = index
    last.update(dict.fromkeys((plan.hidden, plan.logits), len(plan.ops)))
    return [
        [value for value, at in made.items() if at < index <= last.get(value, -1)]
        for index in range(len(plan.ops))
    ]


def _places(plan: Plan) -> list[int]:
    """Where a cut hands on little: between layers, and between attention and MLP."""
    widths = [sum(value.width for value in values) for values in _live(plan)]
    return [
        index
        for index in range(1, len(widths))
        if widths[index] <= min(widths[max(1, index - NEAR) : index + NEAR + 1])
    ]


def _balanced(plan: Plan, places: Sequence[int], count: int, size: Callable[[Weight], int]) -> list[int]:
    """The cuts with which the largest stage is smallest."""
    total, before = 0, [0]
    for op in plan.ops:
        # A table that is the head too is in the first stage and in the last: it counts in both.
        total += sum(size(weight) for weight in op.weights())
        before.append(total)
    # best[k]: the largest of the stages up to the k-th place, and the cuts before it.
    best: list[tuple[int, list[int]]] = [(before[place], []) for place in places]
    for taken in range(1, count - 1):
        best = [
            min(
                (max(best[j][0], before[places[k]] - before[places[j]]), [*best[j][1], places[j]])
                for j in range(taken - 1, k)
            )
            if k >= taken
            else (total + 1, [])
            for k in range(len(places))
        ]
    _, cuts = min(
        (max(largest, total - before[place]), [*cuts, place])
        for place, (largest, cuts) in zip(places, best, strict=True)
        if len(cuts) == count - 2
    )
    return cuts


def _stage(plan: Plan, start: int, stop: int, name: str) -> Plan:
    live = _live(plan)
    own: list[Op] = list(plan.ops[start:stop])
    if start:
        stores = [op for op in plan.ops[:start] if isinstance(op, ops.StoreKV)]
        read = {op.cache.id for op in own if isinstance(op, ops.Attention)}
        again = [op for op in stores if op.cache.id in read]
        own = [*(Receive(out=value) for value in live[start]), *again, *own]
    hidden, logits = plan.hidden, plan.logits
    if stop < len(plan.ops):
        own += [Send(x=value) for value in live[stop]]
        number = 1 + max(op.output.id for op in plan.ops if op.output is not None)
        hidden = logits = Value(number, "outputs", 0)  # only the last stage has results
    weights = dict.fromkeys(weight for op in own for weight in op.weights())
    caches = dict.fromkeys(op.cache for op in own if isinstance(op, ops.StoreKV))
    return Plan(name, tuple(own), tuple(weights), tuple(sorted(caches, key=_number)), hidden, logits)


def _number(cache: Cache) -> int:
    return cache.id
