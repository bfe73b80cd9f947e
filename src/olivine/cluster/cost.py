"""How fast a divided model would be: bytes and operations of every rank, and what their meetings cost.

A rank reads its weights and its part of the KV cache once a step, and multiplies every weight by every row. A
meeting of n ranks takes the link's latency, and brings each of them the rows of the n - 1 others. Stages
follow one another. Nothing overlaps: a figure is what to expect, not a limit; docs/cluster.md says how far it
was checked.
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from olivine.backends.base import Weights
from olivine.cluster.memory import weight_bytes
from olivine.cluster.rank import Parallel, divide
from olivine.plan import Plan, ops, rank_ops
from olivine.plan.ops import Op
from olivine.plan.split import Split


class Device(NamedTuple):
    """What one rank runs on."""

    bandwidth: float  # bytes a second that it reads weights with
    operations: float  # a second, a multiplication with its addition being two
    overhead: float = 0.0  # seconds of every step, whatever it computes


class Link(NamedTuple):
    """What ranks meet over."""

    bandwidth: float  # bytes a second that a rank receives
    latency: float  # seconds that a meeting of two takes, however few bytes
    hop: float = 0.0  # … and every further rank


class Cost(NamedTuple):
    """Seconds of a step: of the slowest rank of each stage, all stages together."""

    reading: float
    arithmetic: float
    latency: float
    transfer: float
    overhead: float

    @property
    def seconds(self) -> float:
        """A rank reads while it computes; all else follows one another."""
        return max(self.reading, self.arithmetic) + self.latency + self.transfer + self.overhead


def step_cost(
    plan: Plan,
    weights: Weights,
    parallel: Parallel,
    device: Device,
    link: Link,
    *,
    rows: int = 1,
    context: int = 0,
) -> Cost:
    """Of `rows` decode rows, each of a sequence of its own with `context` tokens before it."""
    total = Cost(0.0, 0.0, 0.0, 0.0, 0.0)
    for found in divide(plan, weights, parallel):
        worst = max(
            (_rank_cost(found, part, weights, device, link, rows, context) for part in found.plans),
            key=lambda cost: cost.seconds,
        )
        total = Cost(*(a + b for a, b in zip(total, worst, strict=True)))
    return total


def _rank_cost(
    found: Split, part: Plan, weights: Weights, device: Device, link: Link, rows: int, context: int
) -> Cost:
    ranks = len(found.plans)
    cached = sum(_seen(group.window, context) * group.bytes_per_token(2) for group in part.groups)
    read, operations, latency, received = float(rows * cached), 0.0, 0.0, 0.0
    for op in part.ops:
        match op:
            case ops.Embed():
                continue  # some rows of its table
            case rank_ops.AllReduce():
                latency += link.latency + link.hop * (ranks - 2)
                received += 4 * rows * op.out.width * (ranks - 1)
            case rank_ops.AllGather():
                latency += link.latency + link.hop * (ranks - 2)
                received += 4 * rows * (op.out.width - op.x.width)
            case rank_ops.Receive():
                latency += link.latency
                received += 4 * rows * op.out.width
            case _:
                share = _active(op, rows)
                for weight in op.weights():
                    read += share * weight_bytes(found, weight, weights)
                    if len(weight.shape) > 1:
                        operations += 2 * rows * prod(weight.shape) * _active(op, 1)
    return Cost(
        read / device.bandwidth,
        operations / device.operations,
        latency,
        received / link.bandwidth,
        device.overhead,
    )


def _active(op: Op, rows: int) -> float:
    """The share of an op's weights that a step reads: of a mixture, the experts that its rows take."""
    if not isinstance(op, ops.MoE):
        return 1.0
    return 1.0 - (1.0 - op.top_k / op.router.width) ** rows


def _seen(window: int | None, context: int) -> int:
    return context if window is None else min(window, context)
