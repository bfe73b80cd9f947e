"""Responses event by event, without a server."""

from __future__ import annotations

from typing import Any

from olivine.chat.messages import ToolCall
from olivine.engine import Usage
from olivine.reply import CallDelta, Delta, Reply
from olivine.server.errors import ApiError
from olivine.server.openai.responses_encoder import ResponsesEncoder
from olivine.server.openai.responses_tools import Tools
from olivine.token_stream import TokenLogprob
from oracles.asking import named_events, reply

TOOLS = Tools.of(
    [
        {"type": "namespace", "name": "home", "tools": [{"type": "function", "name": "lamp"}]},
        {"type": "custom", "name": "patch"},
    ]
)
CALLS = [ToolCall("call_1", "home.lamp", '{"on": true}'), ToolCall("call_2", "patch", '{"input": "a\\nö"}')]
PIECES = [
    Delta(prefilled=10),
    Delta(reasoning="I "),
    Delta(reasoning="see."),
    Delta(content="Let me "),
    Delta("look.", tool_calls=[CallDelta(0, "call_1", "home.lamp")]),
    Delta(tool_calls=[CallDelta(0, arguments='{"on": '), CallDelta(0, arguments="true}")]),
    Delta(tool_calls=[CallDelta(1, "call_2", "patch"), CallDelta(1, arguments='{"input": "a\\n')]),
    Delta(tool_calls=[CallDelta(1, arguments='ö"}')]),
]


def encoder() -> ResponsesEncoder:
    return ResponsesEncoder({"model": "model"}, TOOLS, lambda token: b"?")


def events_of(data: bytes) -> list[dict[str, Any]]:
    """The events of a stream, which are numbered."""
    found = named_events(data)
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    return found


def streamed(pieces: list[Delta], result: Reply) -> list[dict[str, Any]]:
    made = encoder()
    data = made.begin(Usage(10)) + b"".join(made.piece(0, piece) for piece in pieces)
    return events_of(data + made.end([result]))


def without_ids(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in item.items() if key != "id"} for item in items]


def test_thought_text_a_function_s_call_and_a_custom_one() -> None:
    result = reply("Let me look.", "I see.", CALLS, finish_reason="tool_calls", reasoning_tokens=2)
    events = streamed(PIECES, result)
    short = [
        (event["type"].removeprefix("response."), event.get("output_index"), event.get("delta"))
        for event in events
    ]
    assert short == [
        ("created", None, None),
        ("in_progress", None, None),
        ("output_item.added", 0, None),
        ("content_part.added", 0, None),
        ("reasoning_text.delta", 0, "I "),
        ("reasoning_text.delta", 0, "see."),
        ("reasoning_text.done", 0, None),
        ("content_part.done", 0, None),
        ("output_item.done", 0, None),
        ("output_item.added", 1, None),
        ("content_part.added", 1, None),
        ("output_text.delta", 1, "Let me "),
        ("output_text.delta", 1, "look."),
        ("output_text.done", 1, None),
        ("content_part.done", 1, None),
        ("output_item.done", 1, None),
        ("output_item.added", 2, None),
        ("function_call_arguments.delta", 2, '{"on": '),
        ("function_call_arguments.delta", 2, "true}"),
        ("function_call_arguments.done", 2, None),
        ("output_item.done", 2, None),
        ("output_item.added", 3, None),
        ("custom_tool_call_input.delta", 3, "a\nö"),
        ("custom_tool_call_input.done", 3, None),
        ("output_item.done", 3, None),
        ("completed", None, None),
    ]
    items: dict[int, set[str]] = {}
    for event in events:
        if "output_index" in event:
            items.setdefault(event["output_index"], set()).add(event.get("item_id") or event["item"]["id"])
    assert all(len(ids) == 1 for ids in items.values())
    response = events[-1]["response"]
    assert response["status"] == "completed" and response["id"] == events[0]["response"]["id"]
    assert response["output"] == [each["item"] for each in events if each["type"].endswith("item.done")]
    assert without_ids(response["output"])[2:] == [
        {
            "type": "function_call",
            "status": "completed",
            "call_id": "call_1",
            "name": "lamp",
            "namespace": "home",
            "arguments": '{"on": true}',
        },
        {
            "type": "custom_tool_call",
            "status": "completed",
            "call_id": "call_2",
            "name": "patch",
            "input": "a\nö",
        },
    ]
    assert response["usage"] == {
        "input_tokens": 10,
        "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 0},
        "output_tokens": 6,
        "output_tokens_details": {"reasoning_tokens": 2},
        "total_tokens": 16,
    }
    assert without_ids(encoder().whole([result])["output"]) == without_ids(response["output"])


def test_text_in_many_pieces_is_one_item() -> None:
    events = streamed([Delta(content=text) for text in ("a", "", "b", "c")], reply("abc"))
    assert [event["delta"] for event in events if "delta" in event] == ["a", "b", "c"]
    (done,) = (event for event in events if event["type"] == "response.output_text.done")
    (item,) = events[-1]["response"]["output"]
    assert done["text"] == item["content"][0]["text"] == "abc"


