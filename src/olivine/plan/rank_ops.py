"""The operations where the ranks of a divided plan meet: see `split.py`.

Every rank comes to them in the same order. What they cost is their bytes over the link between the ranks.
"""

from __future__ import annotations

from dataclasses import dataclass

from olivine.plan.ops import Op, Value


@dataclass(frozen=True)
class AllReduce(Op):
    """out = the sum of all ranks' x, added in the order of the ranks: every rank has the same bits."""

    out: Value
    x: Value


@dataclass(frozen=True)
class AllGather(Op):
    """out = the columns of all ranks' x, side by side; `widths` says how many each has."""

    out: Value
    x: Value
    widths: tuple[int, ...]


@dataclass(frozen=True)
class Send(Op):
    """Hands x to the same rank of the next stage."""

    x: Value


@dataclass(frozen=True)
class Receive(Op):
    """out = what the same rank of the stage before sent, in the order of its sends."""

    out: Value
