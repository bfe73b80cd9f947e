"""Answers as lines of Ollama's API."""

from __future__ import annotations

import json
from typing import Any

import pytest

from olivine.chat.messages import Message, ToolCall
from olivine.engine import Timings, Usage
from olivine.reply import CallDelta, Delta, Reply
from olivine.server.errors import ApiError
from olivine.server.ollama.encoder import ChatEncoder, GenerateEncoder, Head, timestamp
from olivine.token_stream import Alternative, TokenLogprob

USAGE, TIMINGS = Usage(prompt=7, completion=3), Timings(prefill=0.5, decode=0.25)


def reply(content: str = "", reasoning: str | None = None, *calls: ToolCall, reason: Any = "stop") -> Reply:
    message = Message("assistant", content, reasoning, list(calls))
    return Reply(message, reason, USAGE, TIMINGS, 1, [1, 2, 3])


def read(lines: bytes) -> list[dict[str, Any]]:
    assert not lines or lines.endswith(b"\n")
    return [json.loads(line) for line in lines.decode().splitlines()]


def streamed(encoder: Any, deltas: list[Delta], last: Reply) -> list[dict[str, Any]]:
    lines = encoder.begin(USAGE) + b"".join(encoder.piece(0, delta) for delta in deltas)
    return read(lines + encoder.end([last]))


def test_the_last_line_has_the_figures_in_nanoseconds() -> None:
    (last,) = streamed(ChatEncoder(Head("m", 0.0)), [], reply())
    assert last["message"] == {"role": "assistant", "content": ""}
    assert (last["done"], last["done_reason"]) == (True, "stop")
    assert (last["prompt_eval_count"], last["eval_count"]) == (7, 3)
    assert (last["prompt_eval_duration"], last["eval_duration"]) == (500_000_000, 250_000_000)
    assert last["total_duration"] >= last["load_duration"] > 0


@pytest.mark.parametrize(
    ("reason", "told"),
    [("length", "length"), ("tool_calls", "stop"), ("repetition", "stop"), ("timeout", "length")],
)
def test_only_ollamas_reasons_are_used(reason: str, told: str) -> None:
    for encoder in (ChatEncoder(Head("m", 0.0)), GenerateEncoder(Head("m", 0.0))):
        assert encoder.whole([reply("x", reason=reason)])["done_reason"] == told


def test_thoughts_and_text_may_share_a_line() -> None:
    deltas = [Delta(), Delta(reasoning="hm"), Delta("so", "!", tokens=[1]), Delta(" è\n", tokens=[2])]
    lines = streamed(ChatEncoder(Head("m", 0.0)), deltas, reply())
    assert [line["message"] for line in lines] == [
        {"role": "assistant", "content": "", "thinking": "hm"},
        {"role": "assistant", "content": "so", "thinking": "!"},
        {"role": "assistant", "content": " è\n"},
        {"role": "assistant", "content": ""},
    ]
    assert {line["done"] for line in lines[:-1]} == {False}
    lines = streamed(GenerateEncoder(Head("m", 0.0)), deltas, reply())
    assert [(line["response"], line.get("thinking")) for line in lines] == [
        ("", "hm"),
        ("so", "!"),
        (" è\n", None),
        ("", None),
    ]


def test_a_call_comes_whole_with_arguments_as_an_object() -> None:
    calls = [ToolCall("call_a", "f", '{"x": "Köln"}'), ToolCall("call_b", "g", "{}")]
    last = reply("", None, *calls, reason="tool_calls")
    pieces = [
        Delta(tool_calls=[CallDelta(0, "call_a", "f"), CallDelta(0, arguments='{"x": ')]),
        Delta(tool_calls=[CallDelta(0, arguments='"Köln"}'), CallDelta(1, "call_b", "g")]),
        Delta(tool_calls=[CallDelta(1, arguments="{}")]),
        Delta(reply=last),
    ]
    *lines, end = streamed(ChatEncoder(Head("m", 0.0)), pieces, last)
    expected = [
        {"id": "call_a", "function": {"index": 0, "name": "f", "arguments": {"x": "Köln"}}},
        {"id": "call_b", "function": {"index": 1, "name": "g", "arguments": {}}},
    ]
    assert [line["message"]["tool_calls"] for line in lines] == [[call] for call in expected]
    assert "tool_calls" not in end["message"]
    whole = ChatEncoder(Head("m", 0.0)).whole([last])
    assert whole["message"] == {"role": "assistant", "content": "", "tool_calls": expected}


def test_a_call_that_was_cut_is_left_out() -> None:
    last = reply("", None, ToolCall("call_a", "f", '{"x": "Kö'), reason="length")
    pieces = [Delta(tool_calls=[CallDelta(0, "call_a", "f", '{"x": "Kö')], reply=last)]
    (end,) = streamed(ChatEncoder(Head("m", 0.0)), pieces, last)
    assert end["done_reason"] == "length"
    assert ChatEncoder(Head("m", 0.0)).whole([last])["message"] == {"role": "assistant", "content": ""}


def test_log_probabilities_come_with_their_tokens() -> None:
    report = TokenLogprob(5, "é", -0.5, (Alternative(5, "é", -0.5), Alternative(6, "x", float("-inf"))))
    expected = {
        "token": "é",
        "logprob": -0.5,
        "bytes": [195, 169],
        "top_logprobs": [
            {"token": "é", "logprob": -0.5, "bytes": [195, 169]},
            {"token": "x", "logprob": -9999.0, "bytes": [120]},
        ],
    }
    for encoder in (ChatEncoder(Head("m", 0.0)), GenerateEncoder(Head("m", 0.0))):
        (line,) = read(encoder.piece(0, Delta("", tokens=[5], logprobs=[report])))
        assert line["logprobs"] == [expected], "also where the text of the token is still held back"


def test_a_ping_is_a_line_that_clients_can_read() -> None:
    for encoder in (ChatEncoder(Head("m", 0.0)), GenerateEncoder(Head("m", 0.0))):
        (line,) = read(encoder.ping)
        assert line["done"] is False
        assert line.get("response", line.get("message", {}).get("content")) == ""


def test_an_error_in_a_stream_is_a_line() -> None:
    assert read(ChatEncoder(Head("m", 0.0)).error(ApiError(500, "broken"))) == [{"error": "broken"}]


def test_times_are_as_clients_read_them() -> None:
    assert timestamp(0) == "1970-01-01T00:00:00.000000Z"
