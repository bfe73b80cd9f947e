"""Bodies of requests: what is ignored is named, and there are limits."""

from __future__ import annotations

import re
from typing import Any

import httpx
import pytest
from pydantic import BaseModel, ValidationError

from olivine.server.app import ENDPOINTS
from olivine.server.body import Body, library_options, warning_of
from olivine.server.errors import api_error
from olivine.server.openai.completions import CompletionBody
from olivine.server.openai.embeddings import EmbeddingsBody
from olivine.server.tokens import DetokenizeBody

MESSAGES = [{"role": "user", "content": "Hi"}]
TEXT = {"type": "text", "text": "a"}
TOOL = {"type": "function", "name": "f"}
SPACE = {"type": "namespace", "name": "home", "tools": [TOOL] * 4096}
RESULT = {"type": "tool_result", "tool_use_id": "a", "content": [TEXT] * 5000}


def test_unknown_fields_are_named_in_a_header_that_they_cannot_break() -> None:
    assert warning_of(Body()) == {}
    assert warning_of(Body.model_validate({"b": 1, "a": 2, "c": None})) == {
        "Warning": '299 olivine "ignored, because they are not known: a, b"'
    }
    (value,) = warning_of(Body.model_validate({'é"\r\nx': 1, "y" * 500: 1})).values()
    assert value.isascii() and value.isprintable() and value.count('"') == 2 and len(value) < 200
    (value,) = warning_of(Body.model_validate({f"f{i}": 1 for i in range(40)})).values()
    assert value.endswith('and 24 more"')


@pytest.mark.parametrize("stream", [False, True])
def test_a_response_warns_of_fields_that_it_ignored(url: str, stream: bool) -> None:
    body = {
        "messages": MESSAGES,
        "max_tokens": 2,
        "stream": stream,
        "mirostat": 2,
        "user": "me",
        "store": True,
    }
    response = httpx.post(f"{url}/v1/chat/completions", json=body)
    assert response.status_code == 200
    assert response.headers["warning"] == '299 olivine "ignored, because they are not known: mirostat"'


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"messages": MESSAGES * 5000}, "messages: 5000 messages, and 4096 is the most in one request"),
        (
            {"messages": [{"role": "user", "content": [TEXT] * 5000}] * 4},
            "messages: 20000 parts of messages, and 16384 is the most in one request",
        ),
        (
            {"logit_bias": {str(token): 1 for token in range(5000)}},
            "logit_bias: 5000 tokens, and 4096 is the most in one request",
        ),
        (
            {"stop_token_ids": [9] * 5000},
            "stop_token_ids: 5000 tokens, and 4096 is the most in one request",
        ),
        (
            {"tool_choice": {"type": "allowed_tools", "tools": [TOOL] * 5000}},
            "tool_choice: 5000 tools, and 4096 is the most in one request",
        ),
        ({"n": 129}, "n must be between 1 and 128, and is 129"),
        ({"n": 0}, "n must be between 1 and 128, and is 0"),
        ({"stop": ["x"] * 65}, "stop: 65 stop strings, and 64 is the most in one request"),
        ({"stop": "x" * 2000}, "stop: 2000 characters in a stop string, and 1024 is the most in one request"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs must be between 0 and 20, and is 21"),
    ],
)
def test_limits_are_refused_in_words(url: str, fields: dict[str, Any], said: str) -> None:
    response = httpx.post(f"{url}/v1/chat/completions", json={"messages": MESSAGES, **fields})
    assert response.status_code == 400
    assert response.json()["error"]["message"] == said


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "assistant", "tool_calls": [{}] * 20_000}]}),
        ("/apply-template", {"messages": [{"role": "user", "content": [TEXT] * 20_000}]}),
        ("/v1/responses", {"input": [{"role": "user", "content": [TEXT] * 20_000}]}),
        ("/v1/responses/input_tokens", {"input": "Hi", "instructions": [{"content": [TEXT] * 20_000}]}),
        ("/v1/messages", {"messages": [{"role": "user", "content": [TEXT] * 20_000}], "max_tokens": 1}),
        ("/v1/messages", {"messages": [{"role": "user", "content": [RESULT] * 4}], "max_tokens": 1}),
        ("/v1/messages/count_tokens", {"messages": MESSAGES, "system": [TEXT] * 20_000}),
        (
            "/api/chat",
            {
                "model": "olivine-mini",
                "messages": [{"role": "user", "content": "Hi", "images": [""] * 20_000}],
            },
        ),
        ("/api/generate", {"model": "olivine-mini", "prompt": "Hi", "images": [""] * 20_000}),
    ],
)
def test_parts_of_messages_are_counted_before_they_are_read(
    url: str, path: str, fields: dict[str, Any]
) -> None:
    response = httpx.post(f"{url}{path}", json=fields)
    assert response.status_code == 400
    assert re.search(
        r"20\d\d\d (parts of (messages|items)|images), and 16384 is the most in one request", response.text
    )


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/chat/completions", {"messages": MESSAGES, "tools": [TOOL] * 4097}),
        ("/apply-template", {"messages": MESSAGES, "tools": [TOOL] * 4097}),
        ("/v1/responses", {"input": "Hi", "tools": [TOOL] * 4097}),
        ("/v1/responses", {"input": "Hi", "tools": [SPACE]}),
        (
            "/v1/responses/input_tokens",
            {"input": [{"type": "additional_tools", "tools": [TOOL] * 4000}], "tools": [TOOL] * 97},
        ),
        ("/v1/messages", {"messages": MESSAGES, "max_tokens": 1, "tools": [TOOL] * 4097}),
        ("/v1/messages/count_tokens", {"messages": MESSAGES, "tools": [TOOL] * 4097}),
        ("/api/chat", {"model": "olivine-mini", "messages": MESSAGES, "tools": [TOOL] * 4097}),
    ],
)
def test_tools_are_counted_before_they_are_read(url: str, path: str, fields: dict[str, Any]) -> None:
    response = httpx.post(f"{url}{path}", json=fields)
    assert response.status_code == 400
    assert "tools: 4097 tools, and 4096 is the most in one request" in response.text


