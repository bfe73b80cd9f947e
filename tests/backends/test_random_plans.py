"""Plans by chance on the CPU backend, and fused in NumPy, against the reference backend.

OLIVINE_PLANS=100000 checks that many, others than those of every day.
"""

from __future__ import annotations

import os

import pytest

from olivine.backends.cpu import CpuProgram
from olivine.plan.fuse import fuse
from oracles import agreeing, fused, random_plans

PLANS, PARTS = int(os.environ.get("OLIVINE_PLANS", "2000")), 8
EVERY_DAY = 2  # parts

# What 250 plans have among them: every rule applied with each of its parts, and what each leaves.
MET = {
    "store_attention: rms_norm", "store_attention: rope", "query_attention: rms_norm",
    "query_attention: rope", "head_norm_rotate: rope", "gate_up: gate", "linear_gate: gate",
    "stacked_linear: linear", "linear_pair: linear",
    "add_norm: rms_norm", "add_norm: scale", "attention", "rope", "rms_norm", "linear", "gate", "add",
    "scale", "columns", "softcap", "position_scale", "mo_e", "mo_e of outputs", "gate of outputs",
}  # fmt: skip
RARE = {"scale of outputs"}  # 250 plans may have none


@pytest.mark.parametrize(
    "part",
    [pytest.param(i, marks=() if i < EVERY_DAY else pytest.mark.exhaustive) for i in range(PARTS)],
)
def test_the_cpu_and_fused_plans_agree_with_the_reference(part: int) -> None:
    """Within what roundings explain: eight-bit activations and bfloat16 on the CPU, float32 where fused.

    Where experts are all but tied, a rounding decides, and nothing is said.
    """
    told: list[bool] = []
    met: set[str] = set()

    def check(case: random_plans.Case) -> None:
        met.update(fused.patterns(fuse(case.plan, fused.of_one_type(case.weights))))
        expected = agreeing.Expected(case, int8=True)
        options = {"page_counts": case.pages}
        if not expected.undecided(agreeing.FLOAT32):
            program = fused.FusedProgram(case.plan, case.weights, page_size=32, **options)
            fused.check_order(program.fused)
            found = expected.disagreement(case.run(program), agreeing.FLOAT32)
            assert found is None, f"fused, it is {found}\n{program.fused}"
        told.append(expected.informative() and not expected.undecided())
        if told[-1]:
            with_cpu = CpuProgram(case.plan, case.weights, threads=1, **options)
            found = expected.disagreement(case.run(with_cpu))
            assert found is None, f"on the CPU, it is {found}"

    count = -(-PLANS // PARTS)
    random_plans.check_each(check, random_plans.LARGE, count, part if PLANS == 2000 else PLANS + part)
    assert count < 250 or met >= MET, MET - met
    assert sum(told) > 0.7 * len(told), "most plans say something about roundings that matter"


def test_random_plans_have_every_pattern() -> None:
    met: set[str] = set()

    def note(case: random_plans.Case) -> None:
        met.update(fused.patterns(fuse(case.plan, fused.of_one_type(case.weights))))

    random_plans.check_each(note, random_plans.LARGE, 500, PARTS)
    assert met >= MET | RARE, (MET | RARE) - met
