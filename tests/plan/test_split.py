"""Divided plans, all ranks in one process, against the whole plan."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from olivine.errors import OlivineError
from olivine.plan import Plan, Trace, Value, Weight, ops, trace
from olivine.plan.layout import even
from olivine.plan.rank_ops import AllGather, AllReduce, Receive, Send
from olivine.plan.split import split
from olivine.plan.stages import stages
from oracles import agreeing, published, random_plans, ranks, running

TOKENS = [int(t) for t in np.random.default_rng(3).integers(0, published.VOCABULARY, 11)]
# (ranks of a stage, stages)
DIVIDED = [(2, 1), (3, 1), (4, 1), (1, 2), (1, 3), (2, 2)]


@pytest.mark.parametrize(
    ("name", "ways"),
    [
        pytest.param(case.name, ways, marks=marks, id=f"{case.name}-{which}")
        for index, case in enumerate(published.CASES)
        for which, ways, marks in (
            ("one", [DIVIDED[index % len(DIVIDED)]], ()),
            ("all", DIVIDED, pytest.mark.exhaustive),
        )
    ],
)
def test_every_published_model(name: str, ways: list[tuple[int, int]], tmp_path: Path) -> None:
    """Only the order of sums differs from the whole plan's, and stages alone have its bits."""
    folder = published.save(published.case(name).make(), tmp_path)
    model = running.build(folder)
    counts = [8] * len(model.plan.groups)
    whole = running.chunked(running.reference(folder, 8, model), TOKENS, [7, 1])
    for tensor, pipeline in ways:
        program = ranks.Together(
            model.plan, model.weights, tensor, pipeline, page_counts=counts, page_size=running.PAGE
        )
        found = running.chunked(program, TOKENS, [7, 1])  # type: ignore[arg-type]
        if tensor == 1:
            np.testing.assert_array_equal(found, whole)
        else:
            np.testing.assert_allclose(found, whole, rtol=0, atol=1e-4, err_msg=f"{tensor} × {pipeline}")
            assert any(found.parts for found in program.splits), "something is divided"


@pytest.mark.parametrize(("tensor", "pipeline"), DIVIDED)
def test_plans_by_chance(tensor: int, pipeline: int) -> None:
    met: Counter[str] = Counter()

    def check(case: random_plans.Case) -> None:
        expected = agreeing.Expected(case)
        try:
            program = ranks.Together(
                case.plan, case.weights, tensor, pipeline, page_counts=case.pages, page_size=32
            )
        except OlivineError as error:
            assert "can be cut at" in str(error)
            return
        met.update(op.kind for found in program.splits for plan in found.plans for op in plan.ops)
        met["parts"] += sum(len(found.parts) for found in program.splits)
        if not expected.undecided(agreeing.FLOAT32):
            found = expected.disagreement(case.run(program), agreeing.FLOAT32)  # type: ignore[arg-type]
            assert found is None, f"divided, it is {found}"

    random_plans.check_each(check, random_plans.LARGE, 15, 10 * tensor + pipeline)
    assert tensor == 1 or (met["all_reduce"] and met["all_gather"] and met["parts"] > 50)
    assert pipeline == 1 or (met["send"] and met["receive"])


# ---- what is divided, and what is not


def llama(heads: int, kv_heads: int, d: int, hidden: int, layers: int = 1, vocabulary: int = 64) -> Plan:
    width = 32
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (vocabulary, width)}

    def forward(t: Trace, _: None) -> None:
        x = t.embed("token_embd", width)
        for i in range(layers):
            b = t.scope(f"blk.{i}")
            h = b.rms_norm(x, "attn_norm", 1e-6)
            cache = b.cache(kv_heads, d)
            b.store(cache, b.linear(h, "attn_k", kv_heads * d), b.linear(h, "attn_v", kv_heads * d))
            a = b.attention(b.linear(h, "attn_q", heads * d), cache, scale=1.0)
            x = b.add(x, b.linear(a, "attn_output", width))
            h = b.rms_norm(x, "ffn_norm", 1e-6)
            g = b.gate(b.linear(h, "ffn_gate", hidden), b.linear(h, "ffn_up", hidden), "silu")
            x = b.add(x, b.linear(g, "ffn_down", width))
        x = t.rms_norm(t.take_outputs(x), "output_norm", 1e-6)
        t.finish(hidden=x, logits=t.linear(x, "token_embd", vocabulary))

    return trace("llama", forward, None, shapes)


def shapes(plan: Plan) -> dict[str, tuple[int, ...]]:
    return {weight.name: weight.shape for weight in plan.weights}


def test_what_a_rank_of_a_llama_has() -> None:
    found = split(llama(8, 2, 4, 48), 2)
    assert not found.notes
    assert shapes(found.plans[1]) == {
        "token_embd.weight[32:64]": (32, 32),
        "blk.0.attn_norm.weight": (32,),
        "blk.0.attn_k.weight[4:8]": (4, 32),
        "blk.0.attn_v.weight[4:8]": (4, 32),
        "blk.0.attn_q.weight[16:32]": (16, 32),
        "blk.0.attn_output.weight[:, 16:32]": (32, 16),
        "blk.0.ffn_norm.weight": (32,),
        "blk.0.ffn_gate.weight[24:48]": (24, 32),
        "blk.0.ffn_up.weight[24:48]": (24, 32),
        "blk.0.ffn_down.weight[:, 24:48]": (32, 24),
        "output_norm.weight": (32,),
    }
    meets = [op for op in found.plans[0].ops if isinstance(op, AllReduce | AllGather)]
    # The embedding, attention, the MLP; and the logits.
    assert [type(op) for op in meets] == [AllReduce, AllReduce, AllReduce, AllGather]
    assert found.plans[0].logits.width == 64
    assert found.plans[0].caches[0].kv_heads == 1


