"""Clamps that limit a value alike become one: so the linear ops that read them have one input, as those of
towers have (q, k and v), whose file gives limits to each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace

from olivine.plan.ops import Op, Value, Weight
from olivine.plan.plan import Plan
from olivine.plan.tower_ops import Clamp

Number = Callable[[Weight], float]


def limits_of(op: Clamp, number: Number) -> tuple[float, float]:
    """The least and the most that a clamp lets through; `number` is the value of a weight of one element."""
    low = float("-inf") if op.low is None else number(op.low)
    return low, float("inf") if op.high is None else number(op.high)


def share_clamps(plan: Plan, number: Number) -> Plan:
    """The plan with the first of the clamps that limit a value alike in place of all of them."""
    kept: list[Op] = []
    same: dict[int, Value] = {}  # by the value of a clamp that is left out, that of the one that stays
    first: dict[tuple[int, float, float], Value] = {}
    for op in plan.ops:
        named = {field.name: getattr(op, field.name) for field in fields(op)}
        changed = {name: same[v.id] for name, v in named.items() if isinstance(v, Value) and v.id in same}
        op = replace(op, **changed) if changed else op
        if isinstance(op, Clamp) and op.out not in (plan.hidden, plan.logits):
            value = first.setdefault((op.x.id, *limits_of(op, number)), op.out)
            if value != op.out:
                same[op.out.id] = value
                continue
        kept.append(op)
    return replace(plan, ops=tuple(kept)) if same else plan
