"""Divided plans on the CPU backend, with threads as ranks."""

from __future__ import annotations

from pathlib import Path
from random import Random
from threading import BrokenBarrierError
from typing import Any

import numpy as np
import pytest

from olivine.backends.collectives import Meeting, weights_of
from olivine.backends.cpu import CpuProgram
from olivine.errors import ModelError, OlivineError
from olivine.plan.split import split
from oracles import agreeing, published, random_plans, ranks, running


@pytest.mark.parametrize(("tensor", "pipeline"), [(2, 1), (3, 1), (1, 2), (2, 2)])
def test_plans_by_chance_agree_with_the_reference(tensor: int, pipeline: int) -> None:
    """Within what the roundings of the whole plan explain: summands are not rounded."""
    told: list[bool] = []

    def check(case: random_plans.Case) -> None:
        expected = agreeing.Expected(case, int8=True)
        try:
            program = ranks.Together(
                case.plan,
                case.weights,
                tensor,
                pipeline,
                page_counts=case.pages,
                page_size=32,
                make=ranks.cpu,
            )
        except OlivineError as error:
            assert "can be cut at" in str(error)
            return
        told.append(expected.informative() and not expected.undecided())
        if told[-1]:
            found = expected.disagreement(case.run(program))  # type: ignore[arg-type]
            assert found is None, f"divided, it is {found}"

    random_plans.check_each(check, random_plans.LARGE, 15, 100 * tensor + pipeline)
    assert sum(told) >= 5, "too few plans say something"


def test_rows_have_the_same_bits_in_any_chunk(tmp_path: Path) -> None:
    """Three ranks: sums of two would be the same in any order."""
    folder = published.save(published.case("qwen3moe-normalized").make(), tmp_path)
    model = running.build(folder)
    options: dict[str, Any] = {
        "page_counts": [8] * len(model.plan.groups),
        "page_size": 32,
        "make": ranks.cpu,
    }
    tokens = list(range(2, 40))
    found = [
        running.chunked(ranks.Together(model.plan, model.weights, 3, **options), tokens, sizes)  # type: ignore[arg-type]
        for sizes in ([38], [5, 1, 9])
    ]
    np.testing.assert_array_equal(found[0], found[1])


def test_a_part_alone_is_refused() -> None:
    case = random_plans.make(Random(1).randint, random_plans.LARGE)
    found = split(case.plan, 2)
    with pytest.raises(ModelError, match="rank 0 of 2 is a part of a plan, and there are no other ranks"):
        CpuProgram(found.plans[0], weights_of(found, 0, case.weights), page_counts=case.pages, threads=1)


def test_a_rank_that_fails_is_told() -> None:
    """The others wait for it, and raise; nothing hangs."""
    case = random_plans.make(Random(1).randint, random_plans.LARGE)
    found = split(case.plan, 2, ranks.block_of(case.weights))
    meeting = Meeting(2)
    program = ranks.cpu(
        found.plans[0],
        weights_of(found, 0, case.weights),
        collectives=meeting.of(0),
        page_counts=case.pages,
        page_size=32,
    )
    meeting.leave()
    with pytest.raises(BrokenBarrierError):
        program.step(case.batches(program)[0])
