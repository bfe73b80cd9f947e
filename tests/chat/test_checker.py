"""Grammars of strangers: refused or compiled, and never for long."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from olivine import RequestError
from olivine.chat import checker
from olivine.chat.checker import Checker, _started
from olivine.chat.grammar import json_grammar, lark_grammar, response_grammar

FINE = json_grammar({"type": "object"})
# What would keep llguidance busy for minutes.
ENDLESS = json_grammar({"allOf": [{"type": "string", "pattern": f".*a{i}.*"} for i in range(20)]})


@pytest.fixture
def looking() -> Iterator[Checker]:
    looking = Checker()
    yield looking
    looking.close()


def test_what_takes_too_long_is_refused_and_the_next_one_is_not(
    looking: Checker, monkeypatch: pytest.MonkeyPatch
) -> None:
    looking.check(FINE)
    (first,) = looking._idle
    monkeypatch.setattr(checker, "LIMIT", 0.5)
    with pytest.raises(RequestError, match=r"more than 0\.5 seconds"):
        looking.check(ENDLESS)
    assert first.returncode is not None  # it is really over
    monkeypatch.undo()
    looking.check(FINE)
    assert looking._idle[0].pid != first.pid


def test_a_process_that_died_is_replaced(looking: Checker) -> None:
    looking.prepare()
    looking._idle[0].kill()
    looking.check(FINE)
    with pytest.raises(RequestError, match="nothing is used and defined nowhere"):
        looking.check(lark_grammar("start: nothing"))


def test_the_reason_is_said(looking: Checker) -> None:
    for wanted, reason in (
        ({"type": "string", "pattern": "(?=a)b"}, "look-ahead"),
        ({"$ref": "#/nope"}, "nope"),
    ):
        with pytest.raises(RequestError, match=reason):
            looking.check(json_grammar(wanted))
    looking.check(FINE)


def test_many_at_the_same_time(looking: Checker) -> None:
    refused: list[Any] = []

    def look(i: int) -> None:
        try:
            looking.check(FINE if i % 2 else lark_grammar("start: nothing"))
        except RequestError:
            refused.append(i)

    threads = [threading.Thread(target=look, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(refused) == [0, 2, 4, 6]
    processes = list(looking._idle)
    looking.close()
    assert all(process.returncode is not None for process in processes)


def test_two_processes_stay_for_later(looking: Checker, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Any] = []
    together = threading.Barrier(5)

    def start() -> Any:
        started.append(process := _started())
        together.wait(120)
        return process

    monkeypatch.setattr(checker, "_started", start)
    threads = [threading.Thread(target=looking.check, args=(FINE,)) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [process.returncode is None for process in started].count(True) == len(looking._idle) == 2


def test_where_no_process_can_be_started_llguidance_decides_alone(
    looking: Checker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checker.sys, "executable", "/nowhere/python")
    looking.prepare()
    looking.check(FINE)


def test_odd_texts_are_refused_as_requests() -> None:
    for wanted in (
        {"type": "regex", "regex": "\ud800"},
        {"type": "choice", "choices": ["\ud800"]},
        {"const": "\ud800"},
        {"type": "choice", "choices": ["x" * (1 << 20)]},
    ):
        with pytest.raises(RequestError):
            response_grammar(wanted)
