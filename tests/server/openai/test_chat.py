"""Chat completions, chunk by chunk as OpenAI's API has them."""

from __future__ import annotations

import json
from typing import Any

import httpx

from olivine.llm import LLM

MESSAGES = [{"role": "user", "content": "Tell me a story about a fox."}]
BODY = {"messages": MESSAGES, "max_tokens": 12, "seed": 7}


def chunks_of(url: str, **fields: Any) -> list[dict[str, Any]]:
    """The chunks of a stream, without the last line."""
    with httpx.stream(
        "POST", f"{url}/v1/chat/completions", json={**BODY, "stream": True, **fields}
    ) as response:
        assert response.status_code == 200
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        lines = [line for line in response.iter_lines() if line]
    assert lines.pop() == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def test_an_answer_is_that_of_the_library(url: str, mini: LLM) -> None:
    response = httpx.post(f"{url}/v1/chat/completions", json=BODY)
    assert response.status_code == 200
    (choice,) = response.json()["choices"]
    expected = mini.chat(MESSAGES, max_tokens=12, seed=7)
    assert choice["message"] == {"role": "assistant", "content": expected.content}
    assert choice["finish_reason"] == "length"
    assert response.json()["usage"]["completion_tokens"] == 12


def test_a_stream_is_a_role_then_content_then_the_reason_then_usage(url: str, mini: LLM) -> None:
    first, *content, end, usage = chunks_of(url, stream_options={"include_usage": True})
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert all(list(chunk["choices"][0]["delta"]) == ["content"] for chunk in content)
    expected = mini.chat(MESSAGES, max_tokens=12, seed=7)
    assert "".join(chunk["choices"][0]["delta"]["content"] for chunk in content) == expected.content
    assert end["choices"][0]["delta"] == {} and end["choices"][0]["finish_reason"] == "length"
    assert usage["choices"] == [] and usage["usage"]["completion_tokens"] == 12
    assert len({(chunk["id"], chunk["created"]) for chunk in (first, *content, end, usage)}) == 1
