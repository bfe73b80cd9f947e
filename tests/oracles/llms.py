"""What tests of the Python API ask, hold up, and look at."""

from __future__ import annotations

import threading

import pytest

from olivine import LLM
from olivine.backends import Batch, Result
from olivine.engine.sequence import Sequence as RunningSequence
from oracles.waiting import eventually

PROMPT = "Hello wörld, this is a prompt that takes more than a page of the cache 🙂"
CONTEXT = 256


def all_free(llm: LLM) -> bool:
    return llm._engine.free_pages == llm.program.page_counts and llm._engine._scheduler.idle


def gate(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Holds the model's steps until the event is set."""
    event, step = threading.Event(), llm.program.step

    def held(batch: Batch) -> Result:
        event.wait(20)  # a test that fails must not wait forever
        return step(batch)

    monkeypatch.setattr(llm.program, "step", held)
    return event


def the_sequence(llm: LLM) -> RunningSequence:
    """The only request that is under way, or about to be."""
    eventually(lambda: bool(llm._engine._scheduler.running))
    (sequence,) = llm._engine._scheduler.running
    return sequence


def prefix(tokens: list[int], llm: LLM) -> int:
    """How much of a prompt can be taken over: whole pages, and never its last token."""
    return (len(tokens) - 1) // llm.program.page_size * llm.program.page_size
