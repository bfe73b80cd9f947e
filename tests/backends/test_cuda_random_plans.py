"""Plans by chance on the CUDA backend in Triton's interpreter, against the reference backend.

OLIVINE_INTERPRETED_PLANS=5000 checks that many, others than those of every day.
"""

from __future__ import annotations

import os

import pytest

pytest.importorskip("triton")
if os.environ["TRITON_INTERPRET"] != "1":
    pytest.skip("these tests run in Triton's interpreter", allow_module_level=True)

from olivine.backends.cuda import CudaProgram
from oracles import agreeing, random_plans, routing

PLANS, PARTS = int(os.environ.get("OLIVINE_INTERPRETED_PLANS", "100")), 10
EVERY_DAY = 1  # part


@pytest.mark.parametrize(
    "part",
    [pytest.param(i, marks=() if i < EVERY_DAY else pytest.mark.exhaustive) for i in range(PARTS)],
)
def test_launches_agree_with_the_reference(part: int) -> None:
    """Within what bfloat16 explains, with the reference's experts where two are all but tied."""

    def check(case: random_plans.Case) -> None:
        expected = agreeing.Expected(case)
        program = CudaProgram(case.plan, case.weights, page_counts=case.pages, device="cpu")
        with routing.same_experts(program, expected.reference):
            found = expected.disagreement(case.run(program))
        assert found is None, "\n".join([f"it is {found}", *program.describe()])

    random_plans.check_each(
        check, random_plans.SMALL, -(-PLANS // PARTS), part if PLANS == 100 else PLANS + part
    )
