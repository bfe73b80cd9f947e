"""Whole models on the CUDA backend in Triton's interpreter, against the reference backend and the definition
of sampling."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("triton")
if os.environ["TRITON_INTERPRET"] != "1":
    pytest.skip("these tests run in Triton's interpreter", allow_module_level=True)

import torch

from olivine.backends import Batch, Draw, Sampling
from olivine.backends.cuda import CudaProgram, chain
from olivine.backends.cuda.chain import fits_chain, is_adjusted
from olivine.backends.cuda.kernels.reports import TOPS
from olivine.backends.cuda.weights import load
from olivine.backends.reference import ReferenceProgram
from olivine.dtypes import DTYPES
from olivine.engine import sampling as definition
from olivine.errors import ModelError
from oracles import published, routing, running, soft
from oracles.isas import error

TOKENS = [int(t) for t in np.random.default_rng(7).integers(0, published.VOCABULARY, 40)]


# What `small` changes of some cases beside: Gemma 4's layers are one that writes and one that reads of each
# kind.
CHANGES: dict[str, dict[str, Any]] = {
    "gemma4-everything": {
        "num_hidden_layers": 4,
        "num_kv_shared_layers": 2,
        "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
        "num_experts": 4,
        "top_k_experts": 2,
        "vocab_size_per_layer_input": 32,
    },
    "qwen3moe-normalized": {"num_experts": 4, "num_experts_per_tok": 2},
    "smollm3": {"no_rope_layer_interval": 2},
    "olmo3": {"layer_types": ["sliding_attention", "full_attention"]},
    "exaone4-hybrid": {"layer_types": ["sliding_attention", "full_attention"]},
}
RICHEST = ("gemma4-everything", "llama-biases", "qwen3-bias", "phi4-mini")
# The others put the same ops together in other ways, as random plans do.
EVERY_DAY = (
    "gemma4-everything", "qwen3moe-normalized", "phi4-mini", "olmo2",
)  # fmt: skip


def small(case: published.Case) -> published.Case:
    """Two layers, 32 tokens, a narrow MLP: the interpreter is slow. Lists with an item a layer are cut."""
    layers = CHANGES.get(case.name, {}).get("num_hidden_layers", 2)
    before = case.options["num_hidden_layers"]
    cut = {
        key: value[:layers]
        for key, value in case.options.items()
        if isinstance(value, list) and len(value) == before
    }
    changes = {"num_hidden_layers": layers, "vocab_size": 32, "intermediate_size": 16}
    return replace(case, options={**case.options, **cut, **changes, **CHANGES.get(case.name, {})})


def every_architecture() -> list[published.Case]:
    """A case of each published model class: the one that has most in it, or the first."""
    found: dict[str, published.Case] = {}
    for case in published.CASES:
        kind = case.config.__name__
        if kind not in found or case.name in RICHEST:
            found[kind] = case
    return list(found.values())


def agrees(case: published.Case, folder: Path, count: int, room: int) -> tuple[CudaProgram, running.Session]:
    """Compares rows of a prompt and the generated row after them. The bound, 4 %, is that of bfloat16, for
    rows that take the reference's experts; two logits within it choose other ones up to 8 %."""
    published.save(case.make(), folder)
    model = running.build(folder)
    tokens = [token % model.plan.logits.width for token in TOKENS[: count + 1]]
    counts = [4] * len(model.plan.groups)
    reference = routing.Recording(model.plan, model.weights, page_counts=counts, page_size=32)
    ours = CudaProgram(model.plan, model.weights, page_counts=counts, device="cpu")
    theirs = running.chunked(reference, tokens, [count + 1])
    session = running.Session(ours, 1, 64)
    with routing.same_experts(ours, reference) as gaps:
        for part, generated in ((slice(0, count), False), (slice(count, count + 1), True)):
            mine = session.step([(0, tokens[part])], generated=generated)[0]
            rows = np.sqrt(np.mean(np.square(mine - theirs[part]), axis=1)) / theirs[part].std()
            assert np.quantile(rows, 0.9) < 0.04 * room
    assert max(gaps, default=0) < 0.08 * room
    return ours, session


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=case.name, marks=() if case.name in EVERY_DAY else pytest.mark.exhaustive)
        for case in every_architecture()
    ],
)
def test_every_architecture_agrees_with_the_reference(case: published.Case, tmp_path: Path) -> None:
    agrees(small(case), tmp_path, count=4, room=1)


