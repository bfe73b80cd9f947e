"""The plan as data: readable, immutable, grouped, and with memory known ahead."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from olivine.plan import Plan, Rotation, Trace, Value, ops, trace
from olivine.plan.buffers import assign_buffers
from oracles import published, running


def tiny(t: Trace, layers: int) -> None:
    x = t.embed("token_embd", 8)
    for i in range(layers):
        layer = t.scope(f"blk.{i}")
        h = layer.rms_norm(x, "attn_norm", 1e-6)
        cache = layer.cache(1, 4, window=None if i % 2 else 16)
        q, k, v = (layer.linear(h, name, n) for name, n in (("attn_q", 8), ("attn_k", 4), ("attn_v", 4)))
        layer.store(cache, layer.rope(k, Rotation((1.0, 0.1))), v)
        x = layer.add(x, layer.attention(q, cache, scale=0.5))
    x = t.rms_norm(t.take_outputs(x), "output_norm", 1e-6)
    t.finish(hidden=x, logits=t.linear(x, "token_embd", t.rows_of("token_embd.weight")))


SHAPES = {"token_embd.weight": (11, 8), "blk.1.attn_k.bias": (4,)}


@pytest.fixture
def plan() -> Plan:
    return trace("tiny", tiny, 4, SHAPES)


def test_a_trace_is_flat_and_names_every_weight_once(plan: Plan) -> None:
    names = [weight.name for weight in plan.weights]
    assert len(names) == len(set(names))
    assert names[:3] == ["token_embd.weight", "blk.0.attn_norm.weight", "blk.0.attn_q.weight"]
    assert plan.logits.width == 11 and plan.logits.rows == "outputs"


def test_a_bias_is_used_where_the_checkpoint_has_one(plan: Plan) -> None:
    biases = [op.bias.name for op in plan.ops if isinstance(op, ops.Linear) and op.bias is not None]
    assert biases == ["blk.1.attn_k.bias"]


def test_caches_of_one_shape_and_window_form_a_group(plan: Plan) -> None:
    assert [(g.window, [c.id for c in g.caches]) for g in plan.groups] == [(16, [0, 2]), (None, [1, 3])]
    assert plan.groups[0].bytes_per_token(2) == 2 * 1 * 4 * 2 * 2


def test_a_plan_is_printable_and_immutable(plan: Plan) -> None:
    text = str(plan)
    assert "%1 = rms_norm(%0, blk.0.attn_norm.weight, size=8, eps=1e-06, offset=0)" in text
    assert "store_kv(%5, %4, cache0)" in text
    assert "group 0: 2 caches of 1 heads × 4, the last 16 tokens" in text
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan.name = "other"  # type: ignore[misc]


def test_what_is_left_out_of_an_op_is_not_printed() -> None:
    def parts(t: Trace, _: None) -> None:
        x = t.embed("token_embd", 8, pad=0)
        a = t.scale(t.rms_norm(t.columns(x, 2, 4), None, 1e-6, size=2), factor=0.5)
        logits = t.take_outputs(t.scale(a, "scalar.weight"))
        t.finish(hidden=t.take_outputs(x), logits=logits)

    text = str(trace("parts", parts, None, SHAPES))
    assert "%0 = embed(token_embd.weight, scale=1, pad=0)" in text
    assert "%1 = columns(%0, start=2)" in text
    assert "%2 = rms_norm(%1, size=2, eps=1e-06, offset=0)" in text
    assert "%3 = scale(%2, factor=0.5)" in text
    assert "%4 = scale(%3, scalar.weight, factor=1)" in text

    def beyond(t: Trace, _: None) -> None:
        t.columns(t.embed("token_embd", 8), 5, 4)

    with pytest.raises(ValueError, match=r"columns 5… of 8"):
        trace("beyond", beyond, None, SHAPES)


def alive_ranges(plan: Plan) -> dict[int, tuple[Value, int, int]]:
    ranges: dict[int, tuple[Value, int, int]] = {}
    for at, op in enumerate(plan.ops):
        if op.output is not None:
            ranges[op.output.id] = (op.output, at, at)
        for value in op.inputs():
            ranges[value.id] = (value, ranges[value.id][1], at)
    for value in (plan.hidden, plan.logits):
        ranges[value.id] = (value, ranges[value.id][1], len(plan.ops))
    return ranges


# The first case of each published architecture.
ARCHITECTURES = {case.config: case.name for case in reversed(published.CASES)}


@pytest.mark.parametrize("name", ARCHITECTURES.values())
def test_values_alive_together_never_share_columns(name: str, tmp_path: Any) -> None:
    plan = running.build(published.save(published.case(name).make(), tmp_path)).plan
    ranges = list(alive_ranges(plan).values())
    for i, (a, a_from, a_to) in enumerate(ranges):
        for b, b_from, b_to in ranges[:i]:
            if a.rows == b.rows and a_from <= b_to and b_from <= a_to:
                left, right = plan.buffers.columns(a), plan.buffers.columns(b)
                assert left.stop <= right.start or right.stop <= left.start, (a, b)


def test_buffers_are_reused(plan: Plan) -> None:
    total = sum(op.output.width for op in plan.ops if op.output is not None and op.output.rows == "tokens")
    one_layer = trace("tiny", tiny, 1, SHAPES)
    assert plan.buffers.token_width < total / 3
    assert plan.buffers.token_width == one_layer.buffers.token_width, "depth costs no activations"
    assert plan.activation_bytes(10, 2) == 4 * (10 * plan.buffers.token_width + 2 * plan.buffers.output_width)


def test_a_model_file_that_does_not_add_up_is_told_so() -> None:
    def wrong(t: Trace, _: None) -> None:
        x = t.embed("token_embd", 8)
        t.add(x, t.linear(x, "wider", 9))

    with pytest.raises(ValueError, match="one shape"):
        trace("wrong", wrong, None, SHAPES)
    with pytest.raises(ValueError, match="finish"):
        trace("unfinished", lambda t, _: None, None, SHAPES)


def _twice(t: Trace, x: Value) -> None:
    cache = t.cache(1, 8)
    t.store(cache, x, x)
    t.store(cache, x, x)


ILLEGAL: dict[str, Callable[[Trace, Value], object]] = {
    "cache0 is written before it is attended to": lambda t, x: t.attention(x, t.cache(1, 8), scale=1.0),
    "cache0 is written once a step": _twice,
    "rope of rows that have a position": lambda t, x: t.rope(t.take_outputs(x), Rotation((1.0, 0.1))),
    "outputs are taken of token rows": lambda t, x: t.take_outputs(t.take_outputs(x)),
    "gate and up have one shape": lambda t, x: t.gate(x, t.take_outputs(x), "silu"),
    "a router has the rows": lambda t, x: t.moe(
        x, t.take_outputs(x), width=4, top_k=2, normalize=True, activation="silu"
    ),
    "9 of 8 experts": lambda t, x: t.moe(x, x, width=4, top_k=9, normalize=True, activation="silu"),
    "the results have the rows that are asked for": lambda t, x: t.finish(hidden=x, logits=x),
}


@pytest.mark.parametrize("told", ILLEGAL)
def test_what_no_backend_could_run_is_no_plan(told: str) -> None:
    """Results would depend on how a prompt is cut into steps, or rows would have no position."""
    with pytest.raises(ValueError, match=told):
        trace("illegal", lambda t, _: ILLEGAL[told](t, t.embed("token_embd", 8)), None, SHAPES)


def test_ops_that_run_together_write_to_places_of_their_own() -> None:
    """Also where nobody reads what one of them makes."""

    def three(t: Trace, _: None) -> None:
        x = t.embed("token_embd", 8)
        unused, used = t.linear(x, "a", 6), t.linear(x, "b", 6)
        last = t.linear(x, "c", 6)
        t.finish(hidden=t.take_outputs(used), logits=t.take_outputs(last))
        assert unused.id < used.id

    plan = trace("three", three, None, SHAPES)
    linears = [op for op in plan.ops if isinstance(op, ops.Linear)]
    rest = [[op] for op in plan.ops if op not in linears]
    buffers = assign_buffers([rest[0], linears, *rest[1:]], keep=(plan.hidden, plan.logits))
    assert len({buffers.offsets[op.out.id] for op in linears}) == 3
