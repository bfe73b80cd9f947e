"""Fusing: what each rule takes, what it leaves alone, and that a fused plan computes what its plan does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from olivine.backends.reference import ReferenceProgram
from olivine.dtypes import DTYPES
from olivine.plan import Plan, Rotation, Trace, Value, fused_ops, ops, trace
from olivine.plan.fuse import Alike, fuse
from olivine.plan.fused_plan import FusedPlan
from olivine.tensor import Tensor
from oracles import fused as oracle
from oracles import published, running

D, HEAD = 16, 4
ROTATION = Rotation((1.0, 0.1))
SHAPES = {"table.weight": (11, D), "bk.bias": (HEAD,), "bgate.bias": (8,)}


def plan_of(body: Callable[[Trace, Value], Value]) -> Plan:
    """A plan whose logits are a linear of what `body` makes of the embedding."""

    def forward(t: Trace, _: None) -> None:
        y = t.take_outputs(body(t, t.embed("table", D)))
        t.finish(hidden=y, logits=t.linear(y, "head", 7))

    return trace("test", forward, None, SHAPES)


def fused_of(plan: Plan) -> FusedPlan:
    fused = fuse(plan, lambda a, b: True)
    oracle.check_order(fused)
    agrees(plan)
    return fused


def kinds(body: Callable[[Trace, Value], Value]) -> list[str]:
    """The ops of the fused plan between the embedding and the end, which are always the same."""
    found = [op.kind for op in fused_of(plan_of(body)).ops]
    assert found[0] == "embed" and found[-2:] == ["take_outputs", "linear"]
    return found[1:-2]


def agrees(plan: Plan) -> None:
    """The fused plan computes what the plan does: a prompt of two sequences, then a token of each."""
    rng = np.random.default_rng(0)
    weights = {}
    for weight in plan.weights:
        values = rng.standard_normal(weight.shape).astype(np.float32) * weight.shape[-1] ** -0.5
        weights[weight.name] = [
            Tensor(weight.name, DTYPES["F32"], weight.shape, values.view(np.uint8).ravel())
        ]
    options = {"page_counts": [4] * len(plan.groups), "page_size": 8}
    results = []
    for program in (
        ReferenceProgram(plan, weights, **options),
        oracle.FusedProgram(plan, weights, alike=lambda a, b: True, **options),
    ):
        session = running.Session(program, 2, 16)
        rows = session.step([(0, [1, 2, 3, 4, 5]), (1, [6, 7])])
        results.append(np.concatenate([*rows, *session.step([(0, [8]), (1, [9])], generated=True)]))
    np.testing.assert_allclose(results[1], results[0], rtol=1e-4, atol=1e-5)


def heads(
    t: Trace,
    x: Value,
    *,
    q_norm: int = 0,
    k_norm: int = 0,
    v_norm: int = 0,
    groups: int = 1,
    share: int = 2,
    q_rope: Rotation | None = ROTATION,
    k_rope: Rotation | None = ROTATION,
    v_rope: Rotation | None = None,
) -> tuple[Value, Value]:
    """Attention with its output projection, and its query."""  # fmt: skip
    made = []
    for name, width, size, rope in (
        ("q", groups * share * HEAD, q_norm, q_rope),
        ("k", groups * HEAD, k_norm, k_rope),
        ("v", groups * HEAD, v_norm, v_rope),
    ):
        y = t.linear(x, name, width)
        y = t.rms_norm(y, f"{name}_norm", 1e-6, size=size) if size else y
        made.append(t.rope(y, rope) if rope is not None else y)
    cache = t.cache(groups, HEAD)
    t.store(cache, made[1], made[2])
    return t.linear(t.attention(made[0], cache, scale=0.5), "o", D), made[0]


ATTENTION = ["stacked_linear", "store_attention", "linear"]


def part_counts(body: Callable[[Trace, Value], Value]) -> dict[str, int]:
    """What became part of the attention, by kind."""
    (found,) = (op for op in fused_of(plan_of(body)).ops if isinstance(op, fused_ops.StoreAttention))
    names = [part.kind for part in found.parts()]
    return {name: names.count(name) for name in ("rms_norm", "rope")}


def test_attention_takes_norms_and_rotations_of_heads() -> None:
    assert kinds(lambda t, x: heads(t, x, q_norm=HEAD, k_norm=HEAD, v_norm=HEAD)[0]) == ATTENTION
    assert part_counts(lambda t, x: heads(t, x, q_norm=HEAD, k_norm=HEAD, v_norm=HEAD)[0]) == {
        "rms_norm": 3, "rope": 2,
    }  # fmt: skip


def test_a_norm_of_the_whole_projection_is_none_of_heads() -> None:
    """OLMo 2: queries and keys are normalized as rows, and rotated as heads."""
    body = lambda t, x: heads(t, x, q_norm=4 * HEAD, k_norm=2 * HEAD, groups=2)[0]  # noqa: E731
    assert kinds(body) == ["stacked_linear", "rms_norm", "rms_norm", "store_attention", "linear"]
    assert part_counts(body) == {"rms_norm": 0, "rope": 2}


def test_a_norm_of_half_heads_is_none_of_heads() -> None:
    assert part_counts(lambda t, x: heads(t, x, q_norm=2, k_norm=2)[0]) == {"rms_norm": 0, "rope": 2}


def test_a_single_head_is_as_wide_as_its_row() -> None:
    body = lambda t, x: heads(t, x, q_norm=HEAD, k_norm=HEAD, share=1)[0]  # noqa: E731
    assert part_counts(body) == {"rms_norm": 2, "rope": 2}


def test_what_queries_and_keys_differ_in_stays_plain() -> None:
    assert part_counts(lambda t, x: heads(t, x, q_norm=HEAD)[0]) == {"rms_norm": 0, "rope": 2}
    assert part_counts(lambda t, x: heads(t, x, k_norm=HEAD, v_norm=HEAD)[0]) == {"rms_norm": 1, "rope": 2}
    other = Rotation((1.0, 0.2))
    for options in ({"k_rope": other}, {"q_rope": None}, {"k_rope": None}):
        body = lambda t, x, o=options: heads(t, x, q_norm=HEAD, k_norm=HEAD, **o)[0]  # noqa: E731
        assert part_counts(body) == {"rms_norm": 0, "rope": 0}


def test_values_are_not_rotated_by_attention() -> None:
    body = lambda t, x: heads(t, x, v_rope=ROTATION, v_norm=HEAD)[0]  # noqa: E731
    assert kinds(body) == ["stacked_linear", "head_norm_rotate", "store_attention", "linear"]


def test_rotations_of_parts_of_heads_stay_plain() -> None:
    half = Rotation((1.0,))
    body = lambda t, x: heads(t, x, q_rope=half, k_rope=half, q_norm=2, k_norm=2)[0]  # noqa: E731
    assert kinds(body) == ["stacked_linear", *["head_norm_rotate"] * 2, "store_attention", "linear"]


def test_a_query_that_others_read_is_made_for_them() -> None:
    def body(t: Trace, x: Value) -> Value:
        a, q = heads(t, x)
        return t.add(a, t.linear(q, "more", D))

    assert kinds(body) == ["stacked_linear", "rope", "rope", "store_attention", "linear", "linear", "add"]


def test_readers_of_a_donors_cache_bring_queries_alone() -> None:
    def body(t: Trace, x: Value) -> Value:
        y, _ = heads(t, x)
        q = t.rope(t.rms_norm(t.linear(y, "q2", 2 * HEAD), "n2", 1e-6, size=HEAD), Rotation((0.5, 0.3)))
        cache = t._record.caches[0]
        a, b = t.attention(q, cache, scale=1.0), t.attention(t.linear(x, "q3", HEAD), cache, scale=1.0)
        return t.add(t.linear(a, "o2", D), t.linear(b, "o3", D))

    assert kinds(body)[:4] == ["stacked_linear", "store_attention", "linear", "linear"]
    assert kinds(body)[4:] == ["query_attention", "attention", "linear", "linear", "add"]


def odd_order(order: str) -> Plan:
    """Caches written twice or late: no trace makes such a plan, and no rule takes it."""

    def body(t: Trace, x: Value) -> Value:
        cache = t.cache(1, HEAD)
        k, v, q = (t.linear(x, name, HEAD) for name in "kvq")
        t.store(cache, k, v)
        a = t.attention(t.rope(q, ROTATION), cache, scale=0.5)
        b = t.attention(q, cache, scale=0.3)
        return t.add(t.linear(a, "oa", D), t.linear(b, "ob", D))

    plan = plan_of(body)
    store = next(op for op in plan.ops if isinstance(op, ops.StoreKV))
    swapped = ops.StoreKV(k=store.v, v=store.k, cache=store.cache)
    found: list[ops.Op] = []
    for op in plan.ops:
        if op is store:
            found += {"late": [], "after": [], "twice": [store, swapped], "between": [store]}[order]
        elif isinstance(op, ops.Attention) and op.scale == 0.3:
            found += {"late": [op], "after": [store, op], "twice": [op], "between": [swapped, op]}[order]
        else:
            found.append(op)
    if order == "late":
        found.append(store)
    return replace(plan, ops=tuple(found))


@pytest.mark.parametrize("order", ["late", "after", "twice", "between"])
def test_caches_written_twice_or_late_are_left_alone(order: str) -> None:
    found = [op.kind for op in fused_of(odd_order(order)).ops]
    assert "store_attention" not in found and found.count("store_kv") == (
        1 if order in ("late", "after") else 2
    )


def test_gate_and_up_are_one_product() -> None:
    def body(t: Trace, x: Value, gate: str = "gate", up: str = "up", other: bool = False) -> Value:
        g, u = t.linear(x, gate, 8), t.linear(t.scale(x, factor=2.0) if other else x, up, 8)
        return t.linear(t.gate(g, u, "silu"), "down", D)

    assert kinds(body) == ["gate_up", "linear"]
    assert "gate_up" not in kinds(lambda t, x: body(t, x, other=True))
    assert kinds(lambda t, x: body(t, x, gate="bgate")) == ["linear", "linear_gate", "linear"]
    assert kinds(lambda t, x: body(t, x, gate="same", up="same")) == ["linear", "linear_gate", "linear"]

    def of_itself(t: Trace, x: Value) -> Value:
        g = t.linear(x, "gate", 8)
        return t.linear(t.gate(g, g, "silu"), "down", D)

    assert kinds(of_itself) == ["linear", "gate", "linear"]

    def read_elsewhere(t: Trace, x: Value) -> Value:
        g, u = t.linear(x, "gate", 8), t.linear(x, "up", 8)
        return t.linear(t.add(t.gate(g, u, "silu"), u), "down", D)

    assert kinds(read_elsewhere) == ["stacked_linear", "gate", "add", "linear"]


def test_a_gate_is_part_of_its_product() -> None:
    def body(t: Trace, x: Value, name: str = "gate", up: Value | None = None) -> Value:
        g = t.linear(t.rms_norm(x, "norm", 1e-6), name, 8)
        return t.linear(t.gate(g, t.columns(x, 4, 8) if up is None else up, "gelu_tanh"), "down", D)

    for name in ("gate", "bgate"):
        assert kinds(lambda t, x, name=name: body(t, x, name)) == [
            "rms_norm",
            "columns",
            "linear_gate",
            "linear",
        ]
    # The norm and what the gate makes are rounded, and the norm lacks its factor; what is multiplied is not.
    assert forms(body) == (2, 1, 0)

    def of_what_it_reads(t: Trace, x: Value) -> Value:
        h = t.rms_norm(x, "norm", 1e-6)
        return t.linear(t.gate(t.linear(h, "square", D), h, "silu"), "down", D)

    assert kinds(of_what_it_reads) == ["rms_norm", "linear_gate", "linear"]
    assert forms(of_what_it_reads) == (1, 0, 0)

    def as_up(t: Trace, x: Value) -> Value:
        return t.linear(t.gate(t.columns(x, 0, 8), t.linear(x, "up", 8), "silu"), "down", D)

    assert kinds(as_up) == ["columns", "linear", "gate", "linear"]

    def read_elsewhere(t: Trace, x: Value) -> Value:
        g = t.linear(x, "gate", 8)
        return t.linear(t.add(t.gate(g, t.columns(x, 0, 8), "silu"), g), "down", D)

    assert kinds(read_elsewhere) == ["linear", "columns", "gate", "add", "linear"]


def test_linears_of_one_value_are_one_product() -> None:
    def body(t: Trace, x: Value, *names: str) -> Value:
        y = x
        for name in names:
            y = t.add(y, t.scale(t.linear(x, name, D), factor=0.5))
        return y

    assert kinds(lambda t, x: body(t, x, "a", "b", "c"))[0] == "stacked_linear"
    # A weight that is read twice, or that is the embedding's too, stays by itself.
    assert kinds(lambda t, x: body(t, x, "a", "a", "c", "d")).count("linear") == 2
    plan = plan_of(lambda t, x: t.linear(t.add(t.linear(x, "table", 11), t.linear(x, "b", 11)), "c", D))
    assert "stacked_linear" not in [op.kind for op in fused_of(plan).ops]
    # Types that do not fit, and biases that only some have.
    plan = plan_of(lambda t, x: body(t, x, "a", "b"))
    assert "stacked_linear" not in [op.kind for op in fuse(plan, lambda a, b: False).ops]
    some = lambda t, x: t.linear(t.add(t.linear(x, "bk", HEAD), t.linear(x, "c", HEAD)), "d", D)  # noqa: E731
    assert "stacked_linear" not in kinds(some)


def test_a_sum_takes_the_norms_around_it() -> None:
    def body(t: Trace, x: Value) -> Value:
        y = t.add(x, t.rms_norm(t.linear(x, "a", D), "post", 1e-6, offset=1.0))
        y = t.scale(y, "factor", size=1, factor=0.5)
        return t.linear(t.rms_norm(y, "after", 1e-5), "b", D)

    fused = fused_of(plan_of(body))
    assert [op.kind for op in fused.ops[1:-2]] == ["linear", "add_norm", "linear"]
    first, sum_, _ = fused.ops[1:-2]
    assert isinstance(sum_, fused_ops.AddNorm) and len(sum_.parts()) == 4
    assert isinstance(first, ops.Linear) and first.out.id in fused.split_k
    assert sum_.norm is not None and sum_.norm.out.id in fused.deferred & fused.bfloat16


def sum_parts(body: Callable[[Trace, Value], Value]) -> list[list[str]]:
    found = fused_of(plan_of(body)).ops
    return [[part.kind for part in op.parts()] for op in found if isinstance(op, fused_ops.AddNorm)]


def test_a_sum_leaves_what_others_read() -> None:
    def norm(t: Trace, y: Value, size: int = 0) -> Value:
        return t.rms_norm(y, f"norm{size}", 1e-6, size=size)

    def normed_branch_read_twice(t: Trace, x: Value) -> Value:
        b = norm(t, t.linear(x, "a", D))
        return t.add(t.add(x, b), b)

    assert sum_parts(normed_branch_read_twice) == []
    assert sum_parts(lambda t, x: t.add(x, norm(t, t.linear(x, "a", D), HEAD))) == []  # of heads
    assert sum_parts(lambda t, x: t.add(norm(t, x), x)) == []  # the first term
    assert sum_parts(lambda t, x: (lambda n: t.add(n, n))(norm(t, x))) == []  # both terms
    assert sum_parts(lambda t, x: t.scale(t.add(x, x), "factor", size=D)) == []  # a number a column
    read = lambda t, x: (lambda y: t.add(t.scale(y, factor=2.0), y))(t.add(x, x))  # noqa: E731
    assert sum_parts(read) == []  # the sum is read beside its scale
    assert sum_parts(lambda t, x: norm(t, t.add(x, x), HEAD)) == []
    after_two = lambda t, x: (lambda y: t.add(y, t.linear(norm(t, y), "a", D)))(t.add(x, x))  # noqa: E731
    assert sum_parts(after_two) == [["add", "rms_norm"]]


def test_a_sum_before_a_layer_norm_adds_up_no_parts() -> None:
    def body(t: Trace, x: Value) -> Value:
        y = t.add(x, t.linear(x, "branch", D))
        return t.add(y, t.linear(t.layer_norm(y, "ln", 1e-6), "other", D))

    fused = fused_of(plan_of(body))
    (op,) = (op for op in fused.ops if isinstance(op, fused_ops.AddNorm))
    assert isinstance(op.norm, ops.LayerNorm) and op.norm.out.id not in fused.deferred
    assert op.branch.id not in fused.split_k


def test_results_of_the_plan_are_not_inside_a_fused_op() -> None:
    def forward(t: Trace, sum_is_hidden: bool) -> None:
        x = t.take_outputs(t.embed("table", D))
        n = t.rms_norm(t.linear(x, "a", D), "norm", 1e-6)
        total = t.add(x, n)
        logits = t.rms_norm(t.scale(total, factor=2.0), "after", 1e-6)
        t.linear(logits, "unused", 5)
        t.finish(hidden=total if sum_is_hidden else n, logits=logits)

    for sum_is_hidden in (True, False):
        fused = fused_of(trace("results", forward, sum_is_hidden, SHAPES))
        results = {fused.plan.hidden.id, fused.plan.logits.id}
        assert not results & (fused.bfloat16 | fused.deferred | fused.split_k)


def forms(body: Callable[[Trace, Value], Value]) -> tuple[int, int, int]:
    """How many values are bfloat16, deferred, and split-K sums; beside those of the plan's end, none."""
    fused = fused_of(plan_of(body))
    return len(fused.bfloat16), len(fused.deferred), len(fused.split_k)