@pytest.mark.parametrize(
    "name", ["gemma3-mqa-small-window", pytest.param("gemma4-31b", marks=pytest.mark.exhaustive)]
)
def test_soft_tokens_agree_with_the_reference(name: str, tmp_path: Path) -> None:
    """Rows of an image see all of it; in a batch with others they have the bits that they have alone."""
    model = running.build(published.save(small(published.case(name)).make(), tmp_path))
    counts = [4] * len(model.plan.groups)
    given = soft.prompt(14, [(1, 6), (8, 4)], 36, vocabulary=32)
    text = soft.prompt(5, [], 36, vocabulary=32, seed=1)
    reference = ReferenceProgram(model.plan, model.weights, page_counts=counts, page_size=32)
    ours = CudaProgram(model.plan, model.weights, page_counts=counts, device="cpu")
    theirs, alone = (soft.logits_of(program, given, [14]) for program in (reference, ours))
    assert error(alone, theirs) < 0.04
    causal = soft.prompt(14, [(1, 6), (8, 4)], 36, vocabulary=32, bidirectional=False)
    assert error(soft.logits_of(reference, causal, [14]), theirs) > 0.1
    session = running.Session(ours, 2, 32)
    mixed = ours.step(soft.batch_of(session, [(1, text, 0, 5), (0, given, 0, 7)])).logits
    rest = ours.step(soft.batch_of(session, [(0, given, 7, 14)])).logits
    assert np.array_equal(np.concatenate([mixed[5:], rest]), alone)
    assert np.array_equal(mixed[:5], soft.logits_of(ours, text, [5]))


@pytest.mark.parametrize(
    ("case", "count"),
    [
        pytest.param(small(published.case("llama-tied")), 2, id="llama-small"),
        *(pytest.param(case, 9, id=case.name, marks=pytest.mark.exhaustive) for case in published.CASES),
    ],
)
def test_whole_models_and_chains_agree_with_the_reference(
    case: published.Case, count: int, tmp_path: Path
) -> None:
    """Prompt rows, then a generated row, then a chain, which draws what single steps give."""
    ours, session = agrees(case, tmp_path, count, published.ROOM.get(case.name, 1))
    first = TOKENS[count + 1] % ours.plan.logits.width
    start = Batch(
        np.array([first], np.int32), np.zeros(1, np.int32), np.array([count + 1], np.int32),
        np.zeros(1, np.int32), session.tables, np.ones(1, bool),
    )  # fmt: skip
    sampling = Sampling(temperature=0.8, top_k=9, seed=3)
    chained = ours.generate(start, [Draw(sampling)], 2)[0].tokens
    again: list[int] = []
    token = first
    for position in (count + 1, count + 2):
        batch = replace(start, tokens=np.array([token], np.int32), positions=np.array([position], np.int32))
        token = definition.sample(ours.step(batch).logits[0], sampling, position + 1)
        again.append(token)
    assert chained == again


# What these are about comes after the model.
ONE_LAYER = {
    "num_hidden_layers": 1,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}


