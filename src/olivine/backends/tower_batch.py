"""What a batch for a tower must be, so that no op reads outside of its rows or of its tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from olivine.errors import RequestError
from olivine.plan import Plan, tower_ops

if TYPE_CHECKING:
    from olivine.backends.base import Batch

_LOCATED = (tower_ops.PositionEmbed, tower_ops.GridRope, tower_ops.Conv)


def check_tower(batch: Batch, plan: Plan, reader: tower_ops.Input) -> None:
    """Refuses what is no batch of whole images or sounds."""
    rows, width = len(batch.tokens), reader.out.width
    if (
        batch.embedding_rows is not None
        or batch.embeddings is None
        or batch.embeddings.shape != (rows, width)
    ):
        raise RequestError(f"a tower needs an embedding of {width} columns for each row, and no tokens")
    if batch.generated is not None and batch.generated.any():
        raise RequestError("a tower has no generated rows")
    _check_whole(batch)
    for op in plan.ops:
        if isinstance(op, _LOCATED):
            _check_coordinates(op, rows, batch.coordinates)
        elif isinstance(op, tower_ops.Pool):
            _check_pooled(batch, op.size)


def _check_whole(batch: Batch) -> None:
    """Each sequence from its position 0 on, its rows adjacent and in order."""
    follows = (batch.sequences[1:] == batch.sequences[:-1]) & (
        batch.positions[1:] == batch.positions[:-1] + 1
    )
    starts = np.append(True, ~follows)[: len(batch.positions)]
    if batch.positions[starts].any() or len(set(batch.sequences[starts].tolist())) != starts.sum():
        raise RequestError("a tower needs each of its sequences whole, with its rows in order")


def _check_coordinates(op: Any, rows: int, found: npt.NDArray[np.int32] | None) -> None:
    if found is None or found.shape != (rows, 2):
        raise RequestError(f"{op.kind} needs two coordinates a row")
    if (
        isinstance(op, tower_ops.Conv)
        and rows
        and not 0 <= found[:, 0].min() <= found[:, 0].max() <= op.frames
    ):
        raise RequestError(f"a row of sound has 0 to {op.frames} valid frames")
    if isinstance(op, tower_ops.PositionEmbed) and rows:
        size = int(np.prod(op.table.shape[:-1], dtype=np.int64))
        at = op.start + found.astype(np.int64) @ np.array(op.strides, np.int64)
        if not (found.min() >= 0 and at.min() >= 0 and at.max() < size):
            raise RequestError(f"a patch lies outside of the {size} positions that {op.table} has")


def _check_pooled(batch: Batch, size: int) -> None:
    ends = batch.outputs.astype(np.int64) + size - 1
    if len(ends) and ends.max() >= len(batch.tokens):
        raise RequestError(f"an output of {size} rows reaches beyond the batch")
    if (batch.sequences[batch.outputs] != batch.sequences[ends]).any():
        raise RequestError(f"an output of {size} rows is of two images")
