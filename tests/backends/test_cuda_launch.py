"""Launchers: one for every op there is, and refusals by name before anything is loaded."""

from __future__ import annotations

import dataclasses
import math
import os
from typing import Any

import pytest

pytest.importorskip("triton")

from olivine.backends.cuda import CudaProgram
from olivine.backends.cuda.launch import MAKERS
from olivine.errors import ModelError
from olivine.plan import Plan, Rotation, Trace, Value, fused_ops, ops, trace
from oracles import agreeing, random_plans, routing
from oracles.matrices import tensor_of


def all_of(kind: type[ops.Op]) -> set[type[ops.Op]]:
    return {kind}.union(*map(all_of, kind.__subclasses__()))


def test_every_op_has_a_launcher() -> None:
    every = {kind for kind in all_of(ops.Op) if kind.__module__ in (ops.__name__, fused_ops.__name__)}
    assert set(MAKERS) == every - {ops.Op, fused_ops.FusedOp}


def plan_of(width: int, head: int, size: int = 0, rotated: int = 0) -> Plan:
    def forward(t: Trace, _: None) -> None:
        x = t.embed("table", width)
        x = t.rms_norm(x, None, 1e-6, size=size)
        if rotated:
            x = t.rope(x, Rotation((1.0,) * (rotated // 2)))
        cache = t.cache(1, head)
        k = t.linear(x, "k", head)
        t.store(cache, k, k)
        y: Value = t.take_outputs(t.attention(t.linear(x, "q", head), cache, scale=1.0))
        t.finish(hidden=y, logits=y)

    return trace("large", forward, None, {"table.weight": (3, width)})


@dataclasses.dataclass(frozen=True)
class Unknown(ops.Op):
    out: Value
    x: Value


def test_what_the_kernels_do_not_take_is_refused_by_name() -> None:
    """Before weights are looked at: there are none here."""

    def refusal(plan: Plan) -> str:
        with pytest.raises(ModelError) as told:
            CudaProgram(plan, {}, page_counts=[1], device="cpu")
        return str(told.value)

    told = refusal(plan_of(64, head=520))
    assert "heads of at most 512 columns, and cache0 has heads of 520; use device='cpu'" in told
    assert "rotary embeddings of at most 1024 columns" in refusal(plan_of(2048, head=8, rotated=2048))
    assert "norms of at most 65536 columns, and here are 65540" in refusal(plan_of(65540, head=8))
    plan = plan_of(64, head=8)
    unknown = Unknown(Value(99, "tokens", 64), Value(0, "tokens", 64))
    assert "has no unknown" in refusal(dataclasses.replace(plan, ops=(*plan.ops, unknown)))


@pytest.mark.skipif(os.environ["TRITON_INTERPRET"] != "1", reason="runs in Triton's interpreter")
@pytest.mark.parametrize("kinds", [("BF16", "F32"), ("Q8_0", "Q8_0"), ("BF16", "Q4_0")])
def test_experts_whose_gate_and_up_have_any_types(kinds: tuple[str, str]) -> None:
    """Of one type they are one product; of two types they are two."""

    def forward(t: Trace, _: None) -> None:
        x = t.embed("table", 32)
        y = t.moe(x, t.linear(x, "router", 3), width=12, top_k=2, normalize=True, activation="silu")
        y = t.take_outputs(y)
        t.finish(hidden=y, logits=y)

    plan = trace("experts", forward, None, {"table.weight": (11, 32)})
    types = {"ffn_gate_exps.weight": kinds[0], "ffn_up_exps.weight": kinds[1]}
    weights = {}
    for i, weight in enumerate(plan.weights):
        tensor = tensor_of(types.get(weight.name, "BF16"), math.prod(weight.shape[:-1]), weight.shape[-1], i)
        weights[weight.name] = [dataclasses.replace(tensor, name=weight.name, shape=weight.shape)]
    steps: list[Any] = [([(0, [1, 2], False), (1, [3], True)], [0, 1, 2])]
    case = random_plans.Case(plan, weights, steps, 2)
    expected = agreeing.Expected(case)
    program = CudaProgram(plan, weights, page_counts=[], device="cpu")
    with routing.same_experts(program, expected.reference):
        assert expected.disagreement(case.run(program)) is None
