"""Which ops of a plan run together on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest

from olivine.backends.cpu import native
from olivine.backends.cpu.lower import KINDS, group_ops, lower
from olivine.dtypes import F32
from olivine.errors import ModelError
from olivine.plan import Plan, Rotation, Trace, Value, ops, trace
from olivine.plan.buffers import assign_buffers
from olivine.plan.clamps import share_clamps
from olivine.tensor import Tensor

SHAPES = {"token_embd.weight": (11, 8), "k.bias": (8,)}
ROTATION = Rotation((1.0, 0.1))


def layer(t: Trace, _: None) -> None:
    x = t.embed("token_embd", 8)
    h = t.rms_norm(x, "norm", 1e-6)
    q, k, v = t.linear(h, "q", 8), t.linear(h, "k", 8), t.linear(h, "v", 8)
    cache = t.cache(2, 4)
    t.store(cache, t.rope(t.rms_norm(k, "k_norm", 1e-6, size=4), ROTATION), v)
    x = t.add(x, t.linear(t.attention(t.rope(q, ROTATION), cache, scale=1.0), "o", 8))
    h = t.rms_norm(x, "ffn_norm", 1e-6)
    x = t.add(x, t.linear(t.gate(t.linear(h, "gate", 12), t.linear(h, "up", 12), "silu"), "down", 8))
    h = t.rms_norm(t.take_outputs(x), "last_norm", 1e-6)
    t.finish(hidden=h, logits=t.scale(t.linear(h, "head", 11), factor=2.0))


def plan_of(forward: Callable[[Trace, None], None] = layer) -> Plan:
    return trace("layer", forward, None, SHAPES)


def kinds_of(plan: Plan) -> list[str]:
    return [" ".join(op.kind for op in group) for group in group_ops(plan)]


def test_ops_on_rows_run_together_with_attention_and_a_gate_with_its_linear_ops() -> None:
    assert kinds_of(plan_of()) == [
        "embed",
        "rms_norm",
        "linear linear linear",
        "rms_norm rope store_kv rope attention",
        "linear",
        "add rms_norm",
        "linear linear gate",
        "linear",
        "add",
        "take_outputs",
        "rms_norm",
        "linear",
        "scale",
    ]


def test_values_of_a_group_share_no_columns() -> None:
    """Threads are at different ops of a group at the same time, in other rows."""
    plan = plan_of()
    groups = group_ops(plan)
    buffers = assign_buffers(groups, keep=(plan.hidden, plan.logits))
    for group in groups:
        values = {value.id: value for op in group for value in (*op.inputs(), op.output) if value is not None}
        tokens = [buffers.columns(value) for value in values.values() if value.rows == "tokens"]
        tokens.sort(key=lambda columns: columns.start)
        assert all(a.stop <= b.start for a, b in pairwise(tokens)), group


def test_a_gate_of_linear_ops_with_a_bias_or_of_others_runs_alone() -> None:
    def biased(t: Trace, _: None) -> None:
        x = t.embed("token_embd", 8)
        y = t.gate(t.linear(x, "k", 8), t.linear(x, "up", 8), "silu")
        z = t.gate(t.linear(y, "a", 8), t.linear(y, "b", 8), "sigmoid")
        u, v = t.linear(z, "c", 8), t.linear(z, "d", 8)
        t.finish(hidden=t.take_outputs(t.gate(v, u, "silu")), logits=t.take_outputs(x))

    gates = [kinds for kinds in kinds_of(plan_of(biased)) if "gate" in kinds]
    assert gates == ["gate", "gate", "gate"]


def tower(t: Trace, _: None) -> None:
    x = t.input(8)
    h = t.rms_norm(x, "norm", 1e-6)
    q, k, v = (clipped(t, h, name) for name in "qkv")
    x = t.add(x, t.grid_rope(t.rms_norm(t.add(t.add(q, k), v), "post", 1e-6), Rotation((1.0,))))
    h = t.layer_norm(x, "n", 1e-6)
    h = t.gate(clipped(t, h, "gate"), clipped(t, h, "up"), "gelu_tanh")
    h = t.activate(clipped(t, h, "down"), "silu")
    y = t.linear(h, "raw", 8)
    t.finish(hidden=t.take_outputs(t.add(y, t.clamp(y, "raw.low", None))))


def clipped(t: Trace, x: Value, name: str) -> Value:
    return t.clamp(t.linear(t.clamp(x, f"{name}.low", None), name, 8), f"{name}.low", None)


def test_limits_run_with_their_linear_ops_and_equal_ones_are_one() -> None:
    names = ("q", "k", "v", "gate", "up", "down", "raw")
    plan = trace("tower", tower, None, {"n.bias": (8,)} | {f"{name}.low": (1,) for name in names})

    assert kinds_of(share_clamps(plan, lambda weight: -1.0)) == [
        "input",
        "rms_norm clamp",
        "linear linear linear clamp clamp clamp",
        "add add rms_norm grid_rope add layer_norm clamp",
        "linear linear clamp clamp gate clamp",
        "linear clamp activate",
        "linear",
        "clamp add",  # the sum reads what is not limited, too
        "take_outputs",
    ]
    assert kinds_of(share_clamps(plan, lambda weight: -float(ord(weight.name[0]))))[:9] == [
        "input",
        "rms_norm clamp",
        "linear clamp",
        "clamp",
        "linear clamp",
        "clamp",
        "linear clamp",
        "add add rms_norm grid_rope add layer_norm clamp",
        "linear clamp",
    ]


def passing(plan: Plan) -> list[int]:
    """Of each gate and activation."""
    weights = {
        w.name: (Tensor(w.name, F32, w.shape, np.zeros(int(np.prod(w.shape)) * 4, np.uint8)),)
        for w in plan.weights
    }
    gates = [KINDS.index(ops.Gate), KINDS.index(ops.Activate)]
    return [op.passing for op in lower(plan, weights).ops if op.kind in gates]


@pytest.mark.parametrize("also", ["nothing", "gate", "result"])
def test_a_gate_passes_its_result_on_if_nothing_else_reads_that_or_its_operands(also: str) -> None:
    def forward(t: Trace, _: None) -> None:
        x = t.embed("token_embd", 8)
        gate, up = t.linear(x, "gate", 8), t.linear(x, "up", 8)
        y = t.gate(gate, up, "silu")
        z = t.linear(y, "down", 8)
        read = {"nothing": x, "gate": gate, "result": y}[also]
        t.finish(hidden=t.take_outputs(t.add(z, read)), logits=t.take_outputs(x))

    assert passing(plan_of(forward)) == [int(also == "nothing")]


def test_a_gate_passes_its_result_on_through_a_limit() -> None:
    names = ("q", "k", "v", "gate", "up", "down", "raw")
    plan = trace("tower", tower, None, {"n.bias": (8,)} | {f"{name}.low": (1,) for name in names})
    assert passing(plan) == [1, 1]


def test_a_number_that_no_field_holds_is_refused() -> None:
    """ctypes would cut it, and kernels read elsewhere."""
    op = native.Op()
    op.start, op.strides, op.out, op.normalize, op.scale = -(1 << 31), (1, 2), 1 << 40, True, 0.1
    for name, value in (("start", 1 << 31), ("size", -(1 << 31) - 1), ("strides", (1, 1 << 31))):
        with pytest.raises(ModelError, match=f"a plan with {name} = .* does not hold in 32 bits"):
            setattr(op, name, value)
