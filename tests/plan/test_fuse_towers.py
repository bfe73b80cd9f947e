"""Fusing of towers: attention without a cache, activations, and limits in the ops around them."""

from __future__ import annotations

from collections.abc import Callable

from olivine.plan import Plan, Trace, Value, fused_ops, trace
from olivine.plan.clamps import share_clamps
from olivine.plan.fuse import fuse
from olivine.plan.fused_plan import FusedPlan
from oracles import fused as oracle

D = 16


def tower_of(body: Callable[[Trace, Value], Value]) -> FusedPlan:
    """The fused plan of a tower whose soft tokens are a linear of what `body` makes of its input."""

    fused = fuse(tower_plan(body, {"up.bias": (8,)}), lambda a, b: True)
    oracle.check_order(fused)
    return fused


def tower_plan(body: Callable[[Trace, Value], Value], shapes: dict[str, tuple[int, ...]]) -> Plan:
    def forward(t: Trace, _: None) -> None:
        x = t.linear(t.input(12), "embed", D)
        t.finish(hidden=t.linear(t.take_outputs(body(t, x)), "head", 7))

    return trace("tower", forward, None, shapes)


def layer(t: Trace, x: Value) -> Value:
    """Of SigLIP."""
    cache = t.cache(2, D // 2)
    for _ in range(2):
        h = t.layer_norm(x, "ln1", 1e-6)
        q, k, v = (t.linear(h, name, D) for name in "qkv")
        t.store(cache, k, v)
        x = t.add(x, t.linear(t.attention(q, cache, scale=0.5, bidirectional=True), "o", D))
        h = t.layer_norm(x, "ln2", 1e-6)
        x = t.add(x, t.linear(t.activate(t.linear(h, "up", 8), "gelu_tanh"), "down", D))
    return x


def test_a_tower_attends_without_its_cache() -> None:
    fused = tower_of(layer)
    half = ["whole_attention", "linear", "add_norm", "linear_activate", "linear"]
    first = ["linear", "linear", "linear", *half, "add_norm", "linear", "linear", "linear", *half, "add"]
    assert [op.kind for op in fused.ops] == [
        "input", "linear", "layer_norm", *first, "take_outputs", "linear"
    ]  # fmt: skip
    # What products make is rounded, the residual stream is not.
    made = {op.kind: value for op in fused.ops for value in fused_ops.outputs_of(op)}
    assert made["linear_activate"].id in fused.bfloat16
    for op in fused.ops:
        if isinstance(op, fused_ops.AddNorm):
            assert op.total.id not in fused.bfloat16 and op.branch.id in fused.bfloat16
            assert op.norm is not None and op.norm.out.id not in fused.deferred
        if isinstance(op, fused_ops.WholeAttention):
            values = (op.attention.q, op.store.k, op.store.v)
            assert all(value.id in fused.bfloat16 for value in values)


def test_a_cache_that_two_attentions_read_is_written() -> None:
    def body(t: Trace, x: Value) -> Value:
        cache = t.cache(2, D // 2)
        t.store(cache, x, x)
        a = t.attention(x, cache, scale=0.5, bidirectional=True)
        return t.add(a, t.attention(t.linear(x, "q", D), cache, scale=0.5, bidirectional=True))

    assert "whole_attention" not in [op.kind for op in tower_of(body).ops]

    def causal(t: Trace, x: Value) -> Value:
        cache = t.cache(2, D // 2)
        t.store(cache, x, x)
        return t.attention(x, cache, scale=0.5)

    assert "whole_attention" not in [op.kind for op in tower_of(causal).ops]


def clipped(t: Trace, x: Value, name: str, width: int) -> Value:
    x = t.clamp(x, f"{name}.low", f"{name}.high")
    return t.clamp(t.linear(x, name, width), f"{name}.low", f"{name}.high")


def clipped_layer(t: Trace, x: Value) -> Value:
    """Of Gemma 4's vision tower, and the activation of its audio tower."""
    cache = t.cache(2, D // 2)
    for i in range(2):
        t = t.scope(f"blk.{i}")
        h = t.rms_norm(x, "ln1", 1e-6)
        q, k, v = (t.rms_norm(clipped(t, h, name, D), f"{name}_norm", 1e-6, size=D // 2) for name in "qkv")
        t.store(cache, k, v)
        a = clipped(t, t.attention(q, cache, scale=0.5, bidirectional=True), "o", D)
        x = t.add(x, t.rms_norm(a, "post", 1e-6))
        h = t.rms_norm(x, "ln2", 1e-6)
        h = t.gate(clipped(t, h, "gate", 8), clipped(t, h, "up", 8), "gelu_tanh")
        h = t.activate(clipped(t, h, "down", D), "silu")
        x = t.add(x, t.rms_norm(clipped(t, h, "last", D), "post2", 1e-6))
    return x


def test_limits_of_a_tower_go_into_the_ops_around_its_products() -> None:
    names = [
        f"{name}.{end}"
        for name in ("q", "k", "v", "o", "gate", "up", "down", "last")
        for end in ("low", "high")
    ]
    shapes = {f"blk.{i}.{name}": (1,) for i in range(2) for name in names}
    plan = tower_plan(clipped_layer, shapes)
    shared = share_clamps(plan, lambda weight: 1.0)
    assert sum(op.kind == "clamp" for op in plan.ops) - sum(op.kind == "clamp" for op in shared.ops) == 6
    fused = fuse(shared, lambda a, b: True)
    oracle.check_order(fused)
    layer = [
        "stacked_linear", "limited_head_norm", "limited_head_norm", "limited_head_norm", "whole_attention",
        "linear", "add_norm", "stacked_linear", "limited_gate", "linear", "limited_activate", "linear",
        "add_norm",
    ]  # fmt: skip
    ends = ["take_outputs", "linear"]
    assert [op.kind for op in fused.ops] == ["input", "linear", "rms_norm", "clamp", *layer, *layer, *ends]
    # A norm whose result is limited cannot leave its factor to the product.
    assert not fused.deferred
    # Others have limits of their own: one linear op each.
    apart = fuse(share_clamps(plan, lambda weight: float(ord(weight.name[-5]))), lambda a, b: True)
    assert "stacked_linear" not in [op.kind for op in apart.ops]
    oracle.check_order(apart)


def test_limits_that_others_read_stay_clamps() -> None:
    def body(t: Trace, x: Value) -> Value:
        low = t.clamp(x, "low", None)
        y = t.activate(low, "silu")
        return t.add(t.clamp(y, "low", None), t.add(y, low))

    fused = fuse(tower_plan(body, {"low": (1,)}), lambda a, b: True)
    assert [op.kind for op in fused.ops][2:6] == ["clamp", "activate", "clamp", "add"]


def test_equal_clamps_are_one() -> None:
    def body(t: Trace, x: Value) -> Value:
        a, b, c = t.clamp(x, "a", None), t.clamp(x, "b", None), t.clamp(x, None, "a")
        return t.add(t.add(a, b), t.add(c, t.clamp(a, "b", None)))

    plan = tower_plan(body, {"a": (1,), "b": (1,)})
    kept = [str(op) for op in share_clamps(plan, lambda weight: 1.0).ops if op.kind == "clamp"]
    assert [op.split("(")[1] for op in kept] == ["%1, a)", "%1, a)", "%2, b)"]
    sum_ = next(op for op in share_clamps(plan, lambda weight: 1.0).ops if op.kind == "add")
    assert [value.id for value in sum_.inputs()] == [2, 2]
    assert share_clamps(plan, lambda weight: float(ord(weight.name))) is plan