def test_forms_of_values_are_those_that_all_their_readers_take() -> None:
    def moe(t: Trace, x: Value, router: Value) -> Value:
        return t.moe(x, router, width=8, top_k=2, normalize=True, activation="silu")

    norm = lambda t, x: t.rms_norm(x, "norm", 1e-6)  # noqa: E731
    assert forms(lambda t, x: t.linear(norm(t, x), "a", D)) == (1, 1, 0)
    assert forms(lambda t, x: t.linear(t.rms_norm(x, "n", 1e-6, size=HEAD), "a", D)) == (1, 0, 0)
    # A mixture takes rows in bfloat16, but no factor; its router in float32, which may be in parts; and what
    # it makes may be.
    assert forms(lambda t, x: moe(t, norm(t, x), t.linear(x, "r", 4))) == (1, 0, 1)
    assert forms(lambda t, x: norm(t, moe(t, x, x))) == (0, 0, 1)
    assert forms(lambda t, x: (lambda h: moe(t, h, h))(t.linear(x, "r", D))) == (0, 0, 0)
    assert forms(lambda t, x: (lambda h: moe(t, h, h))(norm(t, x))) == (0, 0, 0)
    assert forms(lambda t, x: moe(t, x, norm(t, t.linear(x, "r", 4)))) == (0, 0, 1)
    # Somebody else reads the norm, too.
    shared = lambda t, x: (lambda h: t.add(t.linear(h, "a", D), h))(norm(t, x))  # noqa: E731
    assert forms(shared) == (0, 0, 0)
    # Sums in parts: as the second term, once, and not through heads or columns.
    assert forms(lambda t, x: t.add(x, t.linear(x, "a", D))) == (0, 0, 1)
    assert forms(lambda t, x: t.add(t.linear(x, "a", D), x)) == (0, 0, 0)
    assert forms(lambda t, x: (lambda y: t.add(y, y))(t.linear(x, "a", D))) == (0, 0, 0)
    assert forms(lambda t, x: t.columns(t.linear(x, "a", D), 2, 8)) == (0, 0, 0)
    assert forms(lambda t, x: t.rms_norm(t.linear(x, "a", D), "n", 1e-6, size=HEAD)) == (0, 0, 0)


