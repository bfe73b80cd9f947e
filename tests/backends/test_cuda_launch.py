"""Launchers: one for every op there is, and refusals by name before anything is loaded."""

from __future__ import annotations

import dataclasses
import math
import os
from typing import Any

import numpy as np
import pytest

pytest.importorskip("triton")

import torch

from olivine.backends.cuda import CudaProgram, launch_attention, launch_mixture, launch_products
from olivine.backends.cuda import weights as cuda_weights
from olivine.backends.cuda.kernels import activations
from olivine.backends.cuda.kernels.gemv_pair import RowProduct
from olivine.backends.cuda.launch import MAKERS
from olivine.errors import ModelError
from olivine.plan import Plan, Rotation, Trace, Value, fused_ops, ops, rank_ops, tower_ops, trace
from olivine.plan.fused_plan import FusedPlan
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


@interpreted
@pytest.mark.parametrize("old", [True, False])
def test_a_gate_is_a_launch_of_its_own_where_rows_are_many_or_up_is_new(
    old: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """New is what no attention came after: a product of decode rows would load it too early."""

    def forward(t: Trace, _: None) -> None:
        x = t.embed("table", 16)
        first, cache = t.linear(x, "first", 16), t.cache(1, 8)
        t.store(cache, t.linear(x, "k", 8), t.linear(x, "v", 8))
        a = t.attention(t.linear(x, "q", 16), cache, scale=0.5)
        up = t.columns(first if old else a, 8, 8)
        y = t.take_outputs(t.linear(t.gate(t.linear(a, "gate", 8), up, "gelu_tanh"), "down", 16))
        t.finish(hidden=y, logits=y)

    plan, gates = trace("gates", forward, None, {"table.weight": (11, 16)}), []
    weights = {w.name: [tensor_of("BF16", *w.shape, i)] for i, w in enumerate(plan.weights)}
    steps: list[Any] = [([(0, [1, 2], False)], [0, 1]), ([(0, [3], True), (1, [4], True)], [0, 1])]
    case = random_plans.Case(plan, weights, steps, 2)
    program = CudaProgram(plan, weights, page_counts=case.pages, device="cpu")
    alone = activations.gate
    monkeypatch.setattr(activations, "gate", lambda *given: (gates.append(len(given[0])), alone(*given)))
    assert agreeing.Expected(case).disagreement(case.run(program)) is None
    assert gates == ([16] if old else [16, 2])  # rows: of the prompt, which are padded, and of decode


@interpreted
@pytest.mark.parametrize("donor", [True, False])
def test_queries_to_a_stored_cache_are_rotated_by_the_attention(
    donor: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of few decode rows, if the attention of the layer that stored came first: else this one would load keys
    of other rows too early. No bit depends on it."""

    def forward(t: Trace, _: None) -> None:
        x, cache, rotation = t.embed("table", 32), t.cache(1, 16), Rotation(tuple(0.5**i for i in range(8)))
        t.store(cache, t.linear(x, "k", 16), t.linear(x, "v", 16))
        x = t.add(x, t.linear(t.attention(t.linear(x, "q", 32), cache, scale=0.3), "o", 32))
        q = t.rope(t.rms_norm(t.linear(x, "q2", 32), None, 1e-6, size=16), rotation)
        y = t.take_outputs(t.attention(q, cache, scale=0.3))
        t.finish(hidden=y, logits=y)

    plan, rotated = trace("queries", forward, None, {"table.weight": (11, 32)}), []
    if not donor:  # a cache that is written twice, as no trace does: then no attention writes it
        again = [dataclasses.replace(op) for op in plan.ops if isinstance(op, ops.StoreKV)]
        place = next(i for i, op in enumerate(plan.ops) if isinstance(op, ops.StoreKV))
        plan = dataclasses.replace(plan, ops=(*plan.ops[:place], *again, *plan.ops[place:]))
    weights = {w.name: [tensor_of("BF16", *w.shape, i)] for i, w in enumerate(plan.weights)}
    generated = [[(0, [3], True), (1, [4], True)], [(0, [5, 6, 7], True)]]
    steps: list[Any] = [([(0, [1, 2], False)], [0, 1]), *((parts, [0, 1]) for parts in generated)]
    case = random_plans.Case(plan, weights, steps, 2)
    expected, apart = agreeing.Expected(case), launch_attention.transform_heads
    monkeypatch.setattr(
        launch_attention, "transform_heads", lambda *given: (rotated.append(len(given[0])), apart(*given))
    )
    found = []
    for most in (16, 1):
        monkeypatch.setattr(launch_attention, "MOST_TRANSFORMED", most)
        found.append(case.run(CudaProgram(plan, weights, page_counts=case.pages, device="cpu")))
        assert expected.disagreement(found[-1]) is None
    assert all(np.array_equal(a.logits, b.logits) for a, b in zip(*found, strict=True))
    assert rotated == [*([16] if donor else [16, 2, 4]), 16, 2, 4]  # rows, which are padded


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
def test_mixtures_of_one_router_take_experts_each_for_itself() -> None:
    def forward(t: Trace, _: None) -> None:
        x = t.embed("table", 64)
        router = t.linear(x, "router", 3)
        one, two = (
            t.scope(f"of{top_k}").moe(
                x, router, width=32, top_k=top_k, normalize=top_k == 1, activation="silu"
            )
            for top_k in (1, 2)
        )
        y = t.take_outputs(t.add(one, two))
        t.finish(hidden=y, logits=y)

    plan = trace("shared", forward, None, {"table.weight": (11, 64)})
    steps: list[Any] = [([(0, [1, 2], False), (1, [3], False)], [0, 1, 2]), ([(0, [4], True)], [0])]
    case = random_plans.Case(plan, weights_of(plan, "Q8_0", {"table.weight": "F32"}), steps, 2)
    program = CudaProgram(plan, case.weights, page_counts=[], device="cpu")
    assert agreeing.Expected(case).disagreement(case.run(program)) is None


def branched_plan(last: str) -> Plan:
    """A mixture after a dense branch, whose `last` product is added to it, or is something else as well."""

    def forward(t: Trace, _: None) -> None:
        def experts(x: Value, router: Value, name: str) -> Value:
            return t.scope(name).moe(x, router, width=32, top_k=2, normalize=True, activation="gelu_tanh")

        x = t.embed("table", 64)
        early = last in ("hidden", "early")  # of outputs alone
        x = t.rms_norm(t.take_outputs(x) if early else x, "norm", 1e-6)
        dense = t.gate(t.linear(x, "gate", 288), t.linear(x, "up", 288), "gelu_tanh")
        if last == "normed":
            dense = t.rms_norm(dense, "inner_norm", 1e-6)
        router = t.linear(x, "router", 3)
        m = t.linear(
            t.take_outputs(dense) if last == "output" else dense, "down", 3 if last == "router" else 64
        )
        y = experts(m if last == "x" else x, router, "first")
        if last == "output":
            x, y = t.take_outputs(x), t.take_outputs(y)
        if last == "router":
            y = t.add(y, experts(x, m, "second"))
        else:
            y = t.add(t.rms_norm(m, "dense_norm", 1e-6), t.rms_norm(y, "experts_norm", 1e-6))
        y = t.add(x, t.rms_norm(y, "sum_norm", 1e-6))
        if last in ("output", "early"):
            m = y
        elif last != "hidden":
            m = y = t.take_outputs(y)
        t.finish(hidden=m, logits=y)

    return trace("branches", forward, None, {"table.weight": (11, 64)})


def weights_of(plan: Plan, kind: str, others: dict[str, str]) -> dict[str, list[Tensor]]:
    weights = {}
    for i, weight in enumerate(plan.weights):
        n, k = math.prod(weight.shape[:-1]), weight.shape[-1]
        tensor = tensor_of("F32" if len(weight.shape) == 1 else others.get(weight.name, kind), n, k, i)
        weights[weight.name] = [dataclasses.replace(tensor, name=weight.name, shape=weight.shape)]
    return weights


@interpreted
@pytest.mark.parametrize(
    ("last", "others", "paired"),
    [
        ("added", {}, True),
        pytest.param("added", {"down.weight": "Q5_0"}, True, marks=pytest.mark.exhaustive),
        ("added", {"down.weight": "BF16"}, False),
        ("added", {"first.ffn_up_exps.weight": "Q4_0"}, False),
        ("early", {}, True),
        ("x", {}, False),
        ("router", {}, False),
        ("hidden", {}, False),
        ("normed", {}, False),
        ("output", {}, False),
    ],
)
def test_a_product_before_a_mixture_is_in_its_launch(
    last: str, others: dict[str, str], paired: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one generated row, if the mixture can wait for it and nothing else must have it. No bit depends on
    it."""
    plan, pairs, pair = branched_plan(last), [], launch_mixture.gemv_pair
    weights = weights_of(plan, "Q8_0", others)
    steps: list[Any] = [
        ([(0, [1, 2], False), (1, [3], False)], [0, 1, 2]),
        ([(0, [4], True)], [0]),
        ([(0, [5], True), (1, [6], True)], [0, 1]),
        ([(1, [7], True)], [0]),
    ]
    case = random_plans.Case(plan, weights, steps if paired else steps[:2], 2)
    expected = agreeing.Expected(case)
    program = CudaProgram(plan, weights, page_counts=[], device="cpu")

    def recorded(first: RowProduct, second: RowProduct, **named: Any) -> None:
        pairs.append((len(first.out), tuple(second.out.shape)))
        pair(first, second, **named)

    monkeypatch.setattr(launch_mixture, "gemv_pair", recorded)
    with routing.same_experts(program, expected.reference):
        found = case.run(program)
    assert expected.disagreement(found) is None
    assert pairs == ([(2, (3, 1, 64))] * 2 if paired else [])
    if not paired:
        return
    (nothing,) = random_plans.Case(plan, weights, [([(0, [8], True), (1, [9], True)], [])], 2).run(program)
    assert len(nothing.logits) == 0
    monkeypatch.setattr(launch_mixture.Mixture, "beside", lambda self, c, product: product)
    program = CudaProgram(plan, weights, page_counts=[], device="cpu")
    with routing.same_experts(program, expected.reference):
        apart = case.run(program)
    assert all(
        np.array_equal(a.logits, b.logits) and np.array_equal(a.hidden, b.hidden)
        for a, b in zip(found, apart, strict=True)
    )


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


@interpreted
def test_linear_ops_of_two_types_are_one_launch_for_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """And two for several rows, or where there are none: nobody wants the outputs of two of these rows."""

    def forward(t: Trace, _: None) -> None:
        x = t.take_outputs(t.embed("table", 256))
        q, k, v = (t.linear(x, name, 24) for name in ("q", "k", "v"))
        y = t.add(t.scale(t.add(q, k), factor=0.5), v)
        t.finish(hidden=y, logits=y)

    plan = trace("pair", forward, None, {"table.weight": (11, 256)})
    weights = {}
    for i, weight in enumerate(plan.weights):
        tensor = tensor_of("Q6_K" if weight.name == "v.weight" else "Q4_K", *weight.shape, i)
        weights[weight.name] = [dataclasses.replace(tensor, name=weight.name, shape=weight.shape)]
    pairs, whole = [], launch_products.gemv_pair

    def recorded(*given: Any, **named: Any) -> None:
        pairs.append(whole(*given, **named))

    monkeypatch.setattr(launch_products, "gemv_pair", recorded)
    steps: list[Any] = [([(0, [1], True)], [0]), ([(0, [2], True), (1, [3], True)], [0, 1])]
    case = random_plans.Case(plan, weights, steps, 2)
    expected = agreeing.Expected(case)
    program = CudaProgram(plan, weights, page_counts=[], device="cpu")
    assert expected.disagreement(case.run(program)) is None
    assert len(pairs) == 1
    (nothing,) = random_plans.Case(plan, weights, [([(0, [1], True), (1, [2], True)], [])], 2).run(program)
    assert nothing.logits.shape == (0, 24) and len(pairs) == 1


@interpreted
def test_a_product_reads_the_copy_in_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the hidden states, which are a result too, in float32; with the bits that it would read there."""

    def forward(t: Trace, _: None) -> None:
        x = t.embed("table", 32)
        hidden = t.rms_norm(t.take_outputs(t.add(x, t.linear(x, "branch", 32))), "norm", 1e-6)
        t.finish(hidden=hidden, logits=t.linear(hidden, "head", 24))

    plan = trace("head", forward, None, {"table.weight": (11, 32)})
    weights = {}
    for i, weight in enumerate(plan.weights):
        n, k = (1, *weight.shape)[-2:]
        tensor = tensor_of("F32" if n == 1 else "Q8_0", n, k, i)
        weights[weight.name] = [dataclasses.replace(tensor, name=weight.name, shape=weight.shape)]
    types, whole = [], launch_products.gemv

    def recorded(x: torch.Tensor, *given: Any, **named: Any) -> None:
        types.append(x.dtype)
        whole(x, *given, **named)

    monkeypatch.setattr(launch_products, "gemv", recorded)
    steps: list[Any] = [([(0, [1], False)], [0])]
    case = random_plans.Case(plan, weights, steps, 1)
    copied = case.run(CudaProgram(plan, weights, page_counts=[], device="cpu"))
    monkeypatch.setattr(FusedPlan, "rounded", frozenset())
    plain = case.run(CudaProgram(plan, weights, page_counts=[], device="cpu"))
    assert types == [torch.bfloat16, torch.float32]  # a prompt, so that only the head takes it
    assert all(
        (a.logits == b.logits).all() and (a.hidden == b.hidden).all()
        for a, b in zip(copied, plain, strict=True)
    )


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
