"""Chat completions, chunk by chunk as OpenAI's API has them."""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema
import pytest

from olivine.llm import LLM
from olivine.server.openai.chat import ChatBody
from oracles.asking import Asking
from oracles.counting import CountedText

MESSAGES: list[dict[str, Any]] = [{"role": "user", "content": "Tell me a story about a fox."}]
BODY = {"messages": MESSAGES, "max_tokens": 12, "seed": 7}
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 8}},
    "required": ["city"],
    "additionalProperties": False,
}
NOTHING: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
TOOLS = [
    {"type": "function", "function": {"name": "weather", "parameters": CITY}},
    {"type": "function", "function": {"name": "clock", "parameters": NOTHING}},
]


CHAT = Asking("/v1/chat/completions", BODY)
post, answered, refused, chunks_of = CHAT.post, CHAT.answered, CHAT.refused, CHAT.chunks


def test_an_answer_is_that_of_the_library(url: str, mini: LLM) -> None:
    response = post(url)
    assert response.status_code == 200
    assert "warning" not in response.headers
    (choice,) = response.json()["choices"]
    expected = mini.chat(MESSAGES, max_tokens=12, seed=7)
    assert choice["message"] == {"role": "assistant", "content": expected.content}
    assert choice["finish_reason"] == "length"
    assert choice["logprobs"] is None
    assert response.json()["usage"]["completion_tokens"] == 12
    assert response.json()["object"] == "chat.completion"


def test_a_stream_is_a_role_then_content_then_the_reason_then_usage(url: str, mini: LLM) -> None:
    first, *content, end, usage = chunks_of(url, stream_options={"include_usage": True})
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert all(list(chunk["choices"][0]["delta"]) == ["content"] for chunk in content)
    expected = mini.chat(MESSAGES, max_tokens=12, seed=7)
    assert "".join(chunk["choices"][0]["delta"]["content"] for chunk in content) == expected.content
    assert end["choices"][0]["delta"] == {} and end["choices"][0]["finish_reason"] == "length"
    assert usage["choices"] == [] and usage["usage"]["completion_tokens"] == 12
    assert len({(chunk["id"], chunk["created"]) for chunk in (first, *content, end, usage)}) == 1


def test_null_means_the_default_of_every_field(url: str) -> None:
    nulls = {name: None for name in ChatBody.model_fields if name not in BODY}
    assert len(nulls) > 25
    got = answered(url, **nulls)["choices"][0]["message"]
    assert got == answered(url)["choices"][0]["message"]


@pytest.mark.parametrize("stream", [False, True])
def test_several_answers_share_one_prefill(url: str, mini: LLM, stream: bool) -> None:
    before = mini.stats()
    if stream:
        chunks = chunks_of(url, n=3)
        texts = ["", "", ""]
        for chunk in chunks:
            (choice,) = chunk["choices"]
            texts[choice["index"]] += choice["delta"].get("content", "")
        ends = [chunk["choices"][0]["index"] for chunk in chunks if chunk["choices"][0]["finish_reason"]]
        assert sorted(ends) == [0, 1, 2]
    else:
        got = answered(url, n=3)
        assert [choice["index"] for choice in got["choices"]] == [0, 1, 2]
        texts = [choice["message"]["content"] for choice in got["choices"]]
        assert got["usage"]["completion_tokens"] == 36
    expected = mini.chat_many([MESSAGES], n=3, max_tokens=12, seed=7)
    assert texts == [reply.content for reply in expected]
    assert mini.stats().finished["error"] == before.finished["error"]


@pytest.mark.parametrize("n", [1, 2])
def test_log_probabilities_of_a_stream_are_those_of_the_whole(url: str, n: int) -> None:
    asked: dict[str, Any] = {"logprobs": True, "top_logprobs": 2, "n": n, "stop": ["zzz", " the"]}
    whole = answered(url, **asked)["choices"]
    reports: list[list[Any]] = [[] for _ in range(n)]
    for chunk in chunks_of(url, **asked):
        (choice,) = chunk["choices"]
        if choice["logprobs"]:
            reports[choice["index"]] += choice["logprobs"]["content"]
    for choice, streamed in zip(whole, reports, strict=True):
        expected = choice["logprobs"]["content"]
        assert [each["token"] for each in streamed] == [each["token"] for each in expected]
        assert all(len(each["top_logprobs"]) == 2 for each in streamed)
        assert all(bytes(each["bytes"]).decode() == each["token"] for each in expected)


