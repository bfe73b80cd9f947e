"""Divided plans on the CUDA backend in Triton's interpreter, with threads as ranks."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from random import Random
from typing import Any

import pytest

pytest.importorskip("triton")
if os.environ["TRITON_INTERPRET"] != "1":
    pytest.skip("these tests run in Triton's interpreter", allow_module_level=True)

from olivine.backends import Batch, Program, Result
from olivine.backends.base import Collectives, Weights
from olivine.backends.collectives import Float32, weights_of
from olivine.backends.cuda import CudaProgram
from olivine.errors import ModelError, OlivineError
from olivine.plan import Plan
from olivine.plan.split import split
from oracles import agreeing, random_plans, ranks, routing

ONE_AT_A_TIME = threading.Lock()  # the interpreter has one state


class Turn:
    """Collectives of a rank that lets the others compute while it waits for them."""

    def __init__(self, collectives: Collectives) -> None:
        self._collectives = collectives

    def all_reduce(self, x: Float32) -> Float32:
        return self._meet(lambda: self._collectives.all_reduce(x))

    def all_gather(self, x: Float32, widths: Sequence[int]) -> Float32:
        return self._meet(lambda: self._collectives.all_gather(x, widths))

    def send(self, x: Float32) -> None:
        self._collectives.send(x)

    def receive(self, shape: tuple[int, int]) -> Float32:
        return self._meet(lambda: self._collectives.receive(shape))

    def _meet(self, wait: Callable[[], Float32]) -> Float32:
        ONE_AT_A_TIME.release()
        try:
            return wait()
        finally:
            ONE_AT_A_TIME.acquire()


class Interpreted:
    def __init__(self, program: CudaProgram) -> None:
        self.program, self.plan = program, program.plan

    def step(self, batch: Batch, *, logits: bool = True) -> Result:
        with ONE_AT_A_TIME:
            return self.program.step(batch, logits=logits)


@pytest.mark.parametrize(
    ("tensor", "pipeline", "plans"),
    [
        (2, 1, 3),
        (1, 2, 2),
        pytest.param(3, 1, 30, marks=pytest.mark.exhaustive),
        pytest.param(2, 2, 30, marks=pytest.mark.exhaustive),
    ],
)
def test_plans_by_chance_agree_with_the_reference(tensor: int, pipeline: int, plans: int) -> None:
    checked: list[Plan] = []

    def check(case: random_plans.Case) -> None:
        expected = agreeing.Expected(case)
        programs: list[CudaProgram] = []

        def make(
            plan: Plan, weights: Weights, *, collectives: Collectives, page_size: int, **options: Any
        ) -> Program:
            program = CudaProgram(
                plan,
                weights,
                device="cpu",
                collectives=Turn(collectives),
                **options,
            )
            assert page_size == program.page_size
            programs.append(program)
            return Interpreted(program)  # type: ignore[return-value]

        try:
            together = ranks.Together(
                case.plan,
                case.weights,
                tensor,
                pipeline,
                page_counts=case.pages,
                page_size=32,
                make=make,
            )
        except OlivineError as error:
            assert "can be cut at" in str(error)
            return
        with ExitStack() as stack:
            for program in programs:
                stack.enter_context(routing.same_experts(program, expected.reference))
            found = expected.disagreement(case.run(together))  # type: ignore[arg-type]
        assert found is None, f"divided, it is {found}"
        checked.append(case.plan)

    random_plans.check_each(check, random_plans.SMALL, plans, 10 * tensor + pipeline)
    assert checked, "no plan could be cut"


def test_a_part_alone_is_refused() -> None:
    case = random_plans.make(Random(1).randint, random_plans.SMALL)
    found = split(case.plan, 2)
    with pytest.raises(ModelError, match="rank 0 of 2 is a part of a plan, and there are no other ranks"):
        CudaProgram(found.plans[0], weights_of(found, 0, case.weights), page_counts=case.pages, device="cpu")
