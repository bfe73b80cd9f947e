"""The `openai` package against a server on olivine-mini."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from typing import Any, Literal

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel, ConfigDict, Field

from olivine.errors import BusyError, OlivineError
from olivine.llm import LLM
from olivine.server.errors import api_error
from olivine.token_stream import TokenStream
from oracles.waiting import eventually

MODEL = "olivine-mini"
MESSAGES: list[Any] = [{"role": "user", "content": "Tell me a story about a fox."}]
OPTIONS: dict[str, Any] = {"model": MODEL, "messages": MESSAGES, "max_tokens": 12, "seed": 7}
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 8}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOLS: list[Any] = [{"type": "function", "function": {"name": "weather", "parameters": CITY}}]


class Day(BaseModel):
    model_config = ConfigDict(extra="forbid")

    weather: Literal["rain", "sun"]
    degrees: int = Field(ge=0, le=40)


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=240) as client:
        yield client


def test_chat(client: OpenAI, mini: LLM) -> None:
    got = client.chat.completions.create(**OPTIONS)
    assert got.choices[0].message.content == mini.chat(MESSAGES, max_tokens=12, seed=7).content
    assert got.choices[0].finish_reason == "length"
    assert got.usage is not None and got.usage.completion_tokens == 12
    assert got.usage.prompt_tokens_details is not None
    assert got._request_id


def test_streaming(client: OpenAI) -> None:
    whole = client.chat.completions.create(**OPTIONS)
    chunks = list(
        client.chat.completions.create(**OPTIONS, stream=True, stream_options={"include_usage": True})
    )
    assert chunks[0].choices[0].delta.role == "assistant"
    assert all(chunk.choices[0].delta.role is None for chunk in chunks[1:-1])
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1])
    assert text == whole.choices[0].message.content
    assert chunks[-2].choices[0].finish_reason == "length"
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None and chunks[-1].usage.completion_tokens == 12


def test_the_streaming_helper_puts_a_call_together(client: OpenAI) -> None:
    asked = {**OPTIONS, "max_tokens": 150, "tools": TOOLS, "tool_choice": "required"}
    with client.chat.completions.stream(**asked, parallel_tool_calls=False) as stream:
        kinds = {event.type for event in stream}
        got = stream.get_final_completion()
    assert "tool_calls.function.arguments.delta" in kinds
    (call,) = got.choices[0].message.tool_calls or []
    assert set(json.loads(call.function.arguments)) == {"city"}


def test_a_tool_is_called_and_its_result_answered(client: OpenAI) -> None:
    named: Any = {"type": "function", "function": {"name": "weather"}}
    asked = {**OPTIONS, "max_tokens": 150, "tools": TOOLS}
    first = client.chat.completions.create(**asked, tool_choice=named)
    assert first.choices[0].finish_reason == "tool_calls"
    message = first.choices[0].message
    (call,) = message.tool_calls or []
    assert call.type == "function" and call.function.name == "weather"
    messages = [*MESSAGES, message, {"role": "tool", "tool_call_id": call.id, "content": "rain"}]
    after = client.chat.completions.create(
        **{**asked, "messages": messages, "max_tokens": 8}, tool_choice="none"
    )
    assert after.choices[0].message.content and after.choices[0].message.tool_calls is None


def test_parallel_calls(client: OpenAI) -> None:
    """How many there are is the model's choice, unless they are not wanted."""
    asked = {**OPTIONS, "max_tokens": 300, "tools": TOOLS, "tool_choice": "required", "temperature": 1.0}
    counts = []
    for seed in range(6):
        got = client.chat.completions.create(**{**asked, "seed": seed}, parallel_tool_calls=True)
        counts.append(len(got.choices[0].message.tool_calls or []))
        ids = [call.id for call in got.choices[0].message.tool_calls or []]
        assert len(set(ids)) == len(ids)
        if counts[-1] > 1:
            break
    assert min(counts) >= 1
    one = client.chat.completions.create(**asked, parallel_tool_calls=False)
    assert len(one.choices[0].message.tool_calls or []) == 1


def test_parse(client: OpenAI) -> None:
    asked = {"model": MODEL, "messages": MESSAGES, "seed": 3}
    got = client.chat.completions.parse(**asked, max_tokens=150, response_format=Day)
    assert isinstance(got.choices[0].message.parsed, Day)
    with pytest.raises(openai.LengthFinishReasonError):
        client.chat.completions.parse(**asked, max_tokens=2, response_format=Day)