def test_linear_ops_of_two_kinds_of_weights_are_a_pair() -> None:
    def body(t: Trace, x: Value) -> Value:
        q, k, v = (t.linear(x, name, D) for name in ("q", "k", "v"))
        return t.add(t.add(q, k), v)

    def pairs(alike: Alike, body: Callable[[Trace, Value], Value]) -> list[tuple[int, int]]:
        found = [op for op in fuse(plan_of(body), alike).ops if isinstance(op, fused_ops.LinearPair)]
        return [(len(op.first.linears), len(op.second.linears)) for op in found]

    of_v = lambda a, b: (a.name == "v.weight") == (b.name == "v.weight")  # noqa: E731
    assert pairs(of_v, body) == [(2, 1)]
    assert pairs(lambda a, b: True, body) == []  # of one kind: one product
    assert pairs(lambda a, b: a == b, body) == []  # of three

    def mixture(t: Trace, x: Value) -> Value:
        y = t.moe(x, t.linear(x, "router", 4), width=8, top_k=2, normalize=True, activation="silu")
        return t.add(y, t.linear(x, "v", D))

    assert pairs(of_v, mixture) == []  # the router comes first


def test_products_read_a_copy_of_what_others_need_in_float32() -> None:
    def body(t: Trace, x: Value) -> Value:
        total = t.add(x, t.linear(x, "branch", D))
        n = t.rms_norm(total, "norm", 1e-6)  # whose rows products alone read
        y = t.add(total, t.linear(n, "second", D))
        return t.add(y, t.linear(y, "third", D))  # whose result is a branch, in float32 alone

    plan = plan_of(body)
    fused = fused_of(plan)
    sums = [op for op in plan.ops if isinstance(op, ops.Add)]
    assert sums[1].out.id in fused.rounded and sums[0].out.id not in fused.rounded
    assert not fused.rounded & fused.bfloat16
    results = {plan.hidden.id, plan.logits.id}
    read = {op.x.id for op in plan.ops if isinstance(op, ops.Linear)}
    assert fused.rounded - {sums[1].out.id} <= results & read