def test_log_probabilities_are_json_where_a_grammar_allows_one_token(url: str) -> None:
    form = {"type": "json_object"}
    got = answered(url, logprobs=True, top_logprobs=20, response_format=form, temperature=0)
    for each in got["choices"][0]["logprobs"]["content"]:
        assert all(-9999 <= other["logprob"] <= 0 for other in each["top_logprobs"])


@pytest.mark.parametrize(
    "form",
    [
        {"type": "json_schema", "json_schema": {"name": "city", "strict": True, "schema": CITY}},
        {"type": "json_schema", "schema": CITY},
        {"type": "json_object", "schema": CITY},
    ],
)
def test_a_schema_is_kept(url: str, form: dict[str, Any]) -> None:
    (choice,) = answered(url, response_format=form, max_tokens=150)["choices"]
    assert choice["finish_reason"] == "stop"
    jsonschema.validate(json.loads(choice["message"]["content"]), CITY)


@pytest.mark.parametrize(
    ("fields", "pattern"),
    [
        ({"json_schema": CITY}, r'\{"city": ".*"\}'),
        ({"structured_outputs": {"json": CITY}}, r'\{"city": ".*"\}'),
        ({"structured_outputs": {"regex": "[0-9]{3}"}}, "[0-9]{3}"),
        ({"structured_outputs": {"choice": ["yes", "no"]}}, "yes|no"),
        ({"structured_outputs": {"json_object": True, "disable_fallback": False}}, r"\{.*"),
        ({"grammar": 'root ::= "a" [0-9] "b"'}, "a[0-9]b"),
    ],
)
def test_other_servers_words_for_a_format(url: str, fields: dict[str, Any], pattern: str) -> None:
    (choice,) = answered(url, **fields, max_tokens=150)["choices"]
    assert re.fullmatch(pattern, choice["message"]["content"])
    error = refused(url, **fields, response_format={"type": "json_object"})
    assert "exclude each other" in error["message"]


def test_text_is_a_format_and_json_object_any_object(url: str) -> None:
    plain = answered(url)["choices"][0]["message"]
    for nothing in ({"type": "text"}, {}):
        assert answered(url, response_format=nothing)["choices"][0]["message"] == plain
    (choice,) = answered(url, response_format={"type": "json_object"}, max_tokens=200)["choices"]
    assert choice["message"]["content"].startswith("{")
    error = refused(url, response_format={"type": "json_schema", "json_schema": {"name": "x"}})
    assert "json_schema needs a schema" in error["message"]


def test_a_required_call_is_made_and_answered(url: str) -> None:
    choice = {"type": "function", "function": {"name": "weather"}}
    (got,) = answered(url, tools=TOOLS, tool_choice=choice, max_tokens=150)["choices"]
    assert got["finish_reason"] == "tool_calls"
    assert got["message"]["content"] is None
    (call,) = got["message"]["tool_calls"]
    assert call["type"] == "function" and call["function"]["name"] == "weather"
    jsonschema.validate(json.loads(call["function"]["arguments"]), CITY)
    result = {"role": "tool", "tool_call_id": call["id"], "content": "rain"}
    after = answered(url, messages=[*MESSAGES, got["message"], result], tools=TOOLS, tool_choice="none")
    assert after["choices"][0]["message"]["content"]


