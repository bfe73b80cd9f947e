"""A forward whose inputs always lie in the same places, so that its launches can be recorded as a CUDA graph.

To launch its kernels one by one takes the host some 20 ms, whatever the GPU has to do; a graph, next to
nothing. Rows are filled up to a number that many batches share: what a row gives does not depend on others.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from olivine.backends.base import Batch
from olivine.backends.cuda.kernels.decode_attention import Scratch
from olivine.backends.cuda.kernels.prefill_attention import prefill_tiles
from olivine.backends.cuda.steps import Rows

if TYPE_CHECKING:
    from olivine.backends.cuda.program import CudaProgram

TOGETHER = 128  # prompt rows beyond these come in multiples of them: products take so many at once
GENERATED = 64  # rows of a part at most, because each needs room for all its splits
MOST_ROWS, MOST_OUTPUTS = 4096, 64  # that are recorded

_RECORDING = threading.Lock()  # there is one stream to record on, for all programs


@dataclass(frozen=True)
class Shape:
    """All that the launches of a forward depend on."""

    rows: int
    prompt: bool  # whether they are of prompts; otherwise they are generated
    outputs: int | None  # rows whose results are wanted; None: all, in their order
    tiles: int  # of prompt attention
    end: int  # that no generated row's position reaches
    alone: bool  # whether each generated row is the only one of its sequence
    tables: tuple[tuple[int, ...], ...]
    logits: bool = True

    @property
    def worth_recording(self) -> bool:
        outputs = self.rows if self.outputs is None else self.outputs
        return self.rows <= MOST_ROWS and outputs <= MOST_OUTPUTS


def power_of_two(count: int) -> int:
    """The least that is no smaller."""
    return 1 << (count - 1).bit_length() if count else 0


def _rounded(count: int, step: int) -> int:
    """Up to a power of two, and beyond `step` up to a multiple of it."""
    return power_of_two(count) if count <= step else count + -count % step


def end_after(position: int) -> int:
    """An end of positions for the grids of attention: powers of two keep the shapes few."""
    return max(256, 1 << position.bit_length())


@dataclass(frozen=True)
class MicroBatch:
    """Rows of a batch that run together: all of prompts or all generated, by sequence and position."""

    rows: np.ndarray  # which of the batch's they are
    prompt: bool
    tiles: np.ndarray  # of prompt attention
    outputs: np.ndarray  # which of these rows are wanted
    places: np.ndarray  # where among the batch's results those belong

    def shape(self, batch: Batch, logits: bool) -> Shape:
        count, sequences = len(self.rows), batch.sequences[self.rows].tolist()
        every = not self.prompt and np.array_equal(self.outputs, np.arange(count))
        return Shape(
            rows=max(16, _rounded(count, TOGETHER)) if self.prompt else power_of_two(count),
            prompt=self.prompt,
            outputs=None if every else _rounded(len(self.outputs), MOST_OUTPUTS),
            tiles=power_of_two(len(self.tiles)),
            end=0 if self.prompt else end_after(int(batch.positions[self.rows].max())),
            alone=not self.prompt and len(set(sequences)) == count,
            tables=tuple(table.shape for table in batch.tables),
            logits=logits,
        )


def micro_batches(batch: Batch) -> Iterator[MicroBatch]:
    """The batch in parts that run one after another: a row comes no earlier than those that it attends to."""
    count = len(batch.tokens)
    if not count:
        return
    generated = np.zeros(count, bool) if batch.generated is None else np.asarray(batch.generated, bool)
    order = np.lexsort((batch.positions, batch.sequences))
    kinds, owners = generated[order], np.asarray(batch.sequences)[order]
    first = np.append(True, owners[1:] != owners[:-1])
    changes = np.cumsum(np.append(False, kinds[1:] != kinds[:-1]) & ~first)
    # Even turns are of prompts. A sequence begins with 0 or 1, and where the kind changes it waits a turn.
    begins = np.flatnonzero(first)[np.cumsum(first) - 1]
    turns = changes - changes[begins] + kinds[begins]
    outputs = np.asarray(batch.outputs, np.int64)
    place_of = np.full(count, -1)
    for turn in range(int(turns.max()) + 1):
        rows, prompt = order[turns == turn], turn % 2 == 0
        for part in [rows] if prompt else np.split(rows, range(GENERATED, len(rows), GENERATED)):
            if not len(part):
                continue
            place_of[:] = -1
            place_of[part] = np.arange(len(part))
            places = np.flatnonzero(place_of[outputs] >= 0)
            tiles = (
                prefill_tiles(batch.sequences[part], batch.positions[part]) if prompt else np.zeros((0, 2))
            )
            yield MicroBatch(part, prompt, tiles, place_of[outputs[places]], places)


@contextmanager
def recorded(program: CudaProgram, graph: torch.cuda.CUDAGraph) -> Iterator[None]:
    """What is launched within becomes the graph. Other threads may go on with other programs meanwhile."""
    memory = program.graph_memory()
    with _RECORDING, torch.cuda.graph(graph, pool=memory, capture_error_mode="thread_local"):
        yield


class Forward:
    """Forwards of one shape: their inputs, and after the first one the graph."""

    def __init__(self, program: CudaProgram, shape: Shape) -> None:
        self._program, self._shape = program, shape
        self._scratch = Scratch(program.device)
        self._graph: torch.cuda.CUDAGraph | None = None
        self._results: tuple[torch.Tensor, torch.Tensor | None] | None = None
        self._has_run = False

        def ints(*size: int) -> torch.Tensor:
            return torch.zeros(size, dtype=torch.int32, device=program.device)

        self.tokens, self.positions, self.sequences = ints(shape.rows), ints(shape.rows), ints(shape.rows)
        self._tables = [ints(*size) for size in shape.tables]
        self._tiles = ints(shape.tiles, 2) if shape.prompt else None
        self._outputs = None if shape.outputs is None else ints(shape.outputs)

    def fill(
        self,
        tokens: np.ndarray,
        sequences: np.ndarray,
        positions: np.ndarray,
        tables: Sequence[np.ndarray],
        outputs: np.ndarray | None = None,
        tiles: np.ndarray | None = None,
    ) -> None:
        """Rows that are too few are followed by some that are nowhere."""
        put(self.tokens, tokens)
        put(self.sequences, sequences)
        put(self.positions, positions, -1)
        for target, table in zip(self._tables, tables, strict=True):
            put(target, table)
        if self._outputs is not None and outputs is not None:
            put(self._outputs, outputs)
        if self._tiles is not None and tiles is not None:
            put(self._tiles, tiles)

    def results(self) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Hidden states and logits, which are there until anything else of the program runs.

        The first time, kernel by kernel: some are compiled. From then on there is a graph.
        """
        on_gpu = self._program.device.type == "cuda"
        if not self._has_run or not (on_gpu and self._program.records and self._shape.worth_recording):
            found = self.run()
            self._has_run = True
            return found
        if self._graph is None:
            graph = torch.cuda.CUDAGraph()
            with recorded(self._program, graph):
                self._results = self.run()
            self._graph = graph
        self._graph.replay()
        assert self._results is not None
        return self._results

    def run(
        self, injected: tuple[torch.Tensor, torch.Tensor] | None = None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Kernel by kernel."""
        shape, plan = self._shape, self._program.plan
        rows = Rows(
            tokens=self.tokens,
            positions=self.positions,
            sequences=self.sequences,
            outputs=self._outputs,
            tables=self._tables,
            prompt=shape.prompt,
            tiles=self._tiles,
            longest=shape.end - 1,
            scratch=self._scratch,
            alone=shape.alone,
            injected=injected,
        )
        self._program.run(rows, shape.logits)
        return rows.values[plan.hidden.id], rows.values.get(plan.logits.id)


def put(target: torch.Tensor, values: np.ndarray, rest: float = 0) -> None:
    """Values at the target's beginning; what is left of it becomes `rest`."""
    given = np.asarray(values)
    whole = np.full(tuple(target.shape), rest, given.dtype)
    whole.reshape(-1)[: given.size] = given.reshape(-1)
    target.copy_(torch.from_numpy(whole).to(target.dtype))
