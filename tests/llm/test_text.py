"""The Python API: completions and streams."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import olivine
from olivine import LLM, RequestError, Sampling
from olivine.engine.sequence import Sequence as RunningSequence
from oracles.llms import CONTEXT, PROMPT, all_free, gate, prefix, the_sequence
from oracles.waiting import eventually


def test_the_pieces_of_a_stream_are_the_completion(llm: LLM) -> None:
    pieces = list(llm.stream(PROMPT, max_tokens=24, temperature=1.0, seed=5))
    completion = pieces[-1].completion
    assert completion is not None and all(piece.completion is None for piece in pieces[:-1])
    assert "".join(map(str, pieces)) == completion.text
    assert [token for piece in pieces for token in piece.tokens] == completion.tokens
    assert max(piece.prefilled for piece in pieces) == len(llm.tokenizer.encode(PROMPT))
    again = llm.generate(PROMPT, max_tokens=24, temperature=1.0, seed=5)
    assert (again.text, again.tokens, again.seed) == (completion.text, completion.tokens, 5)
    assert completion.usage.prompt == len(llm.tokenizer.encode(PROMPT))
    assert completion.usage.completion == 24 and completion.finish_reason == "length"
    assert completion.timings.prefill > 0 and completion.timings.decode > 0


def test_tokens_may_stand_for_text(llm: LLM) -> None:
    whole = llm.generate(PROMPT, max_tokens=8)
    assert llm.generate(llm.tokenizer.encode(PROMPT), max_tokens=8).tokens == whole.tokens
    ids = np.array(llm.tokenizer.encode(PROMPT))
    assert llm.generate(ids, max_tokens=8).tokens == whole.tokens  # type: ignore[arg-type]


def test_generation_ends_at_a_stop_string_wherever_tokens_end(llm: LLM) -> None:
    how: dict[str, Any] = {"max_tokens": 40, "temperature": 1.0, "seed": 11, "ignore_eos": True}
    whole = llm.generate(PROMPT, **how)
    assert len(whole.text) > 24
    for start, end in ((0, 1), (5, 12), (9, 14), (len(whole.text) - 6, len(whole.text))):
        stop = whole.text[start:end]
        cut = whole.text.find(stop)
        pieces = list(llm.stream(PROMPT, stop=["never said", stop], **how))
        completion = pieces[-1].completion
        assert completion is not None and completion.finish_reason == "stop"
        assert "".join(map(str, pieces)) == completion.text == whole.text[:cut]
        assert completion.tokens == whole.tokens[: len(completion.tokens)]
        assert completion.usage.completion == len(completion.tokens) <= 40
        assert llm.generate(PROMPT, stop=stop, **how).text == completion.text
    assert llm.generate(PROMPT, stop=whole.text[-4:] + "!", **how).text == whole.text
    eventually(lambda: all_free(llm))


def test_completions_of_one_prompt_differ_and_share_its_prefill(llm: LLM) -> None:
    prompt = "Several: " + PROMPT  # that nobody has read before
    several = llm.generate_many([prompt], n=4, temperature=1.0, seed=100, max_tokens=12)
    assert len({completion.text for completion in several}) == 4
    assert [completion.seed for completion in several] == [100, 101, 102, 103]
    tokens = llm.tokenizer.encode(prompt)
    assert prefix(tokens, llm) > 0
    assert [completion.usage.cached for completion in several] == [0] + [prefix(tokens, llm)] * 3
    for i, completion in enumerate(several):
        alone = llm.generate(prompt, temperature=1.0, seed=100 + i, max_tokens=12)
        assert (alone.text, alone.tokens) == (completion.text, completion.tokens)


def test_many_prompts_come_back_in_order(llm: LLM) -> None:
    prompts = ["one", "two two", [5, 6, 7]]
    many = llm.generate_many(prompts, n=2, temperature=0.9, seed=3, max_tokens=6)
    alone = [
        llm.generate(prompt, temperature=0.9, seed=3 + i, max_tokens=6) for prompt in prompts for i in (0, 1)
    ]
    assert [completion.tokens for completion in many] == [completion.tokens for completion in alone]
    with pytest.raises(RequestError, match="n must be at least 1"):
        llm.generate_many(prompts, n=0)
    assert llm.generate_many([]) == []


def test_more_prompts_than_may_wait_are_no_problem(fresh: LLM) -> None:
    fresh._engine._queue = 72
    many = fresh.generate_many([[1 + i % 50] for i in range(200)], max_tokens=1)
    assert len(many) == 200 and many[0].tokens == many[50].tokens != many[1].tokens
    assert len(fresh.score_many([([1], [2])] * 100)) == 100
    assert fresh.embed([[1]] * 100).shape[0] == 100


def test_one_bad_prompt_of_many_leaves_nothing_behind(fresh: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    added: list[RunningSequence] = []
    add = fresh._engine._scheduler.add
    monkeypatch.setattr(fresh._engine._scheduler, "add", lambda run: (added.append(run), add(run)))
    with pytest.raises(RequestError, match="the context holds 256"):
        fresh.generate_many([PROMPT, [1] * 300], max_tokens=None, ignore_eos=True)
    eventually(lambda: bool(added))
    assert added[0].cancelled
    with pytest.raises(RequestError, match="empty"):
        fresh.embed([PROMPT, []])
    with pytest.raises(RequestError, match="continuation is empty"):
        fresh.score_many([(PROMPT, "x"), (PROMPT, "")])
    eventually(lambda: all_free(fresh))


def test_seeds_are_reported_and_give_the_same_text_again(llm: LLM) -> None:
    first, second = (llm.generate("x", temperature=1.2, max_tokens=16) for _ in range(2))
    assert first.seed != second.seed and first.tokens != second.tokens
    assert llm.generate("x", temperature=1.2, max_tokens=16, seed=first.seed).tokens == first.tokens
    chosen = Sampling(temperature=1.2, seed=first.seed)
    assert llm.generate("x", sampling=chosen, max_tokens=16).tokens == first.tokens
    other = llm.generate("x", sampling=chosen, seed=second.seed, max_tokens=16)
    assert (other.tokens, other.seed) == (second.tokens, second.seed)
    top = (1 << 64) - 1
    assert [c.seed for c in llm.generate_many(["x"], n=2, seed=top, max_tokens=1)] == [top, 0]
    with pytest.raises(RequestError, match=r"seed must be between 0 and 2\^64 - 1, and is -1"):
        llm.generate("x", seed=-1)


def test_log_probabilities_have_a_shape_and_a_sum(llm: LLM) -> None:
    completion = llm.generate(PROMPT, max_tokens=5, temperature=1.0, seed=2, logprobs=3)
    assert completion.logprobs is not None and len(completion.logprobs) == 5
    assert [report.token for report in completion.logprobs] == completion.tokens
    for report in completion.logprobs:
        assert [top.logprob for top in report.top] == sorted(
            (top.logprob for top in report.top), reverse=True
        )
        assert len({top.token for top in report.top}) == 3
        assert report.text == llm.tokenizer.token_bytes(report.token).decode("utf-8", "replace")
    everything = llm.generate(PROMPT, max_tokens=2, logprobs=llm.vocabulary)
    assert everything.logprobs is not None
    for report in everything.logprobs:
        assert len(report.top) == llm.vocabulary
        assert sum(np.exp(top.logprob) for top in report.top) == pytest.approx(1.0, abs=1e-5)
        assert report.token == report.top[0].token and report.logprob == report.top[0].logprob
    bare = llm.generate(PROMPT, max_tokens=2, logprobs=0)
    assert bare.logprobs is not None and [report.top for report in bare.logprobs] == [(), ()]
    assert llm.generate(PROMPT, max_tokens=2).logprobs is None
    pieces = list(llm.stream(PROMPT, max_tokens=5, temperature=1.0, seed=2, logprobs=3))
    assert [report for piece in pieces for report in piece.logprobs or []] == completion.logprobs


def test_a_completion_is_as_likely_as_its_score_says(llm: LLM) -> None:
    completion = llm.generate(PROMPT, max_tokens=6, logprobs=0, ignore_eos=True)
    assert completion.logprobs is not None
    score = llm.score(PROMPT, completion.tokens)
    # Rows of a prompt and generated rows are computed in different precision on the CPU.
    assert score.logprobs == pytest.approx([report.logprob for report in completion.logprobs], abs=0.1)


def test_stop_tokens_end_it_unless_told_otherwise(llm: LLM) -> None:
    end = min(llm.tokenizer.stop_ids)
    talkative = {"logit_bias": {end: 1e4}}
    silent = llm.generate("x", max_tokens=8, **talkative)
    assert (silent.tokens, silent.text, silent.finish_reason) == ([], "", "stop")
    on = llm.generate("x", max_tokens=8, ignore_eos=True, **talkative)
    assert (on.tokens, on.finish_reason) == ([end] * 8, "length")
    late = llm.generate("x", max_tokens=8, min_tokens=3, **talkative)
    assert len(late.tokens) == 3 and end not in late.tokens and late.finish_reason == "stop"
    plain = llm.generate("x", max_tokens=8, temperature=1.0, seed=1, ignore_eos=True)
    at = next(i for i in range(2, 8) if plain.tokens[i] not in plain.tokens[:i])
    how: dict[str, Any] = {"temperature": 1.0, "seed": 1, "ignore_eos": True}
    cut = llm.generate("x", max_tokens=8, stop_tokens=[plain.tokens[at]], **how)
    assert (cut.tokens, cut.finish_reason) == (plain.tokens[:at], "stop")


def test_without_max_tokens_the_context_is_filled(llm: LLM) -> None:
    completion = llm.generate("x", max_tokens=None, ignore_eos=True)
    assert completion.usage.prompt + completion.usage.completion == CONTEXT
    assert completion.finish_reason == "length"
    assert len(llm.generate("x", ignore_eos=True, max_tokens=3).tokens) == 3


def test_a_second_turn_reads_only_what_is_new(llm: LLM) -> None:
    first = llm.generate(PROMPT + "?", max_tokens=40, ignore_eos=True)
    told = llm.tokenizer.encode(PROMPT + "?")
    turn = [*told, *first.tokens, 9, 9, 9]
    kinds = [False] * len(told) + [True] * len(first.tokens) + [False] * 3
    second = llm.generate(turn, generated=kinds, max_tokens=2)
    page = llm.program.page_size
    assert second.usage.cached == (len(told) + len(first.tokens) - 1) // page * page > len(told)


@pytest.mark.parametrize("call", ["generate", "stream", "generate_many"])
def test_unknown_options_are_refused_by_name(llm: LLM, call: str) -> None:
    prompt: Any = ["x"] if call == "generate_many" else "x"
    with pytest.raises(TypeError, match=r"'temprature'; known: .*temperature"):
        getattr(llm, call)(prompt, temprature=1.0)


def test_one_prompt_is_no_list_of_prompts(llm: LLM) -> None:
    with pytest.raises(RequestError, match="takes a list of prompts"):
        llm.generate_many("Hello")


def test_closing_ends_the_processes_that_look_at_grammars(fresh: LLM) -> None:
    fresh.grammar({"type": "regex", "regex": "[ab]"})
    checker = fresh.conversations.grammars._checker
    (process,) = checker._idle
    assert process.poll() is None
    fresh.close()
    assert process.poll() is not None and checker._idle == []


def test_n_is_for_generate_many_alone(llm: LLM) -> None:
    with pytest.raises(TypeError, match="no option 'n'"):
        llm.generate("x", n=2)


@pytest.mark.parametrize(
    ("prompt", "options", "message"),
    [
        ([5, 1024], {}, r"token ids must lie in 0\.\.1023, and one is 1024"),
        ([-1], {}, r"token ids must lie in 0\.\.1023, and one is -1"),
        ([], {}, "the prompt is empty"),
        ("x" * 400, {}, "tokens and the context holds 256"),
        ("x", {"max_tokens": 0}, "max_tokens must be at least 1"),
        ("x", {"temperature": -1.0}, "temperature must be between 0 and 100"),
        ("x", {"stop_tokens": [5000]}, "stop tokens must lie in .* 5000"),
        ("x", {"stop_tokens": [-1], "min_tokens": 2}, "stop tokens must lie in .* -1"),
        ("x", {"logit_bias": {1024: 1.0}}, "logit_bias must lie in .* 1024"),
        ("x", {"logprobs": -1}, "logprobs must be 0 or more, and is -1"),
        ([5, 6], {"generated": [True]}, "one entry a token"),
    ],
)
def test_requests_that_make_no_sense_are_refused(
    llm: LLM, prompt: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(RequestError, match=message):
        llm.generate(prompt, **options)


ILL_TYPED: tuple[dict[str, Any], ...] = (
    {"logprobs": True},
    {"seed": 1.5},
    {"top_k": 1.5},
    {"min_tokens": 1.5},
    {"logit_bias": {5: "a"}},
    {"temperature": "x"},
    {"temperature": float("nan")},
    {"repetition_penalty": 1e-300},
    {"max_tokens": -1},
    {"stop": [1]},
    {"stop_tokens": [1.5]},
)


def test_an_option_of_another_type_harms_nobody_else(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    how: dict[str, Any] = {"max_tokens": 20, "temperature": 1.0, "seed": 3, "ignore_eos": True}
    quiet = llm.generate(PROMPT, **how)
    for options in ILL_TYPED:
        neighbor = llm.stream(PROMPT, **how)
        with pytest.raises(RequestError, match=f"^{next(iter(options))}.* must be "):
            llm.generate("x", **options)
        completion = list(neighbor)[-1].completion
        assert completion is not None and completion.tokens == quiet.tokens
    assert llm.generate("x", max_tokens=2, stop=None, logit_bias={"5": 100}).tokens == [5, 5]
    assert (
        llm.generate("x", temperature=1e-300, max_tokens=2).tokens == llm.generate("x", max_tokens=2).tokens
    )


def test_leaving_a_stream_stops_it_even_before_it_began(fresh: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    go = gate(fresh, monkeypatch)
    pieces = fresh.stream("x", max_tokens=None, ignore_eos=True)
    unread = the_sequence(fresh)
    del pieces
    assert unread.cancelled
    go.set()
    eventually(lambda: all_free(fresh))
    for piece in fresh.stream("x", max_tokens=None, ignore_eos=True):
        if piece.tokens:
            go.clear()
            read = the_sequence(fresh)
            break
    assert read.cancelled
    go.set()
    eventually(lambda: all_free(fresh))


def test_a_constraint_that_is_no_grammar_is_refused_by_name(llm: LLM) -> None:
    with pytest.raises(RequestError, match=r"constraint must be a grammar, .*, and is <class 'int'>"):
        llm.generate("x", constraint=int)  # type: ignore[arg-type]


def test_a_text_that_only_repeats_itself_is_ended_where_that_is_asked_for(files: dict[str, Path]) -> None:
    """The grammar leaves no choice but 1,000 times the same letter, each a token."""
    with olivine.load(files["tiny-gemma3"], context=2048, threads=1) as llm:
        tokens = [llm.tokenizer.token_bytes(token) for token in range(llm.tokenizer.vocab_size)]
        letter = next(c for c in "zqxjkvwy" if not any(c.encode() * 2 in token for token in tokens))
        wanted = {"type": "regex", "regex": letter + "{1000}"}
        same = llm.grammar(wanted)
        short = llm.generate(PROMPT, constraint=same, max_tokens=None, stop_on_repetition=True, logprobs=0)
        assert short.finish_reason == "repetition"
        assert set(short.text) == {letter} and len(short.tokens) < 300
        whole = llm.generate(PROMPT, constraint=same, max_tokens=None, logprobs=0)
        assert whole.finish_reason == "stop" and whole.text == letter * 1000
        reply = llm.chat("x", response_format=wanted, stop_on_repetition=True, logprobs=0)
        assert reply.finish_reason == "repetition" and reply.content == short.text
        eventually(lambda: all_free(llm))
