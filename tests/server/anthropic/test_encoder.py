"""Messages of Anthropic's API event by event, without a server."""

from __future__ import annotations

from typing import Any

from olivine.chat.messages import ToolCall
from olivine.engine import Usage
from olivine.reply import CallDelta, Delta, Reply
from olivine.server.anthropic.encoder import MessagesEncoder
from olivine.server.errors import ApiError
from oracles.asking import named_events, reply

CALLS = [ToolCall("call_1", "weather", '{"city": "Köln"}'), ToolCall("call_2", "clock", "{}")]


def streamed(pieces: list[Delta], result: Reply, **options: Any) -> list[dict[str, Any]]:
    encoder = MessagesEncoder("model", **options)
    assert encoder.begin(Usage(10, 4)) == b""
    return named_events(b"".join(encoder.piece(0, piece) for piece in pieces) + encoder.end([result]))


def test_thought_text_and_two_calls_are_four_blocks() -> None:
    pieces = [
        Delta(prefilled=10),
        Delta(reasoning="I "),
        Delta(reasoning="see."),
        Delta(content="Let me "),
        Delta("look.", tool_calls=[CallDelta(0, "call_1", "weather")]),
        Delta(tool_calls=[CallDelta(0, arguments='{"city": '), CallDelta(0, arguments='"Köln"}')]),
        Delta(tool_calls=[CallDelta(1, "call_2", "clock"), CallDelta(1, arguments="{}")]),
    ]
    calls = reply("Let me look.", "I see.", CALLS, finish_reason="tool_calls", reasoning_tokens=2)
    start, *blocks, delta, stop = streamed(pieces, calls)
    assert start["message"]["content"] == [] and start["message"]["stop_reason"] is None
    assert start["message"]["usage"] == {
        "input_tokens": 6,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 4,
        "output_tokens": 0,
        "output_tokens_details": {"thinking_tokens": 0},
    }
    text_delta: Any = {"type": "text_delta"}
    assert [
        (event["type"][14:], event["index"], event.get("content_block") or event.get("delta"))
        for event in blocks
    ] == [
        ("start", 0, {"type": "thinking", "thinking": "", "signature": ""}),
        ("delta", 0, {"type": "thinking_delta", "thinking": "I "}),
        ("delta", 0, {"type": "thinking_delta", "thinking": "see."}),
        ("stop", 0, None),
        ("start", 1, {"type": "text", "text": ""}),
        ("delta", 1, text_delta | {"text": "Let me "}),
        ("delta", 1, text_delta | {"text": "look."}),
        ("stop", 1, None),
        ("start", 2, {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {}}),
        ("delta", 2, {"type": "input_json_delta", "partial_json": '{"city": '}),
        ("delta", 2, {"type": "input_json_delta", "partial_json": '"Köln"}'}),
        ("stop", 2, None),
        ("start", 3, {"type": "tool_use", "id": "toolu_2", "name": "clock", "input": {}}),
        ("delta", 3, {"type": "input_json_delta", "partial_json": "{}"}),
        ("stop", 3, None),
    ]  # fmt: skip
    assert delta["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}
    assert delta["usage"]["output_tokens"] == 6
    assert delta["usage"]["output_tokens_details"] == {"thinking_tokens": 2}
    assert stop == {"type": "message_stop"}


def test_text_in_many_pieces_is_one_block() -> None:
    events = streamed([Delta(content=text) for text in ("a", "", "b", "c")], reply("abc"))
    deltas = [event["delta"]["text"] for event in events if event["type"] == "content_block_delta"]
    assert (deltas, len(events)) == (["a", "b", "c"], 8)


def test_an_empty_answer_has_one_empty_block() -> None:
    kinds = [event["type"] for event in streamed([], reply())]
    assert kinds == [
        "message_start",
        "content_block_start",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert MessagesEncoder("model").whole([reply()])["content"] == [{"type": "text", "text": ""}]


def test_the_message_starts_when_it_is_known_what_was_cached() -> None:
    encoder, usage = MessagesEncoder("model"), Usage(10)
    assert encoder.begin(usage) == b""
    usage.cached = 7  # as the engine counts when it begins
    (start,) = named_events(encoder.piece(0, Delta(prefilled=8)))
    assert start["message"]["usage"]["cache_read_input_tokens"] == 7
    assert start["message"]["usage"]["input_tokens"] == 3


def test_how_answers_end() -> None:
    def ending(**more: Any) -> tuple[str, str | None]:
        found = MessagesEncoder("model").whole([reply("x", **more)])
        return found["stop_reason"], found["stop_sequence"]

    assert ending() == ("end_turn", None)
    assert ending(finish_reason="length") == ("max_tokens", None)
    assert ending(finish_reason="timeout") == ("max_tokens", None)
    assert ending(finish_reason="repetition") == ("end_turn", None)
    assert ending(stop_string="END") == ("stop_sequence", "END")
    assert ending(finish_reason="tool_calls", calls=CALLS) == ("tool_use", None)


def test_a_whole_message_has_the_same_blocks() -> None:
    found = MessagesEncoder("model").whole([reply("Hm.", "I see.", CALLS, finish_reason="tool_calls")])
    assert found["content"] == [
        {"type": "thinking", "thinking": "I see.", "signature": ""},
        {"type": "text", "text": "Hm."},
        {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Köln"}},
        {"type": "tool_use", "id": "toolu_2", "name": "clock", "input": {}},
    ]


def test_arguments_that_break_off_are_not_taken_for_arguments() -> None:
    broken = [ToolCall("call_1", "weather", '{"city": "Kö')]
    (block,) = MessagesEncoder("model").whole([reply(calls=broken, finish_reason="length")])["content"]
    assert block["input"] == {"INVALID_JSON": '{"city": "Kö'}


def test_thoughts_that_are_to_be_omitted_are_an_empty_block() -> None:
    events = streamed(
        [Delta(reasoning="I see."), Delta(content="Yes.")], reply("Yes.", "I see."), show_thoughts=False
    )
    assert [event["delta"]["type"] for event in events if event["type"] == "content_block_delta"] == [
        "text_delta"
    ]
    found = MessagesEncoder("model", show_thoughts=False).whole([reply("Yes.", "I see.")])["content"]
    assert found[0] == {"type": "thinking", "thinking": "", "signature": ""}


def test_errors_and_pings_are_events() -> None:
    error = ApiError(429, "busy")
    error.request_id = "req_1"
    (event,) = named_events(MessagesEncoder("model").error(error))
    assert event == {
        "type": "error",
        "error": {"type": "rate_limit_error", "message": "busy"},
        "request_id": "req_1",
    }
    assert named_events(MessagesEncoder.ping) == [{"type": "ping"}]
