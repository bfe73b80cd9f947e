"""Chunks of chat completions, from deltas that are given."""

from __future__ import annotations

import json
from math import inf
from typing import Any

from olivine.chat.messages import Message, ToolCall
from olivine.engine import Timings, Usage
from olivine.reply import CallDelta, Delta, Reply
from olivine.server.errors import ApiError
from olivine.server.openai.chat_encoder import ChatEncoder
from olivine.token_stream import Alternative, TokenLogprob

CALL = ToolCall("call_1", "weather", '{"city": "Köln"}')


def encoder(**options: Any) -> ChatEncoder:
    return ChatEncoder(
        "m", lambda token: b"\xf0\x9f" if token == 9 else b"x", **{"include_usage": False, **options}
    )


def reply(reason: Any = "stop", calls: list[ToolCall] | None = None, content: str = "", **more: Any) -> Reply:
    message = Message("assistant", content, more.pop("reasoning", None), calls or [])
    return Reply(message, reason, Usage(7, 2, 5), Timings(0.1, 0.5, 2.0), 1, [1], **more)


def read(events: bytes) -> list[Any]:
    assert events.endswith(b"\n\n") or not events
    lines = [event.removeprefix("data: ") for event in events.decode().split("\n\n")[:-1]]
    return [json.loads(line) if line != "[DONE]" else line for line in lines]


def deltas(events: bytes) -> list[Any]:
    return [chunk["choices"][0]["delta"] for chunk in read(events)]


def report(token: int, *top: tuple[int, float]) -> TokenLogprob:
    return TokenLogprob(token, "x", -0.5, tuple(Alternative(other, "y", value) for other, value in top))


def test_the_role_comes_first_and_once_for_each_output() -> None:
    made = encoder()
    assert made.piece(0, Delta(prefilled=3)) == b""  # the prompt is read
    first = {"role": "assistant", "content": ""}
    assert deltas(made.piece(0, Delta("a", tokens=[1]))) == [first, {"content": "a"}]
    assert deltas(made.piece(0, Delta("b", tokens=[1]))) == [{"content": "b"}]
    chunks = read(made.piece(1, Delta("c", tokens=[1])))
    assert [chunk["choices"][0]["index"] for chunk in chunks] == [1, 1]
    assert chunks[0]["choices"][0]["delta"] == first
    assert made.piece(0, Delta(tokens=[1])) == b""  # a character's first token


def test_reasoning_has_both_names_and_stands_before_the_content() -> None:
    _, thought, said = deltas(encoder().piece(0, Delta("so", "hm", tokens=[1, 2])))
    assert (thought, said) == ({"reasoning_content": "hm", "reasoning": "hm"}, {"content": "so"})


def test_a_call_has_its_name_in_the_first_delta_alone_and_arguments_as_they_are() -> None:
    calls = [CallDelta(0, "call_1", "wetter"), CallDelta(0, arguments='{"city": "Kö')]
    made = encoder()
    _, start, piece = deltas(made.piece(0, Delta(tool_calls=calls, tokens=[1])))
    function = {"name": "wetter", "arguments": ""}
    assert start == {"tool_calls": [{"index": 0, "id": "call_1", "type": "function", "function": function}]}
    assert piece == {"tool_calls": [{"index": 0, "function": {"arguments": '{"city": "Kö'}}]}
    events = made.piece(0, Delta(tool_calls=[CallDelta(0, arguments='ln"} 🙂')], tokens=[2]))
    assert "Kö".encode() not in events and "🙂".encode() in events


def test_the_reason_of_the_end_stands_alone_and_length_beats_tool_calls() -> None:
    for given, reason in {
        "stop": "stop",
        "length": "length",
        "timeout": "length",
        "repetition": "stop",
    }.items():
        *_, said, last = read(encoder().piece(0, Delta("a", tokens=[1], reply=reply(given))))
        assert said["choices"][0]["finish_reason"] is None
        assert last["choices"] == [{"index": 0, "delta": {}, "logprobs": None, "finish_reason": reason}]
    made = encoder()
    cut = reply("length", [CALL])
    assert read(made.piece(0, Delta(reply=cut)))[-1]["choices"][0]["finish_reason"] == "length"
    assert made.whole([cut])["choices"][0]["finish_reason"] == "length"


