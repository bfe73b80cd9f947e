"""Decode without the host: a step with its sampling is one CUDA graph, replayed once a token."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from olivine.backends.base import BROKEN, NOTHING_LEGAL, Batch, Draw, Drawn, TokenLogprobs
from olivine.backends.cuda.executable import Executable
from olivine.backends.cuda.forward import Forward, KeptInputs, put
from olivine.backends.cuda.graphs import LeastRecentlyUsed
from olivine.backends.cuda.kernels import advance, sampling
from olivine.backends.cuda.kernels.adjust import RING, Adjustments
from olivine.backends.cuda.kernels.advance import STOPS, RowState
from olivine.backends.cuda.kernels.reports import TOPS, Reports
from olivine.backends.cuda.kernels.sampling import Choices, Workspace, needs_histogram
from olivine.backends.cuda.micro_batch import Shape, decode_rows, end_after
from olivine.errors import RequestError

MAX_CHAINS = 32  # that are kept with their graphs
MAX_TOKENS = 1024  # that a chain writes before the host reads them
_ERRORS = {advance.BROKEN: BROKEN, advance.NOTHING: NOTHING_LEGAL}


def fits_chain(draw: Draw) -> bool:
    """Whether a chain can draw it without the host."""
    fits = (draw.sampling.repeat_last_n or 0) < RING and len(draw.stop) <= STOPS
    return (draw.logprobs or 0) <= TOPS and draw.forced is None and fits


def is_adjusted(draw: Draw) -> bool:
    """Whether logits change before they are filtered: bias, penalties, a mask, stop tokens held back."""
    s = draw.sampling
    return (
        s.repetition_penalty != 1
        or bool(s.frequency_penalty or s.presence_penalty or s.logit_bias)
        or draw.mask is not None
        or draw.at_least > 0
    )


@dataclass(frozen=True)
class ChainKind:
    """All that the launches of a chain depend on."""

    shape: Shape
    sampled: bool  # some row has a temperature; otherwise all take the argmax
    by_histogram: bool  # `needs_histogram` of some row
    adjusted: bool  # `is_adjusted` of some row
    masked: bool  # a grammar's mask arrives on the host while the first forward runs
    reported: bool = False  # some row wants log-probabilities

    @staticmethod
    def of(batch: Batch, draws: Sequence[Draw], n: int, vocabulary: int) -> ChainKind:
        """For n tokens after each output row of the batch."""
        rows, sequences = len(batch.outputs), batch.sequences[batch.outputs].tolist()
        shape = Shape(
            rows=decode_rows(rows),
            prefill=False,
            outputs=None,
            tiles=0,
            end=end_after(int(batch.positions[batch.outputs].max()) + n - 1),
            alone=len(set(sequences)) == rows,
            tables=tuple((len(table), table.shape[1]) for table in batch.tables),
        )
        return ChainKind(
            shape,
            sampled=any(draw.sampling.temperature > 0 for draw in draws),
            by_histogram=any(needs_histogram(draw.sampling, vocabulary) for draw in draws),
            adjusted=any(is_adjusted(draw) for draw in draws),
            masked=any(draw.mask is not None for draw in draws),
            reported=any(draw.logprobs is not None for draw in draws),
        )


class Chain:
    """Decode rows of a shape: their state on the device, and the graph that adds a token to each."""

    def __init__(
        self, executable: Executable, kind: ChainKind, space: Workspace, reports: Reports | None
    ) -> None:
        device, rows = executable.device, kind.shape.rows
        self._recorder, self._count, self._kind = executable.recorder, rows, kind
        self._vocabulary = executable.plan.logits.width
        self._forward, self._kept = Forward(executable, kind.shape), KeptInputs()

        self._choices = Choices.empty(rows, device)
        self._space = space
        self._rows = RowState.empty(rows, MAX_TOKENS, device)._replace(
            positions=self._forward.positions, inputs=self._forward.tokens
        )
        self._reports = None if reports is None else reports.with_room(MAX_TOKENS)
        self._adjustments = Adjustments(rows, self._vocabulary, device) if kind.adjusted else None
        self._graphs: list[torch.cuda.CUDAGraph] = []  # one of a step; of a masked chain, forward and draw
        self._logits: torch.Tensor | None = None  # where the forward of a masked chain leaves them
        self._draws: Sequence[Draw] = ()
        self._masks_wanted = False  # they are still to be taken
        self._refused: dict[int, str] = {}
        self._active = 0

    def begin(
        self,
        tokens: np.ndarray,
        sequences: np.ndarray,
        positions: np.ndarray,
        tables: Sequence[np.ndarray],
        draws: Sequence[Draw],
    ) -> None:
        """One row a draw; padding rows are stopped from the start."""
        self._active = len(draws)
        self._draws, self._refused, self._masks_wanted = draws, {}, self._kind.masked
        self._forward.fill(tokens, sequences, positions, tables)
        put(self._rows.ends, np.full(len(draws), advance.OPEN), advance.STOPPED)
        self._rows.step.zero_()
        how = [draw.sampling for draw in draws]
        self._kept.put(self._choices.temperature, np.array([s.temperature for s in how], np.float32))
        self._kept.put(self._choices.top_k, np.array([min(s.top_k, self._vocabulary) for s in how]))
        self._kept.put(self._choices.top_p, np.array([s.top_p for s in how], np.float64), 1.0)
        logs = [math.log(s.min_p) if s.min_p > 0 else -math.inf for s in how]
        self._kept.put(self._choices.log_min_p, np.array(logs, np.float32), -math.inf)
        seeds = np.array([s.seed for s in how], np.uint64).view(np.uint32).reshape(-1, 2)
        self._kept.put(self._choices.seed, seeds.view(np.int32))
        stops = np.full((self._count, STOPS), -1, np.int32)
        for row, draw in enumerate(draws):
            stops[row, : len(draw.stop)] = np.asarray(draw.stop, np.int32)
        self._kept.put(self._rows.stops, stops)
        self._kept.put(self._rows.stop_count, np.array([len(draw.stop) for draw in draws]))
        if self._adjustments is not None:
            self._adjustments.begin(draws)

    def draw_from(self, logits: torch.Tensor) -> None:
        """Draws from logits that another forward computed."""
        if len(logits) < self._count:
            logits = torch.cat([logits, logits.new_zeros((self._count - len(logits), logits.shape[1]))])
        self._take_masks()
        self._draw(logits)

    def go(self, n: int) -> list[Drawn]:
        """Draws n more tokens, fewer where a row ends; returns everything drawn since `begin`."""
        done = 0
        tokens: list[list[int]] = [[] for _ in range(self._active)]
        logprobs: list[list[TokenLogprobs]] = [[] for _ in range(self._active)]
        while True:
            more = min(n - done, MAX_TOKENS - 1)
            for _ in range(more):
                self._advance_once()
            done += more
            counts, ends, drawn = (
                self._rows.step.cpu().numpy(),
                self._rows.ends.cpu().numpy(),
                self._rows.drawn.cpu().numpy(),
            )
            reported = self._reported(counts)
            for row in range(self._active):
                tokens[row] += drawn[row, : counts[row]].tolist()
                logprobs[row] += reported[row]
            if done >= n or (ends[: self._active] != advance.OPEN).all():
                break
            self._rows.step.zero_()
        return [
            Drawn(error=self._refused[row])
            if row in self._refused
            else Drawn(
                tokens[row], int(ends[row]) == advance.STOPPED, logprobs[row], _ERRORS.get(int(ends[row]))
            )
            for row in range(self._active)
        ]

    def _reported(self, counts: np.ndarray) -> list[list[TokenLogprobs]]:
        """Log-probabilities of so many of the last tokens of each row, where they are wanted."""
        if self._reports is None:
            return [[] for _ in self._draws]
        wanted = [0 if draw.logprobs is None else draw.logprobs for draw in self._draws]
        asked = [0 if draw.logprobs is None else int(counts[row]) for row, draw in enumerate(self._draws)]
        return self._reports.read(asked, [min(n, self._vocabulary) for n in wanted])

    def _take_masks(self) -> None:
        """Waits for the masks of the first draw, while the device still computes its logits."""
        if not self._masks_wanted:
            return
        masks: list[np.ndarray | None] = []
        for row, draw in enumerate(self._draws):
            try:
                masks.append(draw.legal(self._vocabulary))
            except RequestError as error:
                masks.append(None)
                self._refused[row] = str(error)
                self._rows.ends[row] = advance.STOPPED
        assert self._adjustments is not None
        self._adjustments.take_masks(masks)
        self._masks_wanted = False

    def _advance_once(self) -> None:
        if not self._recorder.enabled:
            logits = self._step_logits()
            self._take_masks()
            self._draw(logits)
            return
        if not self._graphs:
            self._capture()
        self._graphs[0].replay()
        if self._kind.masked:
            self._take_masks()
            self._graphs[1].replay()

    def _capture(self) -> None:
        """Runs once, so that all kernels are compiled, with every row stopped, so that none changes; then
        records."""
        state = (self._rows.positions, self._rows.ends, self._rows.step, self._rows.inputs)
        kept = [tensor.clone() for tensor in state]
        self._rows.positions.fill_(-1)
        self._rows.ends.fill_(advance.STOPPED)
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self.launch()
        torch.cuda.current_stream().wait_stream(stream)
        if self._kind.masked:
            forward, logits = self._recorder.record(self._step_logits)
            self._logits = logits  # which the first graph leaves to the second
            draw, _ = self._recorder.record(lambda: self._draw(logits))
            self._graphs = [forward, draw]
        else:
            step, _ = self._recorder.record(self.launch)
            self._graphs = [step]
        for tensor, before in zip(state, kept, strict=True):
            tensor.copy_(before)

    def launch(self) -> None:
        """Launches the kernels of a step one by one, without waiting for masks."""
        self._draw(self._step_logits())

    def _step_logits(self) -> torch.Tensor:
        logits = self._forward.run()[1]
        assert logits is not None
        return logits

    def _draw(self, logits: torch.Tensor) -> None:
        kind = self._kind
        sampling.choose(
            logits, self._choices, self._rows, self._space, sampled=kind.sampled,
            by_histogram=kind.by_histogram, reports=self._reports, adjustments=self._adjustments,
        )  # fmt: skip


class Chains:
    """Chains of the kinds used last. Those of as many rows share what sampling needs only while it draws: of
    256 rows and 262,144 tokens it is half a gigabyte, and as much for log-probabilities."""

    def __init__(self, executable: Executable) -> None:
        self._executable = executable
        self._kept: LeastRecentlyUsed[ChainKind, Chain] = LeastRecentlyUsed(MAX_CHAINS)
        self._spaces: dict[int, Workspace] = {}
        self._reports: dict[int, Reports] = {}

    def get(self, batch: Batch, draws: Sequence[Draw], n: int) -> Chain:
        """One for n tokens after each output row of the batch."""
        return self.of(ChainKind.of(batch, draws, n, self._executable.plan.logits.width))

    def of(self, kind: ChainKind) -> Chain:
        return self._kept.get(kind, lambda: self._made(kind))

    def _made(self, kind: ChainKind) -> Chain:
        rows = kind.shape.rows
        size = rows, self._executable.plan.logits.width, self._executable.device
        if rows not in self._spaces:
            self._spaces[rows] = Workspace.empty(*size)
        if kind.reported and rows not in self._reports:
            self._reports[rows] = Reports.empty(*size)
        reports = self._reports[rows] if kind.reported else None
        return Chain(self._executable, kind, self._spaces[rows], reports)
