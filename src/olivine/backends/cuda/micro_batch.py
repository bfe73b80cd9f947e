"""How a batch is divided into micro-batches, each all prefill or all decode, and padded to common shapes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from olivine.backends.base import Batch
from olivine.backends.cuda.kernels.prefill_attention import prefill_tiles

PREFILL_STEP = 128  # larger prefill micro-batches are padded to a multiple of this: the rows of a GEMM tile
DECODE_STEP = 64  # and larger decode micro-batches to a multiple of this: the most rows of a GEMV program
DECODE_ROWS = 256  # of a micro-batch at most, because each needs room for the partial results of its splits
MAX_ROWS, MAX_OUTPUTS = 4096, 256  # of a forward that is recorded as a graph
MAX_TOWER_ROWS = 10_240  # likewise: the largest image


@dataclass(frozen=True)
class Shape:
    """All that the launches of a forward depend on."""

    rows: int  # with padding
    prefill: bool  # otherwise decode
    outputs: int | None  # rows whose results are wanted; None: all, in their order
    tiles: int  # of prefill attention
    end: int  # above every position of a decode row
    alone: bool  # whether each decode row is the only one of its sequence
    tables: tuple[tuple[int, int], ...]
    logits: bool = True
    lengths: tuple[int, ...] = ()  # rows of each of a tower's sequences, which has no padding
    output_lengths: tuple[int, ...] = ()  # likewise of the outputs

    @property
    def worth_recording(self) -> bool:
        if self.lengths:
            return self.rows <= MAX_TOWER_ROWS
        outputs = self.rows if self.outputs is None else self.outputs
        return self.rows <= MAX_ROWS and outputs <= MAX_OUTPUTS


def power_of_two(count: int) -> int:
    """The least power of two that is no smaller; 0 for 0."""
    return 1 << (count - 1).bit_length() if count else 0


def _rounded(count: int, step: int) -> int:
    """Up to a power of two, and beyond `step` up to a multiple of it."""
    return power_of_two(count) if count <= step else count + -count % step


def decode_rows(count: int) -> int:
    """So many decode rows, or output rows, with padding."""
    return _rounded(count, DECODE_STEP)


def _runs(owners: np.ndarray) -> tuple[int, ...]:
    """How many neighbors have the same owner."""
    ends = [0, *(np.flatnonzero(np.diff(owners)) + 1).tolist(), len(owners)]
    return tuple(np.diff(ends).tolist()) if len(owners) else ()


def end_after(position: int) -> int:
    """A bound of positions for the grids of attention: powers of two, so that many batches share a shape."""
    return max(256, 1 << position.bit_length())


@dataclass(frozen=True)
class MicroBatch:
    """Rows of a batch that run together, by sequence and position."""

    rows: np.ndarray  # which of the batch's rows
    prefill: bool  # all prompt rows; otherwise all generated rows
    tiles: np.ndarray  # of prefill attention
    outputs: np.ndarray  # which of these rows are wanted
    places: np.ndarray  # where their results belong among the batch's

    def shape(self, batch: Batch, logits: bool) -> Shape:
        count = len(self.rows)
        every = not self.prefill and np.array_equal(self.outputs, np.arange(count))
        rows = max(16, _rounded(count, PREFILL_STEP)) if self.prefill else decode_rows(count)
        outputs = None if every else decode_rows(len(self.outputs))
        lengths: dict[str, tuple[int, ...]] = {}
        if is_tower(batch):
            owners, rows, outputs = batch.sequences[self.rows], count, len(self.outputs)
            lengths = {"lengths": _runs(owners), "output_lengths": _runs(owners[self.outputs])}
        return Shape(
            rows=rows,
            prefill=self.prefill,
            outputs=outputs,
            tiles=power_of_two(len(self.tiles)),
            end=0 if self.prefill else end_after(int(batch.positions[self.rows].max())),
            alone=not self.prefill and len(set(batch.sequences[self.rows].tolist())) == count,
            tables=tuple((len(table), table.shape[1]) for table in batch.tables),
            logits=logits,
            **lengths,
        )


def is_tower(batch: Batch) -> bool:
    return batch.embeddings is not None and batch.embedding_rows is None


def micro_batches(batch: Batch) -> Iterator[MicroBatch]:
    """The batch in micro-batches, to run in this order: no row comes before one that it attends to."""
    count = len(batch.tokens)
    if not count:
        return
    if is_tower(batch):  # each sequence is whole and in order
        outputs, tiles = np.asarray(batch.outputs, np.int64), prefill_tiles(batch.sequences, batch.positions)
        yield MicroBatch(np.arange(count), True, tiles, outputs, np.arange(len(outputs)))
        return
    generated = np.zeros(count, bool) if batch.generated is None else np.asarray(batch.generated, bool)
    order = np.lexsort((batch.positions, batch.sequences))
    kinds, owners = generated[order], np.asarray(batch.sequences)[order]
    first = np.append(True, owners[1:] != owners[:-1])
    changes = np.cumsum(np.append(False, kinds[1:] != kinds[:-1]) & ~first)
    # Even rounds are prefill, odd ones decode. A sequence starts in round 0 or 1, and each time its rows
    # change their kind they go to the next round.
    begins = np.flatnonzero(first)[np.cumsum(first) - 1]
    rounds = changes - changes[begins] + kinds[begins]
    outputs = np.asarray(batch.outputs, np.int64)
    place_of = np.full(count, -1)
    for at in range(int(rounds.max()) + 1):
        rows, prefill = order[rounds == at], at % 2 == 0
        for some in [rows] if prefill else np.split(rows, range(DECODE_ROWS, len(rows), DECODE_ROWS)):
            if not len(some):
                continue
            place_of[:] = -1
            place_of[some] = np.arange(len(some))
            places = np.flatnonzero(place_of[outputs] >= 0)
            tiles = np.zeros((0, 2))
            if prefill:
                tiles = prefill_tiles(batch.sequences[some], batch.positions[some])
            yield MicroBatch(some, prefill, tiles, place_of[outputs[places]], places)