def test_tokens_that_a_grammar_forces_are_not_of_the_cached_prompt(url: str, mini: LLM) -> None:
    """They stand in the sequence before it runs, and the second time they are in the prefix cache, too: for
    one of these prompts, a page ends among them."""
    choice = {"type": "function", "function": {"name": "weather"}}
    before = mini.stats()
    for count in range(0, mini.program.page_size, 8):
        messages = [{"role": "user", "content": "fox" + " fox" * count}]
        for _ in range(2):
            got = answered(url, messages=messages, tools=TOOLS, tool_choice=choice, max_tokens=40)
            usage = got["usage"]
            assert usage["prompt_tokens_details"]["cached_tokens"] <= usage["prompt_tokens"]
    now = mini.stats()
    assert now.prefix_hit - before.prefix_hit <= now.prompt_tokens - before.prompt_tokens


def test_a_call_in_a_stream_is_that_of_the_whole_answer(url: str) -> None:
    asked: dict[str, Any] = {"tools": TOOLS, "tool_choice": "required", "max_tokens": 150}
    asked |= {"parallel_tool_calls": False, "logprobs": True}
    (got,) = answered(url, **asked)["choices"]
    (expected,) = got["message"]["tool_calls"]
    chunks = [chunk["choices"][0] for chunk in chunks_of(url, **asked)]
    pieces = [call for chunk in chunks for call in chunk["delta"].get("tool_calls", ())]
    assert [set(piece) for piece in pieces[1:]] == [{"index", "function"}] * (len(pieces) - 1)
    assert pieces[0]["function"]["name"] == expected["function"]["name"]
    assert not any("name" in piece["function"] for piece in pieces[1:])
    arguments = "".join(piece["function"]["arguments"] for piece in pieces)
    assert arguments == expected["function"]["arguments"]
    assert chunks[-1]["finish_reason"] == "tool_calls" and chunks[-1]["delta"] == {}
    tokens = [each["token"] for chunk in chunks if chunk["logprobs"] for each in chunk["logprobs"]["content"]]
    assert tokens == [each["token"] for each in got["logprobs"]["content"]]
    assert not any(chunk["delta"].get("tool_calls") == [] for chunk in chunks)