def test_usage_stands_alone_where_it_is_asked_for_and_timings_with_it() -> None:
    made = encoder(include_usage=True)
    chunks = read(made.piece(0, Delta("a", tokens=[1], reply=reply(reasoning_tokens=3))))
    assert all(chunk["usage"] is None and "timings" not in chunk for chunk in chunks)
    last, done = read(made.end([reply(reasoning_tokens=3)]))
    assert done == "[DONE]"
    assert last["choices"] == []
    assert last["usage"] == {
        "prompt_tokens": 7,
        "completion_tokens": 5,
        "total_tokens": 12,
        "prompt_tokens_details": {"cached_tokens": 2},
        "completion_tokens_details": {"reasoning_tokens": 3},
    }
    assert last["timings"]["predicted_per_second"] == 2.0
    assert {chunk["id"] for chunk in chunks} == {last["id"]}

    made = encoder()
    chunks = read(made.piece(0, Delta("a", tokens=[1], reply=reply())))
    assert all("usage" not in chunk for chunk in chunks)
    assert chunks[-1]["timings"]["prompt_n"] == 5
    assert read(made.end([reply()])) == ["[DONE]"]


def test_each_token_is_reported_once_also_where_it_makes_no_text() -> None:
    made = encoder()
    calls = [CallDelta(0, "call_1", "f"), CallDelta(0, arguments="{}")]
    pieces = [
        Delta("", tokens=[1], logprobs=[report(1)]),
        Delta("said", "thought", tokens=[2, 3], logprobs=[report(2), report(3)]),
        Delta(tool_calls=calls, tokens=[4], logprobs=[report(4)]),
        Delta("end", tokens=[5], logprobs=[report(5)], reply=reply()),
    ]
    chunks = [chunk for piece in pieces for chunk in read(made.piece(0, piece))]
    reports = [chunk["choices"][0]["logprobs"] for chunk in chunks]
    assert [len(each["content"]) for each in reports if each is not None] == [1, 2, 1, 1]
    assert chunks[1]["choices"][0]["delta"] == {"content": ""}
    assert chunks[-1]["choices"][0]["logprobs"] is None
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == "saidend"


def test_log_probabilities_have_the_tokens_own_bytes_and_no_infinity() -> None:
    made = encoder()
    (found,) = made.whole([reply(logprobs=[report(9, (9, -0.5), (3, -inf))])])["choices"]
    (token,) = found["logprobs"]["content"]
    assert token["bytes"] == [0xF0, 0x9F]
    assert [each["logprob"] for each in token["top_logprobs"]] == [-0.5, -9999.0]
    json.dumps(found, allow_nan=False)


def test_a_whole_answer_has_content_null_beside_calls_and_no_empty_list() -> None:
    (choice,) = encoder().whole([reply("tool_calls", [CALL])])["choices"]
    assert choice["message"] == {"role": "assistant", "content": None, "tool_calls": [CALL.as_dict()]}
    (choice,) = encoder().whole([reply()])["choices"]
    assert choice["message"] == {"role": "assistant", "content": ""}
    (choice,) = encoder().whole([reply(content="a", reasoning="b")])["choices"]
    assert choice["message"]["reasoning"] == choice["message"]["reasoning_content"] == "b"


def test_a_stream_that_fails_says_so_in_an_event() -> None:
    (event,) = read(encoder().error(ApiError(500, "broken", code="internal_error")))
    assert event["error"]["message"] == "broken"


def test_the_prompt_of_several_answers_counts_once_and_what_they_share_is_not_cached() -> None:
    first, second = reply(), reply()
    second.usage.cached = 6  # of what the first computed
    usage = encoder().whole([first, second])["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (7, 10, 17)
    assert usage["prompt_tokens_details"]["cached_tokens"] == 2
