"""Buffer assignment: two arenas (token rows, output rows), each value at a column offset while it lives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from olivine.plan.ops import Op, Rows, Value


@dataclass(frozen=True)
class Buffers:
    """Column offsets by value id, and the widths of the two arenas."""

    offsets: dict[int, int]
    token_width: int
    output_width: int

    def columns(self, value: Value) -> slice:
        offset = self.offsets[value.id]
        return slice(offset, offset + value.width)


def assign_buffers(groups: Sequence[Sequence[Op]], keep: Sequence[Value]) -> Buffers:
    """First fit by liveness: a value takes the lowest columns that no live value holds.

    The ops of a group may run at the same time. An output of theirs shares columns neither with an input nor
    with another output of the group, so kernels need not handle aliasing. Values in `keep` (the results of a
    step) live to the end.
    """
    last_use: dict[int, int] = {}
    for index, group in enumerate(groups):
        for op in group:
            for value in op.inputs():
                last_use[value.id] = index
            if op.output is not None:
                last_use.setdefault(op.output.id, index)
    for value in keep:
        last_use[value.id] = len(groups)

    offsets: dict[int, int] = {}
    alive: dict[Rows, list[Value]] = {"tokens": [], "outputs": []}
    widths: dict[Rows, int] = {"tokens": 0, "outputs": 0}
    for index, group in enumerate(groups):
        for out in (op.output for op in group if op.output is not None):
            offsets[out.id] = _lowest_gap(alive[out.rows], offsets, out.width)
            alive[out.rows].append(out)
            widths[out.rows] = max(widths[out.rows], offsets[out.id] + out.width)
        for rows, values in alive.items():
            alive[rows] = [value for value in values if last_use[value.id] > index]
    for value in keep:
        offsets.setdefault(value.id, 0)  # the logits of a tower, which no op makes
    return Buffers(offsets, widths["tokens"], widths["outputs"])


def _lowest_gap(alive: list[Value], offsets: dict[int, int], width: int) -> int:
    at = 0
    for value in sorted(alive, key=lambda value: offsets[value.id]):
        if at + width <= offsets[value.id]:
            break
        at = max(at, offsets[value.id] + value.width)
    return at