def test_ranks_share_a_kv_head_where_there_are_few() -> None:
    found = split(llama(8, 2, 4, 48), 4)
    assert not found.notes
    keys = [next(name for name in shapes(plan) if "attn_k" in name) for plan in found.plans]
    assert keys == [f"blk.0.attn_k.weight[{cut}]" for cut in ("0:4", "0:4", "4:8", "4:8")]
    queries = [next(name for name in shapes(plan) if "attn_q" in name) for plan in found.plans]
    assert queries == [f"blk.0.attn_q.weight[{8 * i}:{8 * i + 8}]" for i in range(4)]


def test_what_cannot_be_divided_is_whole_and_told() -> None:
    found = split(llama(8, 2, 4, 48), 3)
    assert found.notes == (
        "cache0: 8 query heads on 2 KV heads of 4 cannot be divided among 3 ranks: each has them all",
    )
    assert "blk.0.attn_q.weight" in shapes(found.plans[2])
    assert shapes(found.plans[2])["blk.0.ffn_down.weight[:, 32:48]"] == (32, 16)


def test_columns_are_cut_between_blocks() -> None:
    """The 48 columns of the MLP are three blocks of 16: two ranks have one and two of them."""
    found = split(llama(8, 2, 4, 48), 2, lambda weight: 16)
    assert [shapes(plan).get("blk.0.ffn_down.weight[:, 0:16]") for plan in found.plans] == [(32, 16), None]
    assert shapes(found.plans[1])["blk.0.ffn_down.weight[:, 16:48]"] == (32, 32)
    found = split(llama(8, 2, 4, 48), 2, lambda weight: 48)
    assert len(found.notes) == 2 and "48 columns in units of 48" in found.notes[1]


def test_heads_are_cut_between_blocks() -> None:
    """Blocks of 32 columns of the output projection are two KV heads' queries."""
    found = split(llama(16, 4, 4, 64), 2, lambda weight: 32 if "output" in weight.name else 1)
    assert shapes(found.plans[1])["blk.0.attn_output.weight[:, 32:64]"] == (32, 32)
    assert split(llama(16, 4, 4, 64), 4, lambda weight: 32 if "output" in weight.name else 1).notes


@pytest.mark.parametrize(("total", "unit", "count"), [(10, 1, 3), (64, 16, 4), (7, 7, 1), (100, 10, 7)])
def test_even_cuts(total: int, unit: int, count: int) -> None:
    found = even(total, unit, count)
    assert found is not None
    assert found[0][0] == 0 and found[-1][1] == total
    assert all(a[1] == b[0] for a, b in pairwise(found))
    sizes = [stop - start for start, stop in found]
    assert min(sizes) > 0 and max(sizes) - min(sizes) <= unit and not any(size % unit for size in sizes)


def test_cuts_that_leave_a_rank_without() -> None:
    assert even(3, 1, 4) is None and even(64, 32, 3) is None and even(33, 32, 1) is None


# ---- stages


def elements(weight: Weight) -> int:
    return int(np.prod(weight.shape))


def test_stages_are_cut_between_layers_of_equal_size() -> None:
    plan = llama(8, 2, 4, 48, layers=8, vocabulary=1)
    first, second = stages(plan, 2, elements)
    assert [cache.id for cache in first.caches] == [0, 1, 2, 3]
    assert [cache.id for cache in second.caches] == [4, 5, 6, 7]
    assert [op.x.width for op in first.ops if isinstance(op, Send)] == [32]
    assert [op.out.width for op in second.ops if isinstance(op, Receive)] == [32]
    assert first.hidden.width == 0 and second.hidden == plan.hidden


def test_the_keys_of_another_stage_are_stored_again() -> None:
    """Layers that read the cache of a layer before: the stage of each stores it."""

    def forward(t: Trace, _: None) -> None:
        x = t.embed("table", 16)
        cache = t.cache(1, 16)
        k = t.linear(x, "k", 16)
        t.store(cache, k, k)
        for i in range(4):
            q = t.linear(t.linear(t.rms_norm(x, f"norm{i}", 1e-6), f"a{i}", 16), f"b{i}", 16)
            a = t.attention(t.rms_norm(q, None, 1e-6), cache, scale=1.0)
            x = t.add(x, t.linear(a, f"o{i}", 16))
        x = t.take_outputs(x)
        t.finish(hidden=x, logits=t.linear(x, "table", 4))

    plan = trace("shared", forward, None, {"table.weight": (4, 16)})
    parts = stages(plan, 2, elements)
    for part in parts:
        assert sum(isinstance(op, ops.StoreKV) for op in part.ops) == 1
        assert [cache.id for cache in part.caches] == [0]
    handed = [op.out for op in parts[1].ops if isinstance(op, Receive)]
    assert len(handed) == 2 and all(isinstance(value, Value) for value in handed)


def test_too_many_stages_are_refused() -> None:
    with pytest.raises(OlivineError, match=r"llama can be cut at \d places: 40 stages are too many"):
        stages(llama(8, 2, 4, 48), 40, elements)


def test_no_ranks_are_refused() -> None:
    plan = llama(2, 1, 4, 8)
    with pytest.raises(OlivineError, match="1 rank or more, not 0"):
        split(plan, 0)
    with pytest.raises(OlivineError, match="1 stage or more, not 0"):
        stages(plan, 0, elements)
