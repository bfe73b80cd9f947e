"""The openai package's responses against a server on olivine-mini."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from typing import Any

import jsonschema
import openai
import pytest
from pydantic import BaseModel

from olivine.llm import LLM
from oracles.waiting import eventually

STORY = "Tell me a story about a fox."
CITY: Any = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 8}},
    "required": ["city"],
    "additionalProperties": False,
}
NOTHING: Any = {"type": "object", "properties": {}, "additionalProperties": False}
TOOLS: Any = [
    {"type": "function", "name": "weather", "description": "of a city", "parameters": CITY, "strict": True},
    {
        "type": "namespace",
        "name": "home",
        "description": "The house",
        "tools": [{"type": "function", "name": "lamp", "parameters": NOTHING}],
    },
    {"type": "custom", "name": "note", "description": "Keeps a text"},
    {"type": "web_search"},
]
BASE: Any = {"model": "olivine-mini", "input": STORY, "max_output_tokens": 12, "extra_body": {"seed": 7}}


@pytest.fixture
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0) as client:
        yield client


def test_a_response(client: openai.OpenAI, mini: LLM) -> None:
    response = client.responses.create(**BASE, metadata={"who": "me"}, store=True)
    assert response.output_text == mini.chat(STORY, max_tokens=12, seed=7).content
    assert response.status == "incomplete" and response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"
    assert response.usage is not None and response.usage.output_tokens == 12
    assert response.metadata == {"who": "me"}


def test_a_stream_adds_up_to_the_response(client: openai.OpenAI, mini: LLM) -> None:
    options = {**BASE, "max_output_tokens": 60, "text": {"format": _schema()}}
    with client.responses.stream(**options) as stream:
        events = list(stream)
        final = stream.get_final_response()
    assert final.output_text == client.responses.create(**options).output_text
    assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == final.output_text
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert final.status == "completed"


def _schema() -> Any:
    return {"type": "json_schema", "name": "city", "schema": CITY, "strict": True}


def test_instructions_and_items(client: openai.OpenAI, mini: LLM) -> None:
    items: Any = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "input_text", "text": STORY}]},
    ]
    response = client.responses.create(**{**BASE, "input": items}, instructions="You tell stories.")
    expected = [
        {"role": "system", "content": "You tell stories."},
        {**items[0]},
        {"role": "user", "content": STORY},
    ]
    assert response.output_text == mini.chat(expected, max_tokens=12, seed=7).content


def test_tools_there_and_back(client: openai.OpenAI) -> None:
    options: Any = {**BASE, "max_output_tokens": 80, "tools": TOOLS}
    raw = client.responses.with_raw_response.create(
        **options, tool_choice={"type": "function", "name": "weather"}
    )
    assert "web_search" in raw.headers["warning"]
    (call,) = raw.parse().output
    assert call.type == "function_call" and call.name == "weather" and call.status == "completed"
    jsonschema.validate(json.loads(call.arguments), CITY)
    result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "rain"}
    options["input"] = [{"role": "user", "content": STORY}, call.to_dict(), result]
    last = client.responses.create(**options, tool_choice="none")
    assert [item.type for item in last.output] == ["message"]


def test_calls_in_a_namespace_and_of_a_custom_tool(client: openai.OpenAI) -> None:
    options: Any = {**BASE, "max_output_tokens": 200, "tools": TOOLS}
    lamp: Any = {"type": "function", "name": "lamp", "namespace": "home"}
    (call,) = client.responses.create(**options, tool_choice=lamp).output
    assert call.type == "function_call" and (call.namespace, call.name) == ("home", "lamp")
    events = list(
        client.responses.create(**options, tool_choice={"type": "custom", "name": "note"}, stream=True)
    )
    added = next(event for event in events if event.type == "response.output_item.added")
    assert added.item.type == "custom_tool_call" and added.item.name == "note"


def test_one_call_or_several(client: openai.OpenAI) -> None:
    options: Any = {
        **BASE,
        "max_output_tokens": 120,
        "tools": [TOOLS[0], TOOLS[1]],
        "tool_choice": "required",
    }
    calls = [item for item in client.responses.create(**options).output if item.type == "function_call"]
    assert calls and len({call.call_id for call in calls}) == len(calls)
    assert len(client.responses.create(**options, parallel_tool_calls=False).output) == 1


class City(BaseModel):
    city: str


def test_an_answer_by_a_schema(client: openai.OpenAI) -> None:
    options: Any = {**BASE, "max_output_tokens": 60}
    format: Any = {"format": _schema()}
    jsonschema.validate(json.loads(client.responses.create(**options, text=format).output_text), CITY)
    anything: Any = {"format": {"type": "json_object"}}
    assert client.responses.create(**options, text=anything).output_text.startswith("{")


@pytest.mark.parametrize("stream", [False, True])
def test_thoughts_are_items_of_their_own(thinking_url: str, stream: bool) -> None:
    options: Any = {**BASE, "model": "thinker", "reasoning": {"effort": "medium", "summary": "auto"}}
    with openai.OpenAI(base_url=f"{thinking_url}/v1", api_key="any", max_retries=0) as client:
        if stream:
            last = list(client.responses.create(**options, stream=True))[-1]
            assert last.type == "response.incomplete"
            response = last.response
        else:
            response = client.responses.create(**options)
        (item,) = response.output
        assert item.type == "reasoning" and item.content and item.content[0].text
        assert response.usage is not None
        assert response.usage.output_tokens_details.reasoning_tokens == 12
        off = client.responses.create(**{**options, "reasoning": {"effort": "none"}})
        assert [each.type for each in off.output] == ["message"]


def test_tokens_are_counted_as_the_prompt_s(client: openai.OpenAI) -> None:
    counted = client.responses.input_tokens.count(model="olivine-mini", input=STORY).input_tokens
    usage = client.responses.create(**BASE).usage
    assert usage is not None and usage.input_tokens == counted


def test_log_probabilities(client: openai.OpenAI) -> None:
    response = client.responses.create(**BASE, include=["message.output_text.logprobs"], top_logprobs=2)
    (item,) = response.output
    assert item.type == "message" and item.content[0].type == "output_text"
    logprobs = item.content[0].logprobs or []
    assert len(logprobs) == 12 and all(len(each.top_logprobs) == 2 for each in logprobs)


def test_errors_are_those_of_the_package(client: openai.OpenAI, mini: LLM) -> None:
    with pytest.raises(openai.NotFoundError):
        client.responses.create(**{**BASE, "model": "olivine-maxi"})
    for refused in ({"previous_response_id": "resp_1"}, {"conversation": "conv_1"}, {"background": True}):
        with pytest.raises(openai.BadRequestError, match="keeps no responses") as error:
            client.responses.create(**BASE, **refused)
        assert error.value.param == next(iter(refused))
    with pytest.raises(openai.BadRequestError, match=f"the context holds {mini.context}") as full:
        client.responses.create(**{**BASE, "input": "fox " * 2 * mini.context})
    assert full.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError, match="there are no tools"):
        client.responses.create(**BASE, tool_choice="required")
    untyped: Any = {"format": {"name": "city", "schema": CITY}}
    with pytest.raises(openai.BadRequestError, match=r"text\.format has no type"):
        client.responses.create(**BASE, text=untyped)
    with pytest.raises(openai.BadRequestError, match="input: 5000 items"):
        client.responses.create(**{**BASE, "input": [{"role": "user", "content": "x"}] * 5000})
    image: Any = [
        {"role": "user", "content": [{"type": "input_image", "image_url": "data:image/png;base64,aGk="}]}
    ]
    with pytest.raises(openai.BadRequestError, match="text only"):
        client.responses.create(**{**BASE, "input": image})


def test_a_client_that_leaves_frees_its_slot(client: openai.OpenAI, mini: LLM) -> None:
    with client.responses.create(**{**BASE, "max_output_tokens": 100_000}, stream=True) as stream:
        next(event for event in stream if event.type == "response.output_text.delta")
    eventually(lambda: not mini.stats().running)


def test_a_response_can_be_cancelled_from_elsewhere(
    client: openai.OpenAI, mini: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    cancelled, generate = threading.Event(), mini.program.generate  # type: ignore[attr-defined]

    def held(*args: Any) -> Any:
        assert cancelled.wait(20)
        return generate(*args)

    monkeypatch.setattr(mini.program, "generate", held)
    with client.responses.create(**{**BASE, "max_output_tokens": 100_000}, stream=True) as stream:
        events = iter(stream)
        created = next(events)
        assert created.type == "response.created"
        assert client.responses.cancel(created.response.id).status == "cancelled"
        cancelled.set()
        *_, last = events
    assert last.type == "response.incomplete" and last.response.status == "cancelled"
    with pytest.raises(openai.NotFoundError, match="is running"):
        client.responses.cancel("resp_1")


async def collected(url: str) -> str:
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0) as client:
        stream = await client.responses.create(**BASE, stream=True)
        return "".join([e.delta async for e in stream if e.type == "response.output_text.delta"])


def test_a_stream_for_asyncio(url: str, mini: LLM) -> None:
    assert asyncio.run(collected(url)) == mini.chat(STORY, max_tokens=12, seed=7).content


CODEX: Any = {
    "model": "olivine-mini",
    "instructions": "You are a coding agent.\n" + "\n".join(f"{i}. Keep changes small." for i in range(5)),
    "input": [
        {
            "type": "message",
            "role": "developer",
            "content": [{"type": "input_text", "text": "<permissions>read-only</permissions>"}],
        },
        {
            "type": "message",
            "role": "user",
            "content": [{"type": "input_text", "text": "<environment><cwd>/x</cwd></environment>"}],
        },
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Read notes.txt"}]},
        {
            "type": "reasoning",
            "summary": [{"type": "summary_text", "text": "I read it."}],
            "encrypted_content": None,
        },
        {
            "type": "function_call",
            "name": "shell",
            "arguments": '{"command":["cat","notes.txt"]}',
            "call_id": "call_1",
        },
        {"type": "function_call_output", "call_id": "call_1", "output": "A fox lived in a wood."},
        {"type": "custom_tool_call", "name": "apply_patch", "input": "*** Begin Patch", "call_id": "call_2"},
        {"type": "custom_tool_call_output", "call_id": "call_2", "output": "Done!"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Sum it up."}]},
    ],
    "tools": [
        {
            "type": "function",
            "name": "shell",
            "description": "Runs a command",
            "strict": False,
            "parameters": {
                "type": "object",
                "properties": {
                    "command": {"type": "array", "items": {"type": "string"}},
                    "workdir": {"type": "string"},
                    "timeout_ms": {"type": "number"},
                },
                "required": ["command"],
                "additionalProperties": False,
            },
        },
        {
            "type": "custom",
            "name": "apply_patch",
            "description": "Edits files",
            "format": {
                "type": "grammar",
                "syntax": "lark",
                "definition": 'start: begin\nbegin: "*** Begin Patch"',
            },
        },
        {
            "type": "namespace",
            "name": "mcp__files",
            "description": "Files",
            "tools": [
                {
                    "type": "function",
                    "name": "list",
                    "strict": False,
                    "parameters": {"type": "object", "properties": {}},
                }
            ],
        },
        {"type": "web_search", "external_web_access": False},
        {"type": "tool_search", "execution": "client"},
    ],
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "reasoning": {"effort": "medium", "summary": "auto"},
    "store": False,
    "stream": True,
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "019a",
    "text": {"verbosity": "medium"},
    "max_output_tokens": 20,
}


def test_what_codex_sends(client: openai.OpenAI) -> None:
    raw = client.responses.with_raw_response.create(**CODEX)
    assert "web_search" in raw.headers["warning"] and "prompt_cache_key" not in raw.headers["warning"]
    kinds = [event.type for event in raw.parse()]
    assert kinds[:3] == ["response.created", "response.in_progress", "response.output_item.added"]
    # A text or a call, as the model likes.
    assert kinds[3] in ("response.content_part.added", "response.function_call_arguments.delta")
    assert kinds[-1] in ("response.completed", "response.incomplete")
    assert kinds[-2] == "response.output_item.done"
