"""A program without a model: its logits are a hash of what a sequence's pages hold.

A page that is lost, shared wrongly or written by somebody else changes them; and it runs in no time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from olivine.backends import Batch, Draw, Drawn, Result
from olivine.engine import sampling
from olivine.plan import CacheGroup

VOCABULARY = 50
WINDOW = 6


class PagesProgram:
    """Two cache groups, one with a window."""

    page_size = 4
    chunk = 16
    one_kind = False

    def __init__(self, pages: int) -> None:
        groups = (CacheGroup(1, 1, None, ()), CacheGroup(1, 1, WINDOW, ()))
        width = SimpleNamespace(width=VOCABULARY)
        self.plan: Any = SimpleNamespace(groups=groups, logits=width, hidden=width)
        self.page_counts = (pages, pages)
        self._kv = [np.zeros((pages, self.page_size), np.int64) for _ in groups]

    def step(self, batch: Batch, *, logits: bool = True) -> Result:
        assert batch.generated is not None
        rows = zip(batch.tokens, batch.sequences, batch.positions, batch.generated, strict=True)
        for token, sequence, position, kind in rows:
            for kv, table in zip(self._kv, batch.tables, strict=True):
                page = table[sequence, position // self.page_size]
                assert page >= 0
                kv[page, position % self.page_size] = (int(token) * 2 + int(kind)) * 1009 + int(position)
        found = [self._row(batch, int(row)) for row in batch.outputs]
        hidden = np.array(found, np.float32).reshape(-1, VOCABULARY)
        return Result(hidden, hidden if logits else hidden[:, :0])

    def _row(self, batch: Batch, row: int) -> np.ndarray:
        sequence, position = int(batch.sequences[row]), int(batch.positions[row])
        seen = []
        for kv, table, group in zip(self._kv, batch.tables, self.plan.groups, strict=True):
            first = 0 if group.window is None else max(0, position - group.window + 1)
            at = np.arange(first, position + 1)
            pages = table[sequence, at // self.page_size]
            assert (pages >= 0).all()
            seen.append(kv[pages, at % self.page_size])
        return np.random.default_rng(np.concatenate(seen)).standard_normal(VOCABULARY).astype(np.float32)


class DrawingPagesProgram(PagesProgram):
    """One that draws by itself, so that steps can be chains."""

    def generate(self, batch: Batch, draws: Sequence[Draw], n: int = 1) -> list[Drawn]:
        found = [Drawn() for _ in draws]
        for step in range(n):
            positions = batch.positions[batch.outputs]
            for row, draw, position, all_of_it in zip(
                self.step(batch).logits, draws, positions, found, strict=True
            ):
                drawn = sampling.draw(row, draw, int(position) + 1)
                all_of_it.tokens += drawn.tokens
                all_of_it.logprobs += drawn.logprobs
                all_of_it.stopped, all_of_it.error = drawn.stopped, drawn.error
            if step == n - 1 or any(each.stopped or each.error is not None for each in found):
                break
            draws = [
                replace(draw, output=[*draw.output, each.tokens[-1]])
                for draw, each in zip(draws, found, strict=True)
            ]
            batch = Batch(
                np.array([each.tokens[-1] for each in found], np.int32),
                batch.sequences[batch.outputs],
                positions + np.int32(1),
                np.arange(len(draws), dtype=np.int32),
                batch.tables,
                np.ones(len(draws), bool),
            )
        return found
