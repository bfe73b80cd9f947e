"""Pieces as parts, in the order in which the model wrote them."""

from __future__ import annotations

from olivine.reply import CallDelta, Delta
from olivine.server.parts import Kind, parts_of


def kinds_of(piece: Delta) -> list[tuple[Kind, str]]:
    return [(part.kind, part.text) for part in parts_of(piece)]


def test_thoughts_come_before_text_and_text_before_the_calls_that_begin() -> None:
    calls = [CallDelta(0, "call_1", "clock"), CallDelta(0, arguments="{}")]
    assert kinds_of(Delta("text", "thought", calls)) == [
        (Kind.THOUGHT, "thought"),
        (Kind.TEXT, "text"),
        (Kind.CALL, ""),
        (Kind.CALL, "{}"),
    ]


def test_the_rest_of_an_earlier_call_comes_before_the_text_that_follows_it() -> None:
    calls = [CallDelta(0, arguments="}"), CallDelta(1, "call_2", "clock", "{}")]
    assert kinds_of(Delta("text", "", calls)) == [(Kind.CALL, "}"), (Kind.TEXT, "text"), (Kind.CALL, "{}")]


def test_a_piece_without_text_has_no_parts() -> None:
    assert parts_of(Delta(prefilled=5)) == []
