"""Forwards: a micro-batch copied into fixed inputs, so that its launches can be recorded as a CUDA graph.

Launching its kernels one by one takes the host some 20 ms, whatever the GPU has to do; replaying a graph,
next to nothing. Rows are padded to a number that many batches share: no row's result depends on the others.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from olivine.backends.base import Batch
from olivine.backends.cuda.executable import Executable
from olivine.backends.cuda.graphs import LeastRecentlyUsed
from olivine.backends.cuda.kernels.decode_attention import Scratch
from olivine.backends.cuda.micro_batch import MicroBatch, Shape, micro_batches
from olivine.backends.cuda.rows import Rows, TowerRows

Results = tuple[torch.Tensor, torch.Tensor | None]  # hidden states and, if wanted, logits
MAX_FORWARDS = 64  # that are kept with their graphs
_STAGED_ROWS = 1024  # of a tower: while the device copies these, the host copies the next


class Forward:
    """Forwards of one shape: their inputs, and after the first one the graph."""

    def __init__(self, executable: Executable, shape: Shape) -> None:
        self._executable, self._shape = executable, shape
        self._scratch = Scratch(executable.device)
        self._graph: torch.cuda.CUDAGraph | None = None
        self._results: Results | None = None
        self._has_run = False
        self._kept = KeptInputs()

        def ints(*size: int) -> torch.Tensor:
            return torch.zeros(size, dtype=torch.int32, device=executable.device)

        self.tokens, self.positions, self.sequences = ints(shape.rows), ints(shape.rows), ints(shape.rows)
        # Rows of a multiple of 16, or kernels would be compiled once more for a context that is none.
        self._tables = [ints(count, pages + -pages % 16) for count, pages in shape.tables]
        self._tiles = ints(shape.tiles, 2) if shape.prefill else None
        self._outputs = None if shape.outputs is None else ints(shape.outputs)
        self._last: torch.Tensor | None = None
        reader = executable.plan.input
        if reader is not None:
            self._last, self._coordinates = ints(shape.rows), ints(shape.rows, 2)
            self._embeddings = torch.zeros((shape.rows, reader.out.width), device=executable.device)
            # From pinned memory the device copies an image several times as fast.
            on_gpu = executable.device.type == "cuda"
            self._staged = torch.zeros(self._embeddings.shape, pin_memory=on_gpu)
            self._given: list[np.ndarray] = []

    def fill(
        self,
        tokens: np.ndarray,
        sequences: np.ndarray,
        positions: np.ndarray,
        tables: Sequence[np.ndarray],
        outputs: np.ndarray | None = None,
        tiles: np.ndarray | None = None,
    ) -> None:
        """Copies the inputs to the device; the rows that are left over become padding, at position -1."""
        put(self.tokens, tokens)
        put(self.positions, positions, -1)
        self._kept.put(self.sequences, sequences)
        for target, table in zip(self._tables, tables, strict=True):
            more = target.shape[1] - table.shape[1]
            self._kept.put(target, np.pad(table, ((0, 0), (0, more))) if more else table)
        if self._outputs is not None and outputs is not None:
            self._kept.put(self._outputs, outputs)
        if self._tiles is not None and tiles is not None:
            self._kept.put(self._tiles, tiles)

    def fill_tower(self, batch: Batch, part: MicroBatch) -> None:
        """Copies what a tower reads, unless it is there from the image before."""
        assert self._last is not None and batch.embeddings is not None
        rows, last, at = len(part.rows), batch.last, batch.coordinates
        last = batch.positions if last is None else last
        at = np.zeros((0, 2), np.int32) if at is None else at
        filled = (batch.tokens, batch.sequences, batch.positions, batch.tables, part.outputs, part.tiles)
        given = [*filled[:3], *batch.tables, part.outputs, part.tiles, last, at]
        if not self._given or not all(map(np.array_equal, self._given, given)):
            self.fill(*filled)
            put(self._last, last, -1)
            put(self._coordinates, at)
            self._given = [array.copy() for array in given]
        for start in range(0, rows, _STAGED_ROWS):
            piece = slice(start, min(rows, start + _STAGED_ROWS))
            self._staged[piece].copy_(torch.from_numpy(batch.embeddings[piece]))
            self._embeddings[piece].copy_(self._staged[piece], non_blocking=True)

    def results(self) -> Results:
        """Runs; what it returns is valid until anything else of the program runs.

        The first time kernels are launched one by one, because some are compiled; then there is a graph.
        """
        recorder = self._executable.recorder
        if not self._has_run or not (recorder.enabled and self._shape.worth_recording):
            found = self.run()
            self._has_run = True
            return found
        if self._graph is None:
            self._graph, self._results = recorder.record(self.run)
        self._graph.replay()
        assert self._results is not None
        return self._results

    def run(
        self,
        injected: tuple[torch.Tensor, torch.Tensor] | None = None,
        last: torch.Tensor | None = None,
    ) -> Results:
        """Launches the kernels one by one. Soft tokens, which have embeddings in place of tokens, and what
        they see are no inputs of a graph: batches with media are rare."""
        shape = self._shape
        tower = self._last is not None
        rows = Rows(
            tokens=self.tokens,
            positions=self.positions,
            sequences=self.sequences,
            outputs=self._outputs,
            tables=self._tables,
            prefill=shape.prefill,
            tiles=self._tiles,
            max_position=shape.end - 1,
            scratch=self._scratch,
            alone=shape.alone,
            injected=injected,
            last=self._last if tower else last,
            tower=self._tower_rows() if tower else None,
            slabs=self._executable.slabs(len(self.tokens)),
        )
        return self._executable.run(rows, shape.logits)

    def _tower_rows(self) -> TowerRows:
        shape = self._shape
        return TowerRows(self._embeddings, self._coordinates, shape.lengths, shape.output_lengths)


class Forwards:
    """Runs batches, a micro-batch at a time; forwards of the shapes used last are kept."""

    def __init__(self, executable: Executable) -> None:
        self._executable = executable
        self._kept: LeastRecentlyUsed[Shape, Forward] = LeastRecentlyUsed(MAX_FORWARDS)

    def results(self, batch: Batch, logits: bool = True) -> Results:
        """Of the output rows, in the order of the batch; left on the device until the next call."""
        parts = list(micro_batches(batch))
        if len(parts) == 1:
            return self._run(batch, parts[0], logits)
        # The results of a micro-batch are overwritten when the next one runs.
        plan, device, count = self._executable.plan, self._executable.device, len(batch.outputs)
        hidden = torch.zeros((count, plan.hidden.width), device=device)
        found = torch.zeros((count, plan.logits.width if logits else 0), device=device)
        for part in parts:
            some_hidden, some_logits = self._run(batch, part, logits)
            places = self._put(part.places)
            hidden.index_copy_(0, places, some_hidden)
            if some_logits is not None:
                found.index_copy_(0, places, some_logits)
        return hidden, found if logits else None

    def logits(self, batch: Batch) -> torch.Tensor:
        """As `results`."""
        logits = self.results(batch)[1]
        assert logits is not None
        return logits

    def _run(self, batch: Batch, part: MicroBatch, logits: bool) -> Results:
        shape = part.shape(batch, logits)
        if shape.worth_recording:
            forward = self._kept.get(shape, lambda: Forward(self._executable, shape))
        else:
            forward = Forward(self._executable, shape)
        if shape.lengths:
            forward.fill_tower(batch, part)
            hidden, found = forward.results()
        else:
            at = part.rows
            forward.fill(
                batch.tokens[at],
                batch.sequences[at],
                batch.positions[at],
                batch.tables,
                part.outputs,
                part.tiles,
            )
            injected, last = self._injected(batch, part), self._last(batch, part, shape)
            plain = injected is None and last is None
            hidden, found = forward.results() if plain else forward.run(injected, last)
        wanted = len(part.outputs)
        return hidden[:wanted], None if found is None else found[:wanted]

    def _injected(self, batch: Batch, part: MicroBatch) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Which of the micro-batch's rows have embeddings in place of tokens, and those."""
        if batch.embedding_rows is None or batch.embeddings is None:
            return None
        place = np.full(len(batch.tokens), -1, np.int64)
        place[part.rows] = np.arange(len(part.rows))
        rows = place[np.asarray(batch.embedding_rows, np.int64)]
        given = np.ascontiguousarray(batch.embeddings[rows >= 0], np.float32)
        return (self._put(rows[rows >= 0]), self._put(given)) if len(given) else None

    def _last(self, batch: Batch, part: MicroBatch, shape: Shape) -> torch.Tensor | None:
        """The last position that each of the micro-batch's rows sees; None where that is its own."""
        if batch.last is None or not part.prefill:
            return None
        last = batch.last[part.rows]
        if np.array_equal(last, batch.positions[part.rows]):
            return None
        padding = np.full(shape.rows - len(last), -1, np.int32)
        return self._put(np.concatenate([last, padding]).astype(np.int32))

    def _put(self, array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(array).to(self._executable.device)


def put(target: torch.Tensor, values: np.ndarray, rest: float = 0) -> None:
    """Copies values to the beginning of the target, and `rest` to all after them."""
    target.copy_(torch.from_numpy(_filled(target, values, rest)).to(target.dtype))


class KeptInputs:
    """Inputs that only the host changes. What is there already is not copied again: between two chains the
    device waits for the host."""

    def __init__(self) -> None:
        self._there: dict[int, np.ndarray] = {}

    def put(self, target: torch.Tensor, values: np.ndarray, rest: float = 0) -> None:
        """As `put`."""
        whole, key = _filled(target, values, rest), id(target)
        if key not in self._there or not np.array_equal(self._there[key], whole):
            self._there[key] = whole
            target.copy_(torch.from_numpy(whole).to(target.dtype))


def _filled(target: torch.Tensor, values: np.ndarray, rest: float) -> np.ndarray:
    given = np.asarray(values)
    whole = np.full(tuple(target.shape), rest, given.dtype)
    whole.reshape(-1)[: given.size] = given.reshape(-1)
    return whole
