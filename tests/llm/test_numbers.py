"""The Python API: embeddings and scores."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import olivine
from olivine import LLM, RequestError
from olivine.backends import Batch
from oracles import folders, running
from oracles.llms import PROMPT, prefix
from oracles.waiting import eventually


@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_embeddings_are_pooled_hidden_states_of_length_one(llm: LLM, pooling: Any) -> None:
    ids = llm.tokenizer.encode(PROMPT)
    raw = llm.embed(PROMPT, pooling=pooling, normalize=False)
    rows = np.arange(len(ids), dtype=np.int32)
    twin = running.reference(llm.checkpoint.path)
    table = np.arange(-(-len(ids) // twin.page_size), dtype=np.int32)[None]
    tables = (table,) * len(twin.plan.groups)
    hidden = twin.step(Batch(np.array(ids, np.int32), rows * 0, rows, rows, tables)).hidden
    theirs = hidden.mean(0) if pooling == "mean" else hidden[-1]
    assert raw.shape == theirs.shape and raw.dtype == np.float32
    assert np.abs(raw - theirs).max() < 0.05 * np.abs(theirs).max()
    unit = llm.embed(PROMPT, pooling=pooling)
    assert np.linalg.norm(unit) == pytest.approx(1.0, abs=1e-5)
    assert unit == pytest.approx(raw / np.linalg.norm(raw), abs=1e-5)


def test_embeddings_of_a_list_are_rows(llm: LLM) -> None:
    found = llm.embed([PROMPT, "x", [5, 6, 7]])
    assert found.shape == (3, llm.model.plan.hidden.width)
    for row, text in zip(found, [PROMPT, "x", [5, 6, 7]], strict=True):
        assert row == pytest.approx(llm.embed(text), abs=1e-5)  # type: ignore[arg-type]
    assert llm.embed(np.array([5, 6, 7])) == pytest.approx(found[2], abs=1e-5)  # type: ignore[arg-type]
    assert llm.embed([]).shape == (0, llm.model.plan.hidden.width)
    with pytest.raises(RequestError, match="pooling must be 'mean' or 'last', and is 'max'"):
        llm.embed("x", pooling="max")  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="normalize must be True or False, and is 'no'"):
        llm.embed("x", normalize="no")  # type: ignore[call-overload]


def test_embeddings_and_scores_tell_what_they_took(fresh: LLM) -> None:
    ids = fresh.tokenizer.encode(PROMPT)
    found, usage = fresh.embed([PROMPT, [5, 6, 7]], return_usage=True, pooling="last")
    assert found.shape[0] == 2
    assert (usage.prompt, usage.cached, usage.completion) == (len(ids) + 3, 0, 0)
    one, usage = fresh.embed(PROMPT, return_usage=True, pooling="last")
    assert one == pytest.approx(found[0], abs=1e-5)
    assert (usage.prompt, usage.cached) == (len(ids), prefix(ids, fresh))
    assert fresh.embed([], return_usage=True)[1] == olivine.Usage()
    score = fresh.score(PROMPT, [5, 6])
    assert (score.usage.prompt, score.usage.cached) == (len(ids) + 2, prefix(ids, fresh))
    _, usage = asyncio.run(fresh.aembed("x", return_usage=True))
    assert usage.prompt > 0


def test_scores_are_those_of_step_by_step_logits(llm: LLM) -> None:
    before = llm.tokenizer.encode(PROMPT)
    after = llm.tokenizer.encode(" and so it goes", add_special=False)
    score = llm.score(PROMPT, " and so it goes")
    assert score.tokens == after
    logits = running.chunked(running.reference(llm.checkpoint.path), before + after, [1]).astype(np.float64)
    exact = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    theirs = [exact[len(before) + i - 1, token] for i, token in enumerate(after)]
    bound = 1e-3 if llm.device == "reference" else 0.3
    assert score.logprobs == pytest.approx(theirs, abs=bound)
    assert score.logprob == pytest.approx(sum(score.logprobs))
    assert score.greedy is False
    assert llm.score(before, after).logprobs == pytest.approx(score.logprobs, abs=1e-5)


def test_a_score_is_greedy_if_every_token_is_the_likeliest(fresh: LLM) -> None:
    likeliest = fresh.generate(PROMPT, max_tokens=8, ignore_eos=True).tokens
    assert fresh.score(PROMPT, likeliest).greedy is True
    assert fresh.score(PROMPT, [*likeliest[:-1], (likeliest[-1] + 1) % 1024]).greedy is False


def test_scores_of_many_pairs_come_in_order_and_need_something_before(llm: LLM) -> None:
    pairs: list[Any] = [("one", " two"), (PROMPT, "x"), ([5], [6, 7])]
    alone = [llm.score(*pair).logprobs for pair in pairs]
    for one, many in zip(alone, llm.score_many(pairs), strict=True):
        assert many.logprobs == pytest.approx(one, abs=1e-5)
    with pytest.raises(RequestError, match="at least one token before"):
        llm.score([], [5, 6])


def test_a_continuation_is_scored_without_a_space_of_its_own(tmp_path: Path) -> None:
    """Tokenizers of Llama 2's kind put one in front of a text."""
    with olivine.load(folders.write("phi3", tmp_path), device="cpu", context=64, threads=1) as llm:
        words = llm.tokenizer
        for before, after in (("the thing is", " hello"), ("the thing is hel", "lo"), ("x = ", "1")):
            tokens = llm.score(before, after).tokens
            assert words.decode([*words.encode(before), *tokens]) == before + after
            assert llm.score(words.encode(before), after).tokens == tokens
            assert asyncio.run(llm.ascore(before, after)).tokens == tokens
        assert llm.score("", "hello").tokens == words.encode("hello", add_special=False), "a text of its own"
        with pytest.raises(RequestError, match="token ids must lie in"):
            llm.score([1 << 20], "hello")
        for pairs in (["ab"], [("a", "b", "c")], [5]):
            with pytest.raises(RequestError, match="score_many takes pairs"):
                llm.score_many(pairs)  # type: ignore[arg-type]
        for many in (llm.score_many, llm.generate_many, llm.chat_many):
            with pytest.raises(RequestError, match=f"{many.__name__} takes a list"):
                many(None)  # type: ignore[arg-type]
        for texts in (None, 5, {"a": 1}, {"a", "b"}, (text for text in "ab")):
            with pytest.raises(RequestError, match="embed takes a text, or a list of them, and not "):
                llm.embed(texts)  # type: ignore[call-overload]


def test_a_prompt_without_tokens_has_no_log_probabilities(llm: LLM) -> None:
    with pytest.raises(RequestError, match="the prompt is empty"):
        llm.submit_prompt_logprobs([[5, 6], []], [lambda update: None] * 2)
    eventually(lambda: not llm.stats().running + llm.stats().waiting)