def test_only_tools_that_are_allowed_are_declared_and_called(url: str) -> None:
    listed = [{"type": "function", "function": {"name": "clock"}}]
    for mode in ("auto", "required"):
        choice = {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": listed}}
        got = answered(url, tools=TOOLS, tool_choice=choice, max_tokens=40)
        alone = answered(url, tools=TOOLS[1:], tool_choice=mode, max_tokens=40)
        assert got["usage"]["prompt_tokens"] == alone["usage"]["prompt_tokens"]
    names = [call["function"]["name"] for call in got["choices"][0]["message"]["tool_calls"]]
    assert {*names} == {"clock"}
    error = refused(
        url, tools=TOOLS, tool_choice={"type": "allowed_tools", "allowed_tools": {"mode": "auto"}}
    )
    assert (error["param"], error["message"]) == ("tool_choice", "tool_choice.tools is not a list of tools")


def test_each_tool_is_looked_up_once_among_those_that_are_allowed() -> None:
    names: list[Any] = [CountedText(f"f{i}") for i in range(1000)]
    allowed: list[Any] = [["f7"], CountedText("f7"), *map(CountedText, range(1000))]
    listed = [{"type": "function", "name": name} for name in allowed]
    tools = [{"type": "function", "function": {"name": name}} for name in [["f7"], *names]]
    choice = {"type": "allowed_tools", "tools": listed}
    body = ChatBody.model_validate({"messages": MESSAGES, "tools": tools, "tool_choice": choice})
    CountedText.compared = 0
    kept = body.options()["tools"]
    assert CountedText.compared <= len(tools)
    assert [tool["function"]["name"] for tool in kept] == ["f7"]


def test_tools_of_other_servers_are_left_out_with_a_warning(url: str) -> None:
    response = post(url, tools=[{"type": "web_search"}, *TOOLS])
    assert response.status_code == 200
    assert response.headers["warning"] == '299 olivine "tools that this server does not have: web_search"'


def test_a_call_that_is_cut_off_ends_with_length(url: str) -> None:
    asked: dict[str, Any] = {"tools": TOOLS[:1], "tool_choice": "required", "max_tokens": 18}
    (got,) = answered(url, **asked)["choices"]
    assert got["finish_reason"] == "length"
    assert chunks_of(url, **asked)[-1]["choices"][0]["finish_reason"] == "length"


def test_the_last_message_is_continued_or_answered(url: str, mini: LLM) -> None:
    begun = [*MESSAGES, {"role": "assistant", "content": "Once upon a"}]
    options: dict[str, Any] = {"max_tokens": 12, "seed": 7}
    continued = mini.chat(begun, **options).content
    for fields in ({}, {"continue_final_message": True, "add_generation_prompt": False}):
        assert answered(url, messages=begun, **fields)["choices"][0]["message"]["content"] == continued
    answer = answered(url, messages=begun, continue_final_message=False)
    assert answer["usage"]["prompt_tokens"] > answered(url, messages=begun)["usage"]["prompt_tokens"]
    error = refused(url, continue_final_message=True)
    assert "no text of the assistant's" in error["message"]


@pytest.mark.parametrize("fields", [{}, {"continue_final_message": False}])
def test_an_empty_assistant_message_at_the_end_is_dropped(url: str, fields: dict[str, Any]) -> None:
    for empty in ({"role": "assistant", "content": ""}, {"role": "assistant", "content": None}):
        got = answered(url, messages=[*MESSAGES, empty], **fields)
        assert got["choices"][0]["message"] == answered(url)["choices"][0]["message"]


@pytest.mark.parametrize(
    ("fields", "param", "said"),
    [
        ({"functions": [{"name": "f"}]}, "functions", "replaced by tools"),
        ({"function_call": "auto"}, "functions", "replaced by tools"),
        ({"modalities": ["text", "audio"]}, "modalities", "answers are text"),
        ({"top_logprobs": 2}, "top_logprobs", "needs logprobs"),
        ({"add_generation_prompt": False}, "add_generation_prompt", "continue_final_message"),
        ({"temperature": "warm"}, "temperature", "number"),
        ({"logprobs": "many"}, "logprobs", "boolean"),
        ({"temperature": -1}, "temperature", "between 0 and 100"),
        ({"messages": []}, None, "at least one message"),
        ({"messages": "Hi"}, "messages", "list"),
        ({"messages": [{"role": "robot", "content": "Hi"}]}, None, "the role 'robot'"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "x"}}}, None, "not among"),
        ({"tool_choice": "required"}, None, "there are no tools"),
        ({"reasoning_effort": "high"}, "think", "does not think"),
        ({"response_format": {"type": "xml"}}, "response_format", "known: text, json_object"),
        ({"response_format": {"schema": CITY}}, "response_format", "response_format has no type"),
        (
            {"structured_outputs": {"jason": CITY}},
            "structured_outputs",
            "'jason', which is not known: known are",
        ),
        ({"cache_salt": "mine"}, "cache_salt", "leave cache_salt out"),
    ],
)
def test_what_is_not_done_is_refused_in_words(
    url: str, fields: dict[str, Any], param: str | None, said: str
) -> None:
    error = refused(url, **fields)
    assert said in error["message"]
    assert error["param"] == param
    assert error["type"] == "invalid_request_error"


def test_words_of_other_servers_for_no_limit(url: str) -> None:
    assert answered(url, top_k=-1, seed=-1, temperature=0)["usage"]["completion_tokens"] == 12
    got = answered(url, max_tokens=-1, stop=[" the", "."])
    assert got["choices"][0]["finish_reason"] == "stop"
    assert answered(url, max_completion_tokens=3)["usage"]["completion_tokens"] == 3
    assert answered(url, think=False, reasoning_effort="none")["usage"]["completion_tokens"] == 12


def test_a_prompt_that_is_too_long_is_refused_with_both_numbers(url: str, mini: LLM) -> None:
    error = refused(url, messages=[{"role": "user", "content": "fox " * 20_000}])
    assert error["code"] == "context_length_exceeded"
    assert error["n_ctx"] == mini.context and error["n_prompt_tokens"] > mini.context
    assert f"maximum context length is {mini.context} tokens" in error["message"]
