"""Thoughts and calls of a model that has tokens for both, over HTTP: Qwen3's shape with random weights."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from olivine.llm import LLM, load
from olivine.server.models import ServedModel
from oracles import tiny
from oracles.serving import serving

MESSAGES: list[Any] = [{"role": "user", "content": "Hi"}]


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    path = tiny.write("tiny-qwen3", "Q8_0", tmp_path_factory.mktemp("model"))
    with load(path, device="cpu", threads=1, context=2048) as llm:
        yield llm


@pytest.fixture(scope="module")
def thinker(qwen: LLM) -> Iterator[str]:
    with serving([ServedModel("qwen", qwen)]) as url:
        yield url


def prompt(url: str, messages: list[Any] = MESSAGES, **fields: Any) -> str:
    response = httpx.post(f"{url}/apply-template", json={"messages": messages, **fields})
    assert response.status_code == 200, response.text
    return str(response.json()["prompt"])


@pytest.mark.parametrize(
    "fields",
    [
        {"think": False},
        {"think": "none"},
        {"thinking": {"type": "disabled"}},
        {"reasoning": {"effort": "none"}},
        {"reasoning": {"enabled": False}},
        {"reasoning_effort": "none"},
        {"enable_thinking": False},
        {"chat_template_kwargs": {"enable_thinking": False}},
        {"chat_template_kwargs": {"thinking": False}},
    ],
)
def test_every_spelling_switches_thoughts_off(thinker: str, fields: dict[str, Any]) -> None:
    assert prompt(thinker, **fields).endswith("<think>\n\n</think>\n\n")
    assert not prompt(thinker).endswith("</think>\n\n")


@pytest.mark.parametrize(
    "fields", [{"reasoning_effort": "high"}, {"reasoning": {"effort": "low"}}, {"think": True}]
)
def test_every_spelling_switches_thoughts_on(thinker: str, fields: dict[str, Any]) -> None:
    assert prompt(thinker, **fields) == prompt(thinker)


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_a_thought_in_the_history_comes_back_to_the_model(thinker: str, name: str) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    assistant = {"role": "assistant", "content": None, name: "I must look.", "tool_calls": [call]}
    result = {"role": "tool", "tool_call_id": "c1", "content": "rain"}
    assert "I must look." in prompt(thinker, [*MESSAGES, assistant, result])


def test_a_thought_is_told_from_the_answer_and_every_token_is_reported(thinker: str, qwen: LLM) -> None:
    begun = [*MESSAGES, {"role": "assistant", "reasoning_content": "First", "content": ""}]
    asked = {"messages": begun, "max_tokens": 24, "seed": 5, "temperature": 1.0, "logprobs": True, "n": 2}
    expected = qwen.chat_many([begun], n=2, max_tokens=24, seed=5, temperature=1.0)
    whole = httpx.post(f"{thinker}/v1/chat/completions", json=asked, timeout=240).json()
    for choice, reply in zip(whole["choices"], expected, strict=True):
        message = choice["message"]
        assert message["content"] == reply.content
        assert message["reasoning_content"] == message["reasoning"] == reply.reasoning
        assert len(choice["logprobs"]["content"]) == len(reply.tokens)
    details = whole["usage"]["completion_tokens_details"]
    assert details["reasoning_tokens"] == sum(reply.reasoning_tokens for reply in expected) > 0

    thoughts, reports = ["", ""], [0, 0]
    with httpx.stream(
        "POST", f"{thinker}/v1/chat/completions", json={**asked, "stream": True}, timeout=240
    ) as response:
        lines = [line.removeprefix("data: ") for line in response.iter_lines() if line]
    for line in lines[:-1]:
        (choice,) = json.loads(line)["choices"]
        delta, index = choice["delta"], choice["index"]
        thoughts[index] += delta.get("reasoning_content", "")
        assert delta.get("reasoning") == delta.get("reasoning_content")
        reports[index] += len((choice["logprobs"] or {"content": []})["content"])
    assert thoughts == [reply.reasoning for reply in expected]
    assert reports == [len(reply.tokens) for reply in expected]