def test_an_answer_that_breaks_off_is_incomplete() -> None:
    events = streamed([Delta(content="Let")], reply("Let", finish_reason="length"))
    response = events[-1]["response"]
    assert events[-1]["type"] == "response.incomplete" and response["status"] == "incomplete"
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert response["output"][0]["status"] == "incomplete"


def test_an_answer_that_was_cancelled_says_so() -> None:
    last = streamed([Delta(content="Let")], reply("Let", finish_reason="cancelled"))[-1]
    assert (last["type"], last["response"]["status"]) == ("response.incomplete", "cancelled")
    assert last["response"]["incomplete_details"] is None


def test_an_empty_answer_is_an_empty_message() -> None:
    (item,) = streamed([], reply())[-1]["response"]["output"]
    assert item["content"] == [{"type": "output_text", "text": "", "annotations": [], "logprobs": []}]


def test_a_stream_that_fails_says_so_twice() -> None:
    made = encoder()
    data = made.begin(Usage(10)) + made.piece(0, Delta(content="Let"))
    *_, error, failed = events_of(data + made.error(ApiError(504, "too late", code="timeout")))
    assert (error["type"], error["code"], error["message"]) == ("error", "timeout", "too late")
    assert failed["response"]["status"] == "failed"
    assert failed["response"]["error"] == {"code": "server_error", "message": "too late"}


def test_log_probabilities_stand_in_deltas_and_at_the_end() -> None:
    report = TokenLogprob(5, "Let", -0.5)
    events = streamed([Delta(content="Let", tokens=[5], logprobs=[report])], reply("Let", logprobs=[report]))
    expected = [{"token": "Let", "logprob": -0.5, "bytes": [63], "top_logprobs": []}]
    (delta,) = (event for event in events if event["type"] == "response.output_text.delta")
    assert delta["logprobs"] == expected
    assert events[-1]["response"]["output"][0]["content"][0]["logprobs"] == expected
    (item,) = encoder().whole([reply("Let", logprobs=[report])])["output"]
    assert item["content"][0]["logprobs"] == expected


def reports_of(*tokens: int, thought: bool = False) -> list[TokenLogprob]:
    return [TokenLogprob(token, f"t{token}", -0.5, thought=thought) for token in tokens]


def tokens_of(logprobs: list[dict[str, Any]]) -> list[str]:
    return [each["token"] for each in logprobs]


def test_log_probabilities_without_a_text_wait_for_the_next_one_or_the_end() -> None:
    """Half a character, what might be a stop string, and white space have none."""
    pieces = [
        Delta(logprobs=reports_of(1)),
        Delta("é", logprobs=reports_of(2)),
        Delta(logprobs=reports_of(3)),
        Delta(logprobs=[]),
        Delta("b", logprobs=None),
        Delta(logprobs=reports_of(4)),
    ]
    result = reply("éb", logprobs=reports_of(1, 2, 3, 4))
    events = streamed(pieces, result)
    deltas = [each["logprobs"] for each in events if each["type"] == "response.output_text.delta"]
    assert [*map(tokens_of, deltas)] == [["t1", "t2"], ["t3"]]
    (done,) = (each for each in events if each["type"] == "response.output_text.done")
    (item,) = events[-1]["response"]["output"]
    assert tokens_of(done["logprobs"]) == ["t1", "t2", "t3", "t4"]
    (whole,) = encoder().whole([result])["output"]
    assert item["content"] == whole["content"]


def test_log_probabilities_of_thoughts_and_calls_are_not_those_of_the_text() -> None:
    pieces = [
        Delta(logprobs=reports_of(1, thought=True)),
        Delta(reasoning="I see.", logprobs=reports_of(2, thought=True)),
        Delta("Let", logprobs=[*reports_of(3, thought=True), *reports_of(4)]),
        Delta(tool_calls=[CallDelta(0, "call_1", "home.lamp")], logprobs=reports_of(5)),
        Delta(tool_calls=[CallDelta(0, arguments="{}")], logprobs=reports_of(6)),
        Delta(" me", logprobs=reports_of(7)),
    ]
    thoughts = reports_of(1, 2, 3, thought=True)
    result = reply("Let me", "I see.", logprobs=[*thoughts, *reports_of(4, 7)])
    thought, text, _, last = streamed(pieces, result)[-1]["response"]["output"]
    assert "logprobs" not in thought["content"][0]
    assert tokens_of(text["content"][0]["logprobs"]) == ["t4"]
    assert tokens_of(last["content"][0]["logprobs"]) == ["t7"]
    thought, text = encoder().whole([result])["output"]
    assert tokens_of(text["content"][0]["logprobs"]) == ["t4", "t7"]
