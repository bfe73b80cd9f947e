"""Launchers of the ops where ranks meet."""

from __future__ import annotations

from olivine.backends.cuda.launch_rowwise import prepare_angles
from olivine.backends.cuda.lowering import Launch, Lowering
from olivine.backends.cuda.rows import Rows
from olivine.plan import rank_ops


def all_reduce(c: Lowering, op: rank_ops.AllReduce) -> Launch:
    others = c.others

    def run(rows: Rows) -> None:
        rows.values[op.out.id] = others.all_reduce(rows.values[op.x.id].contiguous())

    return run


def all_gather(c: Lowering, op: rank_ops.AllGather) -> Launch:
    others = c.others

    def run(rows: Rows) -> None:
        rows.values[op.out.id] = others.all_gather(rows.values[op.x.id].contiguous(), op.widths)

    return run


def send(c: Lowering, op: rank_ops.Send) -> Launch:
    others = c.others

    def run(rows: Rows) -> None:
        others.send(rows.values[op.x.id].contiguous())

    return run


def receive(c: Lowering, op: rank_ops.Receive) -> Launch:
    others = c.others

    def run(rows: Rows) -> None:
        prepare_angles(c, rows)  # a later stage embeds no tokens
        rows.values[op.out.id] = others.receive((rows.count(op.out.rows), op.out.width))

    return run