def test_as_many_tools_as_there_may_be(url: str) -> None:
    tools = [{"type": "function", "name": f"f{i}"} for i in range(4096)]
    response = httpx.post(
        f"{url}/v1/responses/input_tokens", json={"input": "Hi", "tools": tools}, timeout=120
    )
    assert response.status_code == 200, response.text


def test_as_many_parts_as_there_may_be(url: str) -> None:
    messages = [{"role": "user", "content": [TEXT] * 16_384}]
    response = httpx.post(f"{url}/v1/messages/count_tokens", json={"messages": messages}, timeout=120)
    assert response.status_code == 200 and response.json()["input_tokens"] > 16_384


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"top_p": 0.0}, {"top_k": 1}),
        ({"top_p": 0, "top_k": 40, "seed": None}, {"top_k": 1}),
        ({"top_p": 0.5, "seed": 5}, {"top_p": 0.5, "seed": 5}),
        ({"seed": -1}, {}),
        ({"seed": -5}, {"seed": (1 << 64) - 5}),
        ({"seed": -(1 << 63)}, {"seed": 1 << 63}),
        ({"seed": -(10**30)}, {"seed": -(10**30)}),  # which the library refuses
    ],
)
def test_what_the_apis_permit_becomes_what_the_library_takes(
    given: dict[str, Any], expected: dict[str, Any]
) -> None:
    assert library_options(given) == expected


@pytest.mark.parametrize(
    ("path", "body", "chosen"),
    [
        ("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 2}, ()),
        ("/v1/completions", {"prompt": "Hi", "max_tokens": 2, "n": 2}, ()),
        ("/v1/responses", {"input": "Hi", "max_output_tokens": 2}, ()),
        ("/v1/messages", {"messages": MESSAGES, "max_tokens": 2}, ()),
        ("/api/chat", {"model": "olivine-mini", "messages": MESSAGES, "stream": False}, ("options",)),
    ],
)
def test_every_api_takes_a_top_p_of_0_and_negative_seeds(
    url: str, path: str, body: dict[str, Any], chosen: tuple[str, ...]
) -> None:
    for fields in ({"top_p": 0}, {"seed": -5}, {"seed": -1}):
        inner = {chosen[0]: {**fields, "num_predict": 2}} if chosen else fields
        response = httpx.post(url + path, json={**body, **inner})
        assert response.status_code == 200, response.text


def lists_of(schema: Any) -> list[dict[str, Any]]:
    """The lists and objects in a schema of pydantic's whose elements are checked."""
    if isinstance(schema, list | tuple):
        return [found for each in schema for found in lists_of(each)]
    if not isinstance(schema, dict):
        return []
    found = lists_of([*schema.values()])
    if schema.get("type") == "dict" and schema["values_schema"]["type"] == "any":
        return found  # names in JSON are texts
    return [schema, *found] if schema.get("type") in ("list", "set", "tuple", "dict") else found


def test_every_list_of_a_body_is_refused_at_its_first_bad_element() -> None:
    bodies: dict[str, type[BaseModel]] = {each.path: each.body for each in ENDPOINTS if each.body is not None}
    found = {path: lists_of(body.__pydantic_core_schema__) for path, body in bodies.items()}
    assert sum(map(len, found.values())) > 50
    slow = [path for path, schemas in found.items() if not all(each.get("fail_fast") for each in schemas)]
    assert not slow, "their fields are list or dict, and not ListOf or DictOf"


@pytest.mark.parametrize(
    ("body", "fields"),
    [
        (EmbeddingsBody, {"input": [1.5] * 100_000}),
        (EmbeddingsBody, {"input": [[1.5] * 100_000]}),
        (DetokenizeBody, {"tokens": ["x"] * 100_000}),
        (CompletionBody, {"prompt": "", "logit_bias": {f"{i}" * 100: "x" for i in range(1000)}}),
    ],
)
def test_a_body_of_wrong_types_has_few_errors(body: type[BaseModel], fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as caught:
        body.model_validate(fields)
    assert caught.value.error_count() < 10
    assert len(api_error(caught.value).message) < 300