def test_unused_values_are_let_go_at_once() -> None:
    def body(t: Trace, x: Value) -> Value:
        t.linear(x, "unused", 5)
        return t.scale(x, factor=2.0)

    fused = fused_of(plan_of(body))
    assert fused.releases[1] == (1,)
    assert sorted(value for values in fused.releases for value in values) == [0, 1, 2]


def test_a_fused_plan_is_printable() -> None:
    text = str(fused_of(plan_of(lambda t, x: t.add(x, t.rms_norm(t.linear(x, "a", D), "n", 1e-6)))))
    assert text.startswith("fused plan test: 5 ops of 6")
    assert "%1 = linear(%0, a.weight)" in text and "# tokens × 16, split-K" in text
    assert "%3 = add_norm(%1, %0, n.weight: rms_norm + add)" in text


@pytest.mark.parametrize("name", [case.name for case in published.CASES])
def test_fused_published_models_compute_what_their_plans_do(name: str, tmp_path: Path) -> None:
    """A prompt, and rows one by one. Nothing is left plain that a rule should take."""
    case = published.case(name)
    published.save(case.make(), tmp_path)
    model = running.build(tmp_path)
    options = {"page_counts": [6] * len(model.plan.groups), "page_size": 8}
    tokens = [5, 3, 90, 17, 64, 2, 2, 41, 12]
    program = oracle.FusedProgram(model.plan, model.weights, **options)
    oracle.check_order(program.fused)
    ours = running.chunked(program, tokens, [7, 1])
    theirs = running.chunked(ReferenceProgram(model.plan, model.weights, **options), tokens, [7, 1])
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-4 * theirs.std())
    left = {op.kind for op in program.fused.ops}
    if name.startswith(("gemma", "qwen", "llama", "mistral")):
        assert "store_attention" in left and not left & {"attention", "store_kv", "rope"}, left


