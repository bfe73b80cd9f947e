"""The ranks of a divided plan, each a thread with a program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from olivine.backends import Batch, Program, Result
from olivine.backends.base import Weights
from olivine.backends.collectives import Meeting, batch_of, weights_of
from olivine.backends.cpu import PAGE_SIZE, CpuProgram
from olivine.backends.reference import ReferenceProgram
from olivine.plan import Plan, Weight
from olivine.plan.split import split
from olivine.plan.stages import stages


def block_of(weights: Weights) -> Callable[[Weight], int]:
    return lambda weight: max(tensor.dtype.block_size for tensor in weights[weight.name])


def size_of(weights: Weights) -> Callable[[Weight], int]:
    return lambda weight: sum(tensor.nbytes for tensor in weights[weight.name])


Make = Callable[..., Program]


def reference(plan: Plan, weights: Weights, **options: Any) -> Program:
    return ReferenceProgram(plan, weights, **options)


def cpu(plan: Plan, weights: Weights, *, page_size: int, **options: Any) -> Program:
    assert page_size == PAGE_SIZE
    return CpuProgram(plan, weights, threads=1, **options)


class Together:
    """A program like any other: `count` stages of `ranks` each. All ranks must have the same result."""

    def __init__(
        self,
        plan: Plan,
        weights: Weights,
        ranks: int,
        count: int = 1,
        *,
        page_counts: Sequence[int],
        page_size: int = 16,
        make: Make = reference,
    ) -> None:
        self.plan, self.page_size, self.page_counts = plan, page_size, tuple(page_counts)
        self.splits = [
            split(stage, ranks, block_of(weights)) for stage in stages(plan, count, size_of(weights))
        ]
        self._meeting = Meeting(ranks, count)
        self._programs: list[Program] = []
        counts = {cache.id: page_counts[i] for i, group in enumerate(plan.groups) for cache in group.caches}
        for stage, found in enumerate(self.splits):
            for rank, part in enumerate(found.plans):
                self._programs.append(
                    make(
                        part,
                        weights_of(found, rank, weights),
                        collectives=self._meeting.of(rank, stage),
                        page_counts=[counts[group.caches[0].id] for group in part.groups],
                        page_size=page_size,
                    )
                )
        self._ranks = ranks

    def step(self, batch: Batch, *, logits: bool = True) -> Result:
        def run(program: Program) -> Result:
            try:
                return program.step(batch_of(batch, self.plan, program.plan), logits=logits)
            except BaseException:
                self._meeting.leave()
                raise

        with ThreadPoolExecutor(len(self._programs)) as pool:
            waiting: list[Any] = [pool.submit(run, program) for program in self._programs]
            first, *others = [each.result() for each in waiting][-self._ranks :]
        for other in others:
            np.testing.assert_array_equal(other.hidden, first.hidden)
            np.testing.assert_array_equal(other.logits, first.logits)
        return first
