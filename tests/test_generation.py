"""Thoughts of a chat that are limited or ended: a hand-made template that opens them, on a random model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest

import olivine
from olivine import LLM, RequestError
from olivine.chat.template import ChatTemplate
from olivine.conversation import Conversations
from oracles import tiny
from oracles.waiting import eventually

THINKS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "<|im_start|>assistant\n{% if enable_thinking is not defined or enable_thinking %}<think>\n{% else %}"
    "<think>\n\n</think>\n\n{% endif %}"
)
PLAIN = "{% for m in messages %}{{ m.content }}\n{% endfor %}"
WARM: dict[str, Any] = {"temperature": 1.0, "seed": 3, "max_tokens": 24, "ignore_eos": True}
YES = {
    "type": "object",
    "properties": {"yes": {"type": "boolean"}},
    "required": ["yes"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    path = tiny.write("tiny-qwen3", "Q8_0", tmp_path_factory.mktemp("model"))
    with olivine.load(path, device="cpu", threads=1, context=256) as llm:
        yield llm


@pytest.fixture
def thinker(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> LLM:
    monkeypatch.setitem(llm.__dict__, "_conversations", conversations(llm, THINKS))
    return llm


def conversations(llm: LLM, source: str) -> Conversations:
    template = ChatTemplate(source, {}, llm.tokenizer.guarded_names)
    return Conversations(template, llm.tokenizer, llm.vocabulary)


def closing(llm: LLM, after: str = "\n\n") -> list[int]:
    return llm.tokenizer.encode(f"\n</think>{after}", add_special=False, parse_special=True)


def closed_after(llm: LLM, thought: list[int]) -> list[int]:
    """What must come if this thought is closed: what would follow if all of it had been generated."""
    prompt = llm.conversations.prepare("Hi").tokens
    begun = [*thought, *closing(llm)]
    marks = [False] * len(prompt) + [True] * len(begun)
    rest = llm.generate([*prompt, *begun], generated=marks, **{**WARM, "max_tokens": 24 - len(begun)})
    return [*begun, *rest.tokens]


@pytest.mark.parametrize("budget", [1, 2, 7, 15])
def test_a_thought_has_its_budget_and_then_the_answer_follows(thinker: LLM, budget: int) -> None:
    free = thinker.chat("Hi", **WARM)
    assert free.reasoning_tokens == len(free.tokens) == 24
    expected = closed_after(thinker, free.tokens[:budget])
    reply = thinker.chat("Hi", thinking_budget=budget, **WARM)
    assert reply.tokens == expected
    assert reply.usage.completion == 24
    assert budget <= reply.reasoning_tokens <= budget + 2  # and the line end and the marker
    assert reply.content
    again = thinker.chat_many(["Hi"] * 3, n=2, thinking_budget=budget, **WARM)
    assert [each.tokens for each in again[::2]] == [expected] * 3
    with_logprobs = thinker.chat("Hi", thinking_budget=budget, logprobs=1, **WARM)
    assert with_logprobs.tokens == expected and len(with_logprobs.logprobs or ()) == 24


def test_a_budget_of_zero_is_no_thought(thinker: LLM) -> None:
    reply = thinker.chat("Hi", thinking_budget=0, **WARM)
    assert reply.reasoning is None and reply.reasoning_tokens == 0
    assert reply.tokens == thinker.chat("Hi", think=False, **WARM).tokens
    # A thought that cannot be switched off is closed at once.
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "reasoning_content": "So"}]
    reply = thinker.chat(messages, thinking_budget=0, **WARM)
    assert reply.reasoning is None and reply.tokens[: len(closing(thinker))] == closing(thinker)


def test_a_grammar_follows_a_closed_thought(thinker: LLM) -> None:
    free = thinker.chat("Hi", **WARM)
    for logprobs in (None, 0):
        reply = thinker.chat(
            "Hi", thinking_budget=4, response_format=YES, logprobs=logprobs, **{**WARM, "max_tokens": 60}
        )
        end = closing(thinker, "")
        assert reply.tokens[: 4 + len(end)] == [*free.tokens[:4], *end]
        jsonschema.validate(json.loads(reply.content), YES)


@pytest.mark.parametrize("step", [1, 2, 4])
def test_the_answer_can_be_had_now(thinker: LLM, step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    program: Any = thinker.program
    generate, lengths = program.generate, []

    def noted(batch: Any, draws: Any, n: int = 1) -> Any:
        lengths.append(n)
        if len(lengths) == step:
            stream.answer_now()
        return generate(batch, draws, n)

    monkeypatch.setattr(program, "generate", noted)
    with thinker._engine._inbox.changed:
        stream = thinker.stream_chat("Hi", **WARM)
    *_, last = stream
    assert last.reply is not None
    stream.answer_now()  # nothing happens
    monkeypatch.setattr(program, "generate", generate)
    count = sum(lengths[:step])
    assert last.reply.tokens == closed_after(thinker, last.reply.tokens[:count])


def test_a_thought_that_the_model_opens_is_limited_too(thinker: LLM) -> None:
    opens = thinker.conversations.markers["<think>"]
    source = THINKS.replace("<think>\n{% else %}", "{% else %}")
    thinker.__dict__["_conversations"] = conversations(thinker, source)
    reply = thinker.chat("Hi", thinking_budget=3, logit_bias={opens: 100.0}, **WARM)
    assert reply.tokens[: 4 + len(closing(thinker))] == [opens] * 4 + closing(thinker)


def test_a_model_that_does_not_think_has_nothing_to_limit(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(llm.__dict__, "_conversations", conversations(llm, PLAIN))
    expected = llm.chat("Hi", **WARM).tokens
    for budget in (0, 5):
        assert llm.chat("Hi", thinking_budget=budget, **WARM).tokens == expected
    stream = llm.stream_chat("Hi", **WARM)
    stream.answer_now()
    *_, last = stream
    assert last.reply is not None and last.reply.tokens == expected


def test_what_cannot_be_limited_is_refused(thinker: LLM) -> None:
    for bad in (-1, 1.5, "many", True):
        with pytest.raises(RequestError, match="thinking_budget must be") as refused:
            thinker.chat("Hi", thinking_budget=bad)  # type: ignore[arg-type]
        assert refused.value.param == "thinking_budget"
    thinker.conversations.__dict__["markers"] = {}
    with pytest.raises(RequestError, match="<think> and </think> are no tokens of its vocabulary"):
        thinker.chat("Hi", thinking_budget=5)


def test_an_ended_thought_waits_for_no_other_request(thinker: LLM) -> None:
    """Asked for before the request runs, the closing comes first."""
    with thinker._engine._inbox.changed:
        stream = thinker.stream_chat("Hi", **WARM)
        stream.answer_now()
    *_, last = stream
    assert last.reply is not None
    assert last.reply.tokens == closed_after(thinker, [])
    eventually(lambda: not thinker.stats().running)