@pytest.mark.parametrize("count", [3, pytest.param(5, marks=pytest.mark.exhaustive)])
def test_penalties_bias_and_mask_in_a_chain(tmp_path, count: int) -> None:  # type: ignore[no-untyped-def]
    """Chains that adjust logits draw what the definition draws, step by step, and without the host."""
    case = published.case("llama-biases")
    published.save(replace(case, options={**case.options, **ONE_LAYER}).make(), tmp_path)
    model = running.build(tmp_path)
    program = CudaProgram(model.plan, model.weights, page_counts=[16], device="cpu")
    size = model.plan.logits.width
    mask = np.zeros(-(-size // 32), np.int32)
    mask[1] = 0x0000FF00
    draws = [
        Draw(
            Sampling(repetition_penalty=1.7, frequency_penalty=0.3, presence_penalty=0.2), prompt=TOKENS[:3]
        ),
        Draw(Sampling(repetition_penalty=3.0, repeat_last_n=2, logit_bias={5: 2.5}), prompt=TOKENS[:3]),
        Draw(Sampling(temperature=0.9, top_k=9, seed=2), prompt=TOKENS[:3], mask=lambda: mask),
        Draw(Sampling(), prompt=TOKENS[:3], mask=lambda: mask[:1]),
        Draw(Sampling(), prompt=TOKENS[:3], stop=tuple(range(0, 96, 3)), at_least=2),
        Draw(Sampling(), prompt=TOKENS[:3], stop=tuple(range(30)), at_least=2),
    ]
    session = running.Session(program, len(draws), 64)
    batch = session.batch([(i, TOKENS[:3], False) for i in range(len(draws))])
    ends = np.arange(1, len(draws) + 1, dtype=np.int32) * 3 - 1
    assert all(fits_chain(draw) and is_adjusted(draw) for draw in draws)
    found = program.generate(replace(batch, outputs=ends), draws, count)
    assert found[3].tokens == [] and "does not reach" in (found[3].error or "")
    alone = running.Session(program, len(draws), 64, seed=1)
    prompts = alone.step([(i, TOKENS[:3]) for i in range(len(draws))])
    for i, draw in enumerate(draws):
        if i == 3:
            continue
        logits = prompts[i][-1]
        output: list[int] = []
        stopped = False
        for step in range(count):
            illegal = draw.stop if step < draw.at_least else ()
            x = definition.adjust(
                logits, draw.sampling, TOKENS[:3], output, mask if draw.mask and step == 0 else None, illegal
            )
            token = definition.choose(x, draw.sampling, 3 + step)
            if token in draw.stop:
                stopped = True
                break
            output.append(token)
            if step + 1 < count:
                logits = alone.step([(i, [token])], generated=True)[0][0]
        assert (found[i].tokens, found[i].stopped) == (output, stopped), i
    assert found[2].tokens[0] in range(40, 48)


def test_draws_that_need_the_host(tmp_path) -> None:  # type: ignore[no-untyped-def]
    """Forced tokens, log-probabilities beside them, many stop tokens, and refusals, as defined."""
    case = published.case("llama-tied")
    published.save(replace(case, options={**case.options, **ONE_LAYER}).make(), tmp_path)
    model = running.build(tmp_path)
    program = CudaProgram(model.plan, model.weights, page_counts=[16], device="cpu")
    penal = Sampling(
        temperature=0.8, seed=4, repetition_penalty=1.4, presence_penalty=0.3, logit_bias={7: 3.0}
    )
    draws = [
        Draw(Sampling(), logprobs=3),
        Draw(penal, prompt=TOKENS[:3], logprobs=0),
        Draw(Sampling(), forced=11, logprobs=2),
        Draw(Sampling(), logprobs=2, mask=lambda: np.full(99, 0x0F0F, np.int32)),
        Draw(Sampling(), stop=tuple(range(0, 120, 3)), at_least=1),
        Draw(Sampling(logit_bias={10**6: 1.0})),
    ]
    session = running.Session(program, len(draws), 64)
    batch = session.batch([(i, TOKENS[:3], False) for i in range(len(draws))])
    logits = program.step(batch).logits[2::3]
    ends = np.arange(1, len(draws) + 1, dtype=np.int32) * 3 - 1
    found = program.generate(replace(batch, outputs=ends), draws)
    for drawn, draw, row in zip(found[:5], draws, logits, strict=False):
        expected = definition.draw(row, draw, 3)
        assert (drawn.tokens, drawn.stopped, drawn.error) == (expected.tokens, expected.stopped, None)
        for ours, theirs in zip(drawn.logprobs, expected.logprobs, strict=True):
            assert ours.logprob == pytest.approx(theirs.logprob, abs=1e-6)
            assert ours.top_tokens == theirs.top_tokens
    assert found[5].error is not None and "logit_bias names token 1000000" in found[5].error


@pytest.mark.parametrize("most", [2, chain.MAX_TOKENS])
def test_log_probabilities_of_a_chain(tmp_path, monkeypatch, most: int) -> None:  # type: ignore[no-untyped-def]
    """As the definition gives them, token by token, beside rows that want none, and after a mask; read at the
    end, or in between as well."""
    monkeypatch.setattr(chain, "MAX_TOKENS", most)
    case = published.case("llama-tied")
    published.save(replace(case, options={**case.options, **ONE_LAYER}).make(), tmp_path)
    model = running.build(tmp_path)
    program = CudaProgram(model.plan, model.weights, page_counts=[16], device="cpu")
    mask = np.full(99, 0x0F0F, np.int32)
    draws = [
        Draw(Sampling(), logprobs=3),
        Draw(Sampling(temperature=0.9, top_k=9, seed=4, presence_penalty=0.3), TOKENS[:3], logprobs=0),
        Draw(Sampling()),
        Draw(Sampling(temperature=0.7, seed=2), logprobs=TOPS, mask=lambda: mask),
    ]
    session = running.Session(program, len(draws), 64)
    batch = session.batch([(i, TOKENS[:3], False) for i in range(len(draws))])
    ends = np.arange(1, len(draws) + 1, dtype=np.int32) * 3 - 1
    found = program.generate(replace(batch, outputs=ends), draws, 3)
    for i, draw in enumerate(draws):
        alone = running.Session(program, len(draws), 64)
        logits = alone.step([(i, TOKENS[:3])])[0][-1]
        assert len(found[i].logprobs) == (0 if draw.logprobs is None else 3)
        for step, token in enumerate(found[i].tokens):
            expected = definition.draw(logits, step_of(draw, found[i].tokens[:step]), 3 + step)
            assert [token] == expected.tokens
            for ours, theirs in zip(found[i].logprobs[step : step + 1], expected.logprobs, strict=True):
                assert ours.logprob == pytest.approx(theirs.logprob, abs=1e-9)
                assert ours.top_tokens == theirs.top_tokens
                assert ours.top_logprobs == pytest.approx(theirs.top_logprobs, abs=1e-9)
            if step < 2:
                logits = alone.step([(i, [token])], generated=True)[0][0]


def step_of(draw: Draw, output: list[int]) -> Draw:
    """The draw after these tokens; only the first one has a mask."""
    return replace(draw, output=output, mask=None if output else draw.mask)


def test_a_model_that_does_not_fit_is_refused_with_the_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is loaded: neither the weight nor the GPU is there."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (24_000_000_000, 25_000_000_000))
    plan: Any = SimpleNamespace(weights=[SimpleNamespace(name="w")])
    given: Any = {"w": [SimpleNamespace(nbytes=18_000_000_000, size=9_000_000_000, dtype=DTYPES["BF16"])]}
    told = r"18\.0 GB of weights, 5\.0 GB of KV cache and 1\.3 GB for steps, and 24\.0 of 25\.0 GB are free"
    with pytest.raises(ModelError, match=told):
        load(plan, given, torch.device("cuda"), reserve=5_000_000_000)
