"""What a rank of a divided plan reads: its weights and its batches. And a meeting place for threads as ranks.

Ranks that are processes meet by torch.distributed: see cluster/.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from olivine.backends.base import Batch, Collectives, Weights
from olivine.plan import Plan
from olivine.plan.ops import Embed
from olivine.plan.split import Split
from olivine.tensor import Tensor

Float32 = npt.NDArray[np.float32]


class Meeting:
    """Where `ranks` threads meet, in each of `stages`. One that fails calls `leave`, and all others fail."""

    def __init__(self, ranks: int, stages: int = 1) -> None:
        self._barriers = [threading.Barrier(ranks) for _ in range(stages)]
        self._brought: list[list[Float32 | None]] = [[None] * ranks for _ in range(stages)]
        self._sent: list[list[queue.SimpleQueue[Float32 | None]]] = [
            [queue.SimpleQueue() for _ in range(ranks)] for _ in range(stages + 1)
        ]

    def of(self, rank: int, stage: int = 0) -> Collectives:
        return _Member(self, rank, stage)

    def leave(self) -> None:
        for barrier in self._barriers:
            barrier.abort()
        for row in self._sent:
            for each in row:
                each.put(None)


class _Member:
    def __init__(self, meeting: Meeting, rank: int, stage: int) -> None:
        self._rank = rank
        self._barrier, self._brought = meeting._barriers[stage], meeting._brought[stage]
        self._from, self._to = meeting._sent[stage][rank], meeting._sent[stage + 1][rank]

    def all_reduce(self, x: Float32) -> Float32:
        total, *others = self._exchange(x)
        total = total.copy()
        for other in others:
            total += other
        return total

    def all_gather(self, x: Float32, widths: Sequence[int]) -> Float32:
        found = self._exchange(x)
        assert [part.shape[1] for part in found] == list(widths)
        return np.concatenate(found, axis=1)

    def send(self, x: Float32) -> None:
        self._to.put(x.copy())

    def receive(self, shape: tuple[int, int]) -> Float32:
        x = self._from.get()
        if x is None:
            raise threading.BrokenBarrierError
        assert x.shape == shape
        return x

    def _exchange(self, x: Float32) -> list[Float32]:
        self._brought[self._rank] = x.copy()
        self._barrier.wait()
        found = [part for part in self._brought if part is not None]
        self._barrier.wait()  # nobody brings the next before all have taken this
        return found


def batch_of(batch: Batch, whole: Plan, part: Plan) -> Batch:
    """The batch of a whole plan, as a part of it reads it: with the tables of its own cache groups."""
    group_of = {cache.id: index for index, group in enumerate(whole.groups) for cache in group.caches}
    tables = tuple(batch.tables[group_of[group.caches[0].id]] for group in part.groups)
    if any(isinstance(op, Embed) for op in part.ops):
        return replace(batch, tables=tables)
    nothing = np.zeros_like(batch.tokens)  # a later stage embeds no tokens
    return replace(batch, tables=tables, tokens=nothing, embeddings=None, embedding_rows=None)


def weights_of(split: Split, rank: int, weights: Weights) -> dict[str, Sequence[Tensor]]:
    """A rank's weights. Rows are views of what is stored; columns are copied."""
    found: dict[str, Sequence[Tensor]] = {}
    for weight in split.plans[rank].weights:
        part = split.parts.get(weight.name)
        if part is None:
            found[weight.name] = weights[weight.name]
        elif part.axis == 0:
            size = int(np.prod(weight.shape[1:-1], dtype=np.int64)) if len(weight.shape) > 1 else 1
            found[weight.name] = _rows(weights[part.name], part.start * size, part.stop * size)
        else:
            found[weight.name] = [tensor.columns(part.start, part.stop) for tensor in weights[part.name]]
    return found


def _rows(tensors: Sequence[Tensor], start: int, stop: int) -> list[Tensor]:
    """Rows of a weight, whose rows may lie in several tensors; or elements of a vector."""
    found, at = [], 0
    for tensor in tensors:
        if len(tensor.shape) == 1:
            size = tensor.dtype.block_bytes
            data = tensor.data[start * size : stop * size]
            return [Tensor(tensor.name, tensor.dtype, (stop - start,), data)]
        low, high = max(start - at, 0), min(stop - at, tensor.row_count)
        if low < high:
            found.append(tensor.rows(low, high))
        at += tensor.row_count
    return found