def mixture_layer(t: Trace, x: Value, eps: float = 1e-6, *, shared: bool = False) -> Value:
    """As Gemma 4 has it: a dense MLP beside experts, and norms before and after both."""
    x = t.add(x, t.rms_norm(t.linear(x, "o", D), "post_attention", 1e-6))
    dense = t.rms_norm(x, "dense_norm", 1e-6)
    dense = t.linear(
        t.gate(t.linear(dense, "dense_gate", 8), t.linear(dense, "dense_up", 8), "silu"), "dense_down", D
    )
    dense = t.rms_norm(dense, "dense_post", 1e-6)
    r = t.scale(t.rms_norm(x, None, eps), "router.scale", size=D, factor=0.5)
    experts = t.moe(
        t.rms_norm(x, "expert_norm", 1e-6), t.linear(r, "router", 4), width=8, top_k=2, normalize=True,
        activation="silu",
    )  # fmt: skip
    joined = t.add(dense, t.rms_norm(experts, "expert_post", 1e-6))
    y = t.add(x, t.rms_norm(joined, "post", 1e-6))
    return t.add(y, joined) if shared else y


def test_branches_of_a_layer_share_the_norms_around_them() -> None:
    """All norms of a sum are one op with it; so are those of two branches, their sum, its norm and the next
    sum. The router comes first, so that its experts are known while the dense branch runs."""
    expected = ["linear", "add_norms", "linear", "gate_up", "linear", "mo_e", "two_branch_add_norm"]
    assert kinds(mixture_layer) == expected
    found = fused_of(plan_of(mixture_layer))
    norms, joined = found.ops[2], found.ops[7]
    assert isinstance(norms, fused_ops.AddNorms) and len(norms.more) == 2
    assert [each.scale is not None for each in norms.more] == [True, False]
    assert isinstance(joined, fused_ops.TwoBranchAddNorm)
    assert {joined.first.x.id, joined.second.x.id} <= found.split_k


def test_norms_of_another_eps_and_branches_with_other_readers_stay_apart() -> None:
    other = kinds(lambda t, x: mixture_layer(t, x, eps=1e-3))
    assert other[1:3] == ["add_norms", "gate_up"] and "scale" in other
    assert "two_branch_add_norm" not in kinds(lambda t, x: mixture_layer(t, x, shared=True))
