"""Perplexity and KL divergence of two models on the same tokens."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from olivine.backends import Batch, Program

ROWS = 64  # output rows whose logits are in memory at the same time

Float64 = npt.NDArray[np.float64]


@dataclass
class Comparison:
    """Sums over the scored positions. P are A's probabilities, Q are B's."""

    positions: int = 0
    agreed: int = 0  # the likeliest token is the same
    divergence: float = 0.0  # Σ KL(P‖Q), in nats
    divergence_squared: float = 0.0
    logprobs_a: float = 0.0  # of the tokens of the text
    logprobs_b: float = 0.0

    def add(self, a: Float64, b: Float64, tokens: npt.NDArray[np.int32]) -> None:
        """Log-probabilities [R, V] of both, and the R tokens of the text."""
        rows = np.arange(len(tokens))
        each = np.maximum((np.exp(a) * (a - b)).sum(axis=1), 0.0)  # rounding can make it -1e-17
        self.positions += len(tokens)
        self.agreed += int((a.argmax(axis=1) == b.argmax(axis=1)).sum())
        self.divergence += float(each.sum())
        self.divergence_squared += float((each**2).sum())
        self.logprobs_a += float(a[rows, tokens].sum())
        self.logprobs_b += float(b[rows, tokens].sum())

    @property
    def perplexities(self) -> tuple[float, float]:
        return math.exp(-self.logprobs_a / self.positions), math.exp(-self.logprobs_b / self.positions)

    @property
    def mean_divergence(self) -> tuple[float, float]:
        """The mean KL(P‖Q) per position, and its standard error."""
        mean = self.divergence / self.positions
        spread = max(self.divergence_squared / self.positions - mean**2, 0.0)
        return mean, math.sqrt(spread / max(self.positions - 1, 1))

    @property
    def agreement(self) -> float:
        return self.agreed / self.positions


def compare_window(a: Program, b: Program, tokens: Sequence[int], found: Comparison) -> None:
    """Scores the second half of a window, each token predicted from all tokens of the window before it."""
    ids = np.array(tokens, np.int32)
    first = len(ids) // 2
    for (start, ours), (_, theirs) in zip(_logprobs(a, ids, first), _logprobs(b, ids, first), strict=True):
        found.add(ours, theirs, ids[start + 1 : start + 1 + len(ours)])


def _logprobs(program: Program, ids: npt.NDArray[np.int32], first: int) -> Iterator[tuple[int, Float64]]:
    """Log-probabilities of the next tokens at positions from `first` to the last but one, in chunks."""
    pages = -(-len(ids) // program.page_size)
    tables = tuple(np.arange(pages, dtype=np.int32).reshape(1, pages) for _ in program.page_counts)
    starts = [0, *range(first, len(ids) - 1, ROWS)]
    for start, stop in zip(starts, [*starts[1:], len(ids) - 1], strict=True):
        count = stop - start
        wanted = np.arange(count, dtype=np.int32) if start else np.zeros(0, np.int32)
        batch = Batch(
            tokens=ids[start:stop],
            sequences=np.zeros(count, np.int32),
            positions=np.arange(start, stop, dtype=np.int32),
            outputs=wanted,
            tables=tables,
        )
        logits = program.step(batch).logits.astype(np.float64)
        if start:
            logits -= logits.max(axis=1, keepdims=True)
            yield start, logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