def test_several_answers_with_log_probabilities(client: OpenAI) -> None:
    got = client.chat.completions.create(**OPTIONS, n=2, logprobs=True, top_logprobs=2)
    assert [choice.index for choice in got.choices] == [0, 1]
    for choice in got.choices:
        assert choice.logprobs is not None and choice.logprobs.content is not None
        assert len(choice.logprobs.content) == 12
        assert len(choice.logprobs.content[0].top_logprobs) == 2


def test_completions(client: OpenAI, mini: LLM) -> None:
    asked: dict[str, Any] = {"model": MODEL, "prompt": "Once upon", "max_tokens": 6, "seed": 7}
    whole = client.completions.create(**asked, logprobs=1)
    assert whole.choices[0].text == mini.generate("Once upon", max_tokens=6, seed=7).text
    assert whole.choices[0].logprobs is not None and len(whole.choices[0].logprobs.tokens or []) == 6
    pieces = [chunk.choices[0].text for chunk in client.completions.create(**asked, stream=True)]
    assert "".join(pieces) == whole.choices[0].text


def test_embeddings(client: OpenAI, mini: LLM) -> None:
    got = client.embeddings.create(model=MODEL, input=["a fox", "a boat"])  # the client asks for base64
    assert len(got.data) == 2
    assert got.data[0].embedding == pytest.approx(mini.embed("a fox").tolist(), abs=1e-3)


def test_errors_have_their_classes(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as bad:
        client.chat.completions.create(**{**OPTIONS, "temperature": -1})
    assert bad.value.param == "temperature" and bad.value.type == "invalid_request_error"
    with pytest.raises(openai.BadRequestError) as long:
        client.chat.completions.create(
            **{**OPTIONS, "messages": [{"role": "user", "content": "fox " * 9000}]}
        )
    assert long.value.code == "context_length_exceeded"
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(**{**OPTIONS, "model": "gpt-9"})
    assert "olivine-mini" in missing.value.message


def test_closing_a_stream_frees_its_slot(client: OpenAI, mini: LLM) -> None:
    asked = {**OPTIONS, "max_tokens": 2000, "stream": True}
    before = mini.stats().finished["cancelled"]
    stream = client.chat.completions.create(**asked, extra_body={"ignore_eos": True})
    next(iter(stream))
    stream.close()
    eventually(lambda: mini.stats().running == 0)
    assert mini.stats().finished["cancelled"] == before + 1


def test_cancelling_a_task_that_does_not_stream_frees_its_slot(url: str, mini: LLM) -> None:
    before = mini.stats().finished["cancelled"]

    async def main() -> None:
        async with AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
            asked = {**OPTIONS, "max_tokens": 3000}
            create = client.chat.completions.create(**asked, extra_body={"ignore_eos": True})
            task = asyncio.create_task(create)
            while not mini.stats().running:
                await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(main())
    eventually(lambda: mini.stats().running == 0)
    assert mini.stats().finished["cancelled"] == before + 1


def test_a_busy_server_is_asked_again_when_it_says_so_and_a_bad_request_is_not(
    url: str, mini: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, waited = [], []
    submit, sleep = mini.submit_chat, time.sleep

    def busy_twice(*args: Any, **options: Any) -> Any:
        calls.append(options)
        if len(calls) < 3:
            raise BusyError("too many requests are waiting")
        return submit(*args, **options)

    def short(seconds: float) -> None:
        if seconds > 0.05:  # not those of other threads
            waited.append(seconds)
        sleep(min(seconds, 0.01))

    monkeypatch.setattr(mini, "submit_chat", busy_twice)
    monkeypatch.setattr(time, "sleep", short)
    with OpenAI(base_url=url, api_key="none", max_retries=2) as client:
        got = client.chat.completions.create(**OPTIONS)
        assert got.choices[0].finish_reason == "length"
        assert len(calls) == 3
        assert waited == [float(api_error(BusyError("")).headers["Retry-After"])] * 2
        with pytest.raises(openai.BadRequestError):
            client.chat.completions.create(**{**OPTIONS, "temperature": -1})
    assert len(calls) == 4


def test_a_stream_that_fails_raises(client: OpenAI, mini: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = client.chat.completions.create(
        **{**OPTIONS, "max_tokens": 2000}, stream=True, extra_body={"ignore_eos": True}
    )
    chunks = iter(stream)
    next(chunks)

    def broken(self: Any, update: Any) -> Any:
        raise OlivineError("a step has failed")

    monkeypatch.setattr(TokenStream, "feed", broken)
    with pytest.raises(openai.APIError, match="a step has failed"):
        list(chunks)
    monkeypatch.undo()
    eventually(lambda: mini.stats().running == 0)
