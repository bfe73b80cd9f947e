"""The anthropic package against a server on olivine-mini."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import anthropic
import jsonschema
import pytest

from olivine.llm import LLM
from oracles.waiting import eventually

MESSAGES: Any = [{"role": "user", "content": "Tell me a story about a fox."}]
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 8}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOLS: Any = [
    {"name": "weather", "description": "The weather of a city", "input_schema": CITY},
    {"name": "clock", "description": "The time", "input_schema": {"type": "object", "properties": {}}},
]
BASE: Any = {"model": "olivine-mini", "messages": MESSAGES, "max_tokens": 12, "extra_body": {"seed": 7}}


@pytest.fixture
def client(url: str) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=url, api_key="any", max_retries=0) as client:
        yield client


def test_a_message(client: anthropic.Anthropic, mini: LLM) -> None:
    message = client.messages.create(**BASE)
    (block,) = message.content
    assert block.type == "text" and block.text == mini.chat(MESSAGES, max_tokens=12, seed=7).content
    assert (message.role, message.stop_reason, message.stop_sequence) == ("assistant", "max_tokens", None)
    assert message.usage.output_tokens == 12
    assert message._request_id is not None and message._request_id.startswith("req_")


def test_a_stream_adds_up_to_the_message(client: anthropic.Anthropic) -> None:
    whole = client.messages.create(**BASE)
    with client.messages.stream(**BASE) as stream:
        texts = list(stream.text_stream)
        final = stream.get_final_message()
    assert [block.to_dict() for block in final.content] == [block.to_dict() for block in whole.content]
    assert "".join(texts) == whole.content[0].text  # type: ignore[union-attr]
    assert final.stop_reason == "max_tokens"
    usage = final.usage
    assert usage.output_tokens == 12
    # Everything but the end of the prompt was read for the first message.
    assert usage.input_tokens + (usage.cache_read_input_tokens or 0) == (
        whole.usage.input_tokens + (whole.usage.cache_read_input_tokens or 0)
    )


async def collected(url: str) -> str:
    async with (
        anthropic.AsyncAnthropic(base_url=url, api_key="any", max_retries=0) as client,
        client.messages.stream(**BASE) as stream,
    ):
        return (await stream.get_final_message()).content[0].text  # type: ignore[union-attr]


def test_a_stream_for_asyncio(url: str, mini: LLM) -> None:
    assert asyncio.run(collected(url)) == mini.chat(MESSAGES, max_tokens=12, seed=7).content


def test_a_stop_sequence_is_named(client: anthropic.Anthropic, mini: LLM) -> None:
    text = mini.chat(MESSAGES, max_tokens=12, seed=7).content
    message = client.messages.create(**BASE, stop_sequences=["never", text[5:9]])
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", text[5:9])
    assert message.content[0].text == text[: text.index(text[5:9])]  # type: ignore[union-attr]


def test_tools_there_and_back(client: anthropic.Anthropic) -> None:
    options: Any = {**BASE, "max_tokens": 80, "tools": TOOLS}
    named: Any = {"type": "tool", "name": "weather"}
    with client.messages.stream(**options, tool_choice=named) as stream:
        message = stream.get_final_message()
    assert message.stop_reason == "tool_use"
    (call,) = message.content
    assert call.type == "tool_use" and call.name == "weather"
    jsonschema.validate(call.input, CITY)
    assert client.messages.create(**options, tool_choice=named).content[0].input == call.input  # type: ignore[union-attr]
    options["messages"] = [
        *MESSAGES,
        message.to_param(),
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "rain"}]},
    ]
    last = client.messages.create(**options, tool_choice={"type": "none"})
    assert last.content[0].type == "text" and last.stop_reason in ("end_turn", "max_tokens")


def test_one_call_or_several(client: anthropic.Anthropic) -> None:
    options: Any = {**BASE, "max_tokens": 120, "tools": TOOLS}
    several = client.messages.create(**options, tool_choice={"type": "any"})
    calls = [block for block in several.content if block.type == "tool_use"]
    assert calls and len({call.id for call in calls}) == len(calls)
    single = client.messages.create(**options, tool_choice={"type": "any", "disable_parallel_tool_use": True})
    assert [block.type for block in single.content] == ["tool_use"] and single.stop_reason == "tool_use"


def test_an_answer_by_a_schema(client: anthropic.Anthropic) -> None:
    format: Any = {"format": {"type": "json_schema", "schema": CITY}, "effort": "low"}
    message = client.messages.create(**{**BASE, "max_tokens": 60}, output_config=format)
    jsonschema.validate(json.loads(message.content[0].text), CITY)  # type: ignore[union-attr]


def test_tokens_are_counted_as_the_prompt_s(client: anthropic.Anthropic) -> None:
    prompt: Any = {"model": "olivine-mini", "messages": MESSAGES, "system": "Be brief.", "tools": TOOLS}
    usage = client.messages.create(**prompt, max_tokens=1).usage
    counted = client.messages.count_tokens(**prompt).input_tokens
    assert counted == usage.input_tokens + (usage.cache_read_input_tokens or 0)
    again = client.messages.create(**prompt, max_tokens=1).usage
    assert (again.cache_read_input_tokens or 0) > 0
    assert again.input_tokens + (again.cache_read_input_tokens or 0) == counted


@pytest.mark.parametrize("budget", [{"type": "enabled", "budget_tokens": 1024}, {"type": "adaptive"}])
def test_thoughts_are_blocks_of_their_own(thinking_url: str, budget: Any) -> None:
    with anthropic.Anthropic(base_url=thinking_url, api_key="any", max_retries=0) as client:
        whole = client.messages.create(**{**BASE, "model": "thinker"}, thinking=budget)
        with client.messages.stream(**{**BASE, "model": "thinker"}, thinking=budget) as stream:
            kinds = [event.type for event in stream]
            final = stream.get_final_message()
    (block,) = whole.content
    assert block.type == "thinking" and block.thinking and block.signature == ""
    assert [each.to_dict() for each in final.content] == [block.to_dict()]
    assert "thinking" in kinds and "text" not in kinds and "signature" not in kinds
    details = final.usage.output_tokens_details
    assert details is not None and details.thinking_tokens == 12


def test_thoughts_that_are_switched_off(thinking_url: str) -> None:
    with anthropic.Anthropic(base_url=thinking_url, api_key="any", max_retries=0) as client:
        message = client.messages.create(**{**BASE, "model": "thinker"}, thinking={"type": "disabled"})
    assert [block.type for block in message.content] == ["text"]


def test_a_model_that_does_not_think_is_asked_in_vain(client: anthropic.Anthropic) -> None:
    thinking: Any = {"type": "enabled", "budget_tokens": 1024}
    assert client.messages.create(**BASE, thinking=thinking).content[0].type == "text"


def test_models_are_listed(client: anthropic.Anthropic) -> None:
    (listed,) = client.models.list()
    model = client.models.retrieve("olivine-mini")
    for each in (listed, model):
        assert (each.id, each.type, each.display_name) == ("olivine-mini", "model", "olivine-mini")
        assert each.created_at.year > 2020


def test_a_prompt_that_is_too_long_is_known_by_anthropics_sentence(
    client: anthropic.Anthropic, mini: LLM
) -> None:
    long: Any = [{"role": "user", "content": "fox " * 2 * mini.context}]
    with pytest.raises(anthropic.BadRequestError) as full:
        client.messages.create(**{**BASE, "messages": long})
    tokens = full.value.body["error"]["n_prompt_tokens"]  # type: ignore[index]
    assert full.value.body["error"]["message"].startswith(  # type: ignore[index]
        f"prompt is too long: {tokens} tokens > {mini.context} maximum: the prompt has {tokens} tokens"
    )


def test_errors_are_those_of_the_package(client: anthropic.Anthropic, mini: LLM) -> None:
    with pytest.raises(anthropic.NotFoundError) as missing:
        client.messages.create(**{**BASE, "model": "olivine-maxi"})
    assert "olivine-mini" in missing.value.message and missing.value.request_id is not None
    assert missing.value.type == "not_found_error"
    with pytest.raises(anthropic.BadRequestError, match="max_tokens"):
        client.messages.create(**{**BASE, "max_tokens": -1})
    long: Any = [{"role": "user", "content": "fox " * 2 * mini.context}]
    with pytest.raises(anthropic.BadRequestError, match=f"the context holds {mini.context}") as full:
        client.messages.create(**{**BASE, "messages": long})
    assert isinstance(full.value.body, dict) and full.value.body["request_id"] == full.value.request_id
    image: Any = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": [image]}
    for block in (image, result):
        with pytest.raises(anthropic.BadRequestError, match="text only"):
            client.messages.create(**{**BASE, "messages": [{"role": "user", "content": [block]}]})


def test_a_client_that_leaves_frees_its_slot(client: anthropic.Anthropic, mini: LLM) -> None:
    with client.messages.stream(**{**BASE, "max_tokens": 100_000}) as stream:
        next(iter(stream.text_stream))
    eventually(lambda: mini.stats().running == 0)


CLAUDE_CODE: Any = {
    "model": "olivine-mini",
    "max_tokens": 20,
    "stream": True,
    "metadata": {"user_id": '{"device_id":"0d","account_uuid":"","session_id":"5f"}'},
    "thinking": {"type": "adaptive"},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "output_config": {"effort": "medium"},
    "system": [
        {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.37; cch=1a2b3;"},
        {"type": "text", "text": "You are a coding assistant.", "cache_control": {"type": "ephemeral"}},
        {
            "type": "text",
            "text": "\n".join(f"- Rule {i}: read a file before you edit it." for i in range(5)),
            "cache_control": {"type": "ephemeral", "ttl": "1h"},
        },
    ],
    "tools": [
        *(
            {
                "name": name,
                "description": f"{name} files.",
                "input_schema": {
                    "type": "object",
                    "properties": {
                        "file_path": {"type": "string"},
                    },
                    "required": ["file_path"],
                },
            }
            for name in ("Read", "Write", "Edit", "Bash", "Glob", "Grep", "Task", "TodoWrite", "ToolSearch")
        ),
        {"name": "WebFetch", "defer_loading": True, "input_schema": {"type": "object", "properties": {}}},
        {"name": "Skill", "defer_loading": True, "input_schema": {"type": "object", "properties": {}}},
        {"type": "web_search_20250305", "name": "web_search", "max_uses": 8},
    ],
    "messages": [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "<system-reminder>\nToday is Monday.\n</system-reminder>"},
                {"type": "text", "text": "What is in notes.txt?", "cache_control": {"type": "ephemeral"}},
            ],
        },
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "I should read it.", "signature": ""},
                {"type": "text", "text": "I'll read the file."},
                {"type": "tool_use", "id": "toolu_01", "name": "Read", "input": {"file_path": "/notes.txt"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "toolu_01", "content": "1\tA fox lived in a wood."},
            ],
        },
        {"role": "system", "content": "<token_countdown>190000 tokens left</token_countdown>"},
        {
            "role": "user",
            "content": [{"type": "text", "text": "Sum it up.", "cache_control": {"type": "ephemeral"}}],
        },
    ],
}


def test_what_claude_code_sends(client: anthropic.Anthropic, url: str, mini: LLM) -> None:
    headers = {"anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14", "x-app": "cli"}
    request = client.beta.messages.with_raw_response
    kinds = []
    response = request.create(**CLAUDE_CODE, extra_headers=headers)
    for event in response.parse():
        kinds.append(event.type)
    assert kinds[0] == "message_start" and kinds[1] == "content_block_start"
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    warning = response.headers["warning"]
    assert "web_search_20250305" in warning and "context_management" not in warning
    prompt = {key: CLAUDE_CODE[key] for key in ("model", "system", "tools", "messages", "thinking")}
    counted = client.beta.messages.count_tokens(**prompt).input_tokens
    # The next request differs in the line of the bill only: its prompt is the same, and cached.
    changed = {**CLAUDE_CODE["system"][0], "text": "x-anthropic-billing-header: cch=9f8e7;"}
    again = {**CLAUDE_CODE, "stream": False, "system": [changed, *CLAUDE_CODE["system"][1:]]}
    usage = client.beta.messages.create(**again).usage
    cached = usage.cache_read_input_tokens or 0
    assert usage.input_tokens + cached == counted and cached > counted // 2
