"""Runs sequences through a program in any schedule of batches, over page tables in no particular order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from olivine import models
from olivine.backends import Batch, Program
from olivine.backends.cpu import CpuProgram
from olivine.backends.reference import ReferenceProgram
from olivine.formats import open_checkpoint

PAGE = 4


def build(path: Path) -> models.Model:
    checkpoint = open_checkpoint(path)
    return models.build(checkpoint.architecture, checkpoint.naming, checkpoint.metadata, checkpoint.tensors)


def reference(path: Path, pages: int = 96, model: models.Model | None = None) -> ReferenceProgram:
    model = build(path) if model is None else model
    counts = [pages] * len(model.plan.groups)
    return ReferenceProgram(model.plan, model.weights, page_counts=counts, page_size=PAGE)


class Session:
    """Sequences with page tables, shuffled so that a kernel that ignores them is wrong."""

    def __init__(self, program: Program, sequences: int, length: int, seed: int = 0) -> None:
        self.program = program
        rng = np.random.default_rng(seed)
        pages = -(-length // program.page_size)
        self.tables = tuple(
            rng.permutation(count)[: sequences * pages].reshape(sequences, pages).astype(np.int32)
            for count in program.page_counts
        )
        self.position = [0] * sequences

    def batch(self, parts: Iterable[tuple[int, Sequence[int], bool]]) -> Batch:
        """The next tokens of some sequences, as (sequence, tokens, whether they count as generated)."""
        tokens, sequences, positions, generated = [], [], [], []
        for sequence, part, kind in parts:
            start = self.position[sequence]
            tokens += list(part)
            sequences += [sequence] * len(part)
            positions += range(start, start + len(part))
            generated += [kind] * len(part)
            self.position[sequence] += len(part)
        return Batch(
            tokens=np.array(tokens, np.int32),
            sequences=np.array(sequences, np.int32),
            positions=np.array(positions, np.int32),
            outputs=np.arange(len(tokens), dtype=np.int32),
            tables=self.tables,
            generated=np.array(generated, np.bool_),
        )

    def step_mixed(self, parts: Sequence[tuple[int, Sequence[int], bool]]) -> list[np.ndarray]:
        """Runs the parts as one batch; gives each part's logits [tokens, V]."""
        logits = self.program.step(self.batch(parts)).logits
        return np.split(logits, np.cumsum([len(part) for _, part, _ in parts])[:-1])

    def step(self, parts: Iterable[tuple[int, Sequence[int]]], generated: bool = False) -> list[np.ndarray]:
        return self.step_mixed([(sequence, tokens, generated) for sequence, tokens in parts])


def chunked(
    program: Program, tokens: Sequence[int], sizes: Sequence[int], seed: int = 0, generated: bool = False
) -> np.ndarray:
    """One sequence in chunks of the given sizes, which are repeated until the tokens run out."""
    session = Session(program, 1, len(tokens), seed)
    rest, logits, turn = list(tokens), [], 0
    while rest:
        size = sizes[turn % len(sizes)]
        logits += session.step([(0, rest[:size])], generated)
        rest, turn = rest[size:], turn + 1
    return np.concatenate(logits)


def greedy(path: Path, prompt: Sequence[int], count: int) -> tuple[list[int], np.ndarray]:
    """The likeliest tokens after a prompt, one by one on the CPU, and the logits of each [count, V]."""
    model = build(path)
    pages = [-(-(len(prompt) + count) // 16) + 1] * len(model.plan.groups)
    program = CpuProgram(model.plan, model.weights, page_counts=pages, threads=2)
    session = Session(program, 1, len(prompt) + count)
    logits = [session.step([(0, prompt)])[0][-1]]
    while len(logits) < count:
        logits += [session.step([(0, [int(logits[-1].argmax())])], generated=True)[0][-1]]
    return [int(row.argmax()) for row in logits], np.array(logits)
