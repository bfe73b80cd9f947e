"""Objects that a caller made: how deep they are and how large they would be as JSON, without writing it."""

from __future__ import annotations

from typing import Any

import pytest

from olivine.chat.grammar import response_grammar
from olivine.chat.messages import Message, tools_of
from olivine.chat.nesting import LARGEST, problem_of
from olivine.errors import RequestError


def doubled(levels: int) -> dict[str, Any]:
    """A small object in memory whose JSON has 2^levels innermost objects."""
    value: dict[str, Any] = {}
    for _ in range(levels):
        value = {"a": value, "b": value}
    return value


def test_what_one_object_holds_many_times_is_counted_as_often() -> None:
    assert problem_of(doubled(10), 64) is None
    assert problem_of(doubled(50), 64) == "too large"
    assert problem_of([[1] * 1000] * (LARGEST // 1001), 64) is None
    assert problem_of([[1] * 1000] * (LARGEST // 1000), 64) == "too large"


def test_depth() -> None:
    value: Any = "text"
    for level in range(1, 70):
        value = [value] if level % 2 else {"x": value, "y": 1}
        assert problem_of(value, 64) == (None if level < 64 else "nested too deeply")
    shared: Any = []
    for _ in range(40):
        shared = [shared]
    assert problem_of([shared, [[[shared]]]], 64) is None
    for _ in range(30):
        shared = [1, shared]
    assert problem_of([[], shared], 64) == "nested too deeply"


def test_an_object_that_holds_itself_is_too_deep() -> None:
    value: list[Any] = []
    value += [value, value]
    assert problem_of(value, 64) == "nested too deeply"


def test_declarations_and_arguments_of_shared_objects_are_refused_at_once() -> None:
    function = {"name": "f", "parameters": doubled(50)}
    with pytest.raises(RequestError, match=r"tools\[0\] is too large"):
        tools_of([{"type": "function", "function": function}])
    with pytest.raises(RequestError, match="the schema is too large"):
        response_grammar({"type": "object", "properties": doubled(50)})
    call = {"id": "1", "function": {"name": "f", "arguments": doubled(50)}}
    with pytest.raises(RequestError, match=r"tool_calls\[0\]: its arguments are too large"):
        Message.of({"role": "assistant", "tool_calls": [call]})
