"""Embeddings: hidden states of the prompt, pooled."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from olivine.checks import Check, one_of
from olivine.engine.jobs.base import OUTPUT_ROWS, Job, Outcome
from olivine.engine.updates import Update

if TYPE_CHECKING:
    from olivine.engine.sequence import Sequence
    from olivine.engine.step import Chunk


@dataclass
class Embed(Job[npt.NDArray[np.float32]]):
    """The prompt's hidden states after the final norm: their mean, or the last one."""

    hidden: ClassVar[bool] = True

    pooling: Literal["mean", "last"] = "mean"
    _sum: npt.NDArray[np.float64] | float = field(
        init=False, repr=False, compare=False, default=0.0
    )  # of the rows so far

    def checks(self, vocabulary: int) -> dict[str, Check]:
        return {"pooling": one_of("mean", "last")}

    def restart(self) -> None:
        self._sum = 0.0

    def reusable(self, sequence: Sequence) -> int:
        return 0 if self.pooling == "mean" else super().reusable(sequence)

    def chunk_limit(self, sequence: Sequence) -> int:
        return OUTPUT_ROWS if self.pooling == "mean" else sequence.pending

    def outputs(self, sequence: Sequence, start: int, end: int) -> list[int]:
        return list(range(start, end)) if self.pooling == "mean" else super().outputs(sequence, start, end)

    def absorb(self, chunk: Chunk, results: npt.NDArray[np.float32]) -> Outcome:
        sequence = chunk.sequence
        sequence.computed = chunk.end
        self._sum = self._sum + results.astype(np.float64).sum(0)
        if sequence.pending:
            return Update(prefilled=sequence.computed), None
        rows = sequence.prompt_length if self.pooling == "mean" else 1
        embedding = np.asarray(self._sum / rows, np.float32)
        return Update(embedding=embedding, prefilled=sequence.computed), "stop"
