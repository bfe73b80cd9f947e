"""What an engine tells of itself, to anybody, at any time."""

from __future__ import annotations

import threading
import time

import pytest

from olivine.engine import Embed, Engine, Generate, Pages, Request, Score, Stats, StepTimes
from olivine.engine.stats import WINDOW, Counters
from olivine.errors import OlivineError
from oracles.pages import PagesProgram


def test_step_times_are_those_of_the_last_steps() -> None:
    counters = Counters()
    assert counters.step_times() == StepTimes(0, 0.0, 0.0, 0.0)
    for seconds in range(1, 101):
        counters.step(float(seconds))
    assert counters.step_times() == StepTimes(100, 50.5, 51.0, 100.0)
    for _ in range(WINDOW):
        counters.step(2.0)
    assert counters.step_times() == StepTimes(WINDOW, 2.0, 2.0, 2.0)
    assert counters.steps == 100 + WINDOW


def test_everything_is_counted() -> None:
    engine = Engine(PagesProgram(32), 64, speculate=False)  # type: ignore[arg-type]
    before = engine.stats()
    assert (before.running, before.waiting, before.steps, before.stalled) == (0, 0, 0, 0.0)
    assert before.pages == (Pages(32, 32), Pages(32, 32))
    prompt = list(range(10))
    for _ in range(2):
        list(engine.submit(Request(prompt, Generate(max_tokens=3))))
    list(engine.submit(Request(prompt, Score())))
    list(engine.submit(Request(prompt, Embed())))
    counted = engine.stats()
    assert (counted.prompt_tokens, counted.generated_tokens) == (40, 6)
    # The second request finds two pages of the first; scores and averages need every row, and do not ask.
    assert (counted.prefix_asked, counted.prefix_hit) == (2 * 9, 8)
    with engine._inbox.changed:  # nothing runs meanwhile
        cancelled = engine.submit(Request(prompt, Generate()))
        cancelled.cancel()
    list(cancelled)
    with pytest.raises(OlivineError):
        bad = Generate(max_tokens=3, constraint=object())  # type: ignore[arg-type]
        list(engine.submit(Request(prompt, bad)))
    after = engine.stats()
    assert after.finished == {
        "stop": 2,
        "length": 2,
        "cancelled": 1,
        "timeout": 0,
        "repetition": 0,
        "error": 1,
    }
    assert after.steps == after.step_times.steps >= 8
    assert 0 < after.step_times.p50 <= after.step_times.p99
    assert after.pages == before.pages and after.stalled == 0.0
    engine.close()
    assert engine.stats().finished == after.finished


class Stuck(PagesProgram):
    def __init__(self, pages: int) -> None:
        super().__init__(pages)
        self.stuck, self.go = threading.Event(), threading.Event()

    def step(self, batch, *, logits=True):  # type: ignore[no-untyped-def]
        self.stuck.set()
        self.go.wait(20)
        return super().step(batch, logits=logits)


def test_a_health_check_sees_that_no_step_ends_though_work_waits() -> None:
    program = Stuck(32)
    engine = Engine(program, 64, sequences=1)  # type: ignore[arg-type]
    time.sleep(0.02)
    begun = time.perf_counter()  # idle time does not count
    tickets = [engine.submit(Request([1], Generate(max_tokens=2))) for _ in range(3)]
    assert program.stuck.wait(20)
    seen: list[Stats] = [engine.stats()]  # while the step runs
    assert (seen[0].running, seen[0].waiting, seen[0].steps) == (1, 2, 0)
    assert 0 < seen[0].stalled <= time.perf_counter() - begun
    while engine.stats().stalled < 0.05:
        time.sleep(0.001)
    assert engine.stats().stalled > seen[0].stalled
    assert engine.stats().pages[0].free < 32
    program.go.set()
    for ticket in tickets:
        list(ticket)
    assert engine.stats().stalled == 0.0 and engine.stats().running == 0
    engine.close()
