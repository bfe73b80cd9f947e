"""Launchers: one for every op there is, and refusals by name before anything is loaded."""

from __future__ import annotations

import dataclasses
import math
import os
from typing import Any

import pytest

pytest.importorskip("triton")

import torch

from olivine.backends.cuda import CudaProgram
from olivine.backends.cuda import weights as cuda_weights
from olivine.backends.cuda.launch import MAKERS
from olivine.errors import ModelError
from olivine.plan import Plan, Rotation, Trace, Value, fused_ops, ops, rank_ops, tower_ops, trace
from olivine.tensor import Tensor
from oracles import agreeing, random_plans, routing
from oracles.matrices import tensor_of


def all_of(kind: type[ops.Op]) -> set[type[ops.Op]]:
    return {kind}.union(*map(all_of, kind.__subclasses__()))


def test_every_op_has_a_launcher() -> None:
    homes = {module.__name__ for module in (ops, tower_ops, fused_ops, rank_ops)}
    every = {kind for kind in all_of(ops.Op) if kind.__module__ in homes}
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


interpreted = pytest.mark.skipif(os.environ["TRITON_INTERPRET"] != "1", reason="runs in Triton's interpreter")


def mixture_plan(width: int, inner: int) -> Plan:
    """Three experts, of which each row takes two."""

    def forward(t: Trace, _: None) -> None:
        x = t.embed("table", width)
        y = t.moe(x, t.linear(x, "router", 3), width=inner, top_k=2, normalize=True, activation="silu")
        y = t.take_outputs(y)
        t.finish(hidden=y, logits=y)

    return trace("experts", forward, None, {"table.weight": (11, width)})


def agrees(plan: Plan, weights: dict[str, list[Tensor]]) -> CudaProgram:
    """That prompt rows and generated rows are the reference's, within what bfloat16 explains."""
    steps: list[Any] = [([(0, [1, 2], False), (1, [3], True)], [0, 1, 2])]
    case = random_plans.Case(plan, weights, steps, 2)
    expected = agreeing.Expected(case)
    program = CudaProgram(plan, weights, page_counts=[], device="cpu")
    with routing.same_experts(program, expected.reference):
        assert expected.disagreement(case.run(program)) is None
    return program


@interpreted
@pytest.mark.parametrize("kinds", [("BF16", "F32"), ("MXFP4", "MXFP4"), ("BF16", "Q4_0")])
def test_experts_whose_gate_and_up_have_any_types(kinds: tuple[str, str]) -> None:
    """Of one type they are one product; of two types they are two."""
    plan = mixture_plan(32, 12)
    types = {"ffn_gate_exps.weight": kinds[0], "ffn_up_exps.weight": kinds[1]}
    weights = {}
    for i, weight in enumerate(plan.weights):
        tensor = tensor_of(types.get(weight.name, "BF16"), math.prod(weight.shape[:-1]), weight.shape[-1], i)
        weights[weight.name] = [dataclasses.replace(tensor, name=weight.name, shape=weight.shape)]
    agrees(plan, weights)


@interpreted
@pytest.mark.parametrize("kinds", [("BF16", "F32", "F16"), ("Q8_0", "Q4_0", "Q8_0"), ("Q8_0", "BF16", "G64")])
def test_experts_that_a_file_stores_one_by_one_in_several_types(kinds: tuple[str, ...]) -> None:
    """One matrix has them all, in BF16."""
    plan = mixture_plan(64, 64)
    weights = {}
    for i, weight in enumerate(plan.weights):
        if len(weight.shape) == 3:
            each = [tensor_of(kind, *weight.shape[1:], which=i) for kind in kinds]
        else:
            each = [tensor_of("BF16", *weight.shape, which=i)]
        weights[weight.name] = each
    program = agrees(plan, weights)
    values = sum(math.prod(weight.shape) for weight in plan.weights)
    assert program.weight_bytes == cuda_weights.device_bytes(plan, weights) == 2 * values


KEPT = ("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q6_K", "IQ4_NL", "IQ4_XS", "MXFP4", "BF16")


def test_what_weights_take_on_the_device_is_known_before() -> None:
    """What the file has; types without a kernel take as much as BF16, and Q4_K has bytes for its scales."""

    def forward(t: Trace, _: None) -> None:
        y = t.take_outputs(t.embed("table", 256))
        for i in range(len(KEPT) - 1):
            y = t.linear(y, f"{i}", 256)
        t.finish(hidden=y, logits=t.linear(t.linear(y, "other", 256), "last", 512))

    plan = trace("types", forward, None, {"table.weight": (8, 256)})
    kinds = {"other.weight": "IQ3_S", "last.weight": "Q4_K", "table.weight": KEPT[-1]}
    kinds |= {f"{i}.weight": kind for i, kind in enumerate(KEPT[:-1])}
    weights = {w.name: [tensor_of(kinds[w.name], *w.shape)] for w in plan.weights}
    loaded = {
        name: cuda_weights.repack(planes)
        for name, planes in cuda_weights.load(plan, weights, torch.device("cpu")).items()
    }
    expected = sum(tensor.nbytes for (tensor,) in weights.values())
    expected += 2 * 256 * 256 - weights["other.weight"][0].nbytes + 4 * 512
    assert sum(planes.nbytes for planes in loaded.values()) == expected
    assert cuda_weights.device_bytes(plan, weights) == expected
