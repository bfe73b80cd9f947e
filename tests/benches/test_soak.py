"""The long run of benches/soak.py, cut short: its own checks are the test."""

from __future__ import annotations

import pytest

import soak
from olivine import LLM


def test_a_short_soak_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soak, "LONG", soak.LONG[:300_000])
    jobs = soak.compared(1)
    monkeypatch.setattr(soak, "compared", lambda: jobs)
    run = soak.soak("olivine-mini", threads=2, warm=lambda turn: turn < 1, more=lambda turn: turn < 5)
    assert run.wrong == []
    assert run.seen["compared"] and run.seen["asyncio rounds"] == 5


def test_a_soak_notices_what_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def odd(llm: LLM) -> int:
        made.append(llm)
        return len(made)

    monkeypatch.setattr(soak, "compared", lambda: {"generate 0": odd})
    monkeypatch.setattr(soak, "BAD", {"fine": lambda llm: None})
    run = soak.soak("olivine-mini", threads=1, warm=lambda turn: False, more=lambda turn: turn < 8)
    assert {"generate 0 differs from the quiet run", "fine was not refused"} <= set(run.wrong)
