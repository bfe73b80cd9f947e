"""Who runs, who waits, who is sent back, and whose time is up."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from olivine.backends import Batch, Draw, Drawn, Result
from olivine.engine import Engine, Generate, Request, Sampling, Ticket, Update
from olivine.engine.scheduler import Scheduler
from olivine.engine.sequence import Sequence
from oracles.pages import DrawingPagesProgram, PagesProgram


class Held(PagesProgram):
    """A program whose steps wait for `before`."""

    before: Callable[[], object] = staticmethod(lambda: None)

    def step(self, batch: Batch, *, logits: bool = True) -> Result:
        self.before()
        return super().step(batch, logits=logits)


@pytest.fixture
def engine() -> Iterator[Engine]:
    engine = Engine(Held(64), 64, sequences=1, speculate=False)  # type: ignore[arg-type]
    yield engine
    engine.close()


def held(engine: Engine) -> threading.Event:
    """Steps wait for the event."""
    gate = threading.Event()
    engine.program.before = lambda: gate.wait(20)  # type: ignore[attr-defined]
    return gate


def last_of(ticket: Ticket) -> tuple[str | None, int]:
    """How it ended, and how many tokens it has."""
    updates = list(ticket)
    return updates[-1].finish, sum(len(update.tokens) for update in updates)


def pass_by(seconds: float) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        time.sleep(0.001)


# ---- deadlines


def test_a_request_whose_time_is_up_in_the_queue_ends_without_a_token(engine: Engine) -> None:
    gate = held(engine)
    first = engine.submit(Request([1], Generate(max_tokens=5)))
    late = engine.submit(Request([2], Generate(max_tokens=5), timeout=0.01))
    patient = engine.submit(Request([3], Generate(max_tokens=5), timeout=1000))
    pass_by(0.02)
    gate.set()
    assert [last_of(ticket) for ticket in (first, late, patient)] == [
        ("length", 5),
        ("timeout", 0),
        ("length", 5),
    ]


def test_a_request_whose_time_is_up_keeps_what_it_has(engine: Engine) -> None:
    """Between two steps, so that the tokens of the step that was under way are there."""
    steps = []

    def third_is_slow() -> None:
        steps.append(None)
        if len(steps) == 3:
            pass_by(0.3)

    engine.program.before = third_is_slow  # type: ignore[attr-defined]
    quiet = [
        token for update in engine.submit(Request([1], Generate(max_tokens=20))) for token in update.tokens
    ]
    steps.clear()
    ticket = engine.submit(Request([1], Generate(max_tokens=20), timeout=0.3))
    updates = list(ticket)
    tokens = [token for update in updates for token in update.tokens]
    assert updates[-1].finish == "timeout"
    assert len(tokens) <= 3 and tokens == quiet[: len(tokens)]
    assert ticket.usage.completion == len(tokens)
    assert engine.free_pages == engine.program.page_counts


def test_time_counts_from_the_submission() -> None:
    sequence = Sequence(Request([1], Generate(), timeout=5.0), lambda update: None)
    assert sequence.due(sequence.arrived + 4.9) is None
    assert sequence.due(sequence.arrived + 5.0) == "timeout"
    sequence.cancel()
    sequence.cancel("stop")
    assert sequence.due(sequence.arrived) == "cancelled"  # the first reason counts
    assert Sequence(Request([1], Generate()), lambda update: None).due(1e12) is None


# ---- priorities


def test_the_queue_goes_by_priority_and_then_by_arrival(engine: Engine) -> None:
    gate = held(engine)
    ended: list[str] = []

    def submit(name: str, priority: int) -> threading.Event:
        over = threading.Event()

        def tell(update: Update) -> None:
            if update.finish is not None:
                ended.append(name)
                over.set()

        engine.submit(Request([1], Generate(max_tokens=2), priority=priority), tell)
        return over

    first = submit("first", 9)
    while not engine._scheduler.running:
        time.sleep(0.001)
    given = [("a", 0), ("late", 5), ("b", 0), ("urgent", -1), ("c", 0)]
    events = [submit(*each) for each in given]
    gate.set()
    assert all(event.wait(20) for event in (first, *events))
    assert ended == ["first", "urgent", "a", "b", "c", "late"]


@pytest.mark.parametrize("priorities", [(0, 0), (0, 7), (7, 0)])
def test_who_is_preempted_is_the_last_by_priority_and_then_by_arrival(
    priorities: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    sent_back: list[int] = []
    leave = Scheduler._leave

    def noted(scheduler: Scheduler, sequence: Sequence) -> None:
        if not sequence.over:
            sent_back.append(sequence.tokens[0] - 1)
        leave(scheduler, sequence)

    monkeypatch.setattr(Scheduler, "_leave", noted)
    requests = [
        Request([i + 1] * 6, Generate(Sampling(temperature=1.0, seed=i), 24), priority=priority)
        for i, priority in enumerate(priorities)
    ]
    alone = Engine(PagesProgram(64), 32, speculate=False)  # type: ignore[arg-type]
    expected = [[token for update in alone.submit(each) for token in update.tokens] for each in requests]
    alone.close()
    engine = Engine(PagesProgram(9), 32, sequences=2, speculate=False)  # type: ignore[arg-type]
    with engine._inbox.changed:  # at the same time
        tickets = [engine.submit(each) for each in requests]
    assert [[token for update in ticket for token in update.tokens] for ticket in tickets] == expected
    assert sent_back and set(sent_back) == {0 if priorities[0] > priorities[1] else 1}
    assert engine.stats().preempted == len(sent_back)
    engine.close()


# ---- chains


@pytest.mark.parametrize(
    ("sequences", "seconds", "longest"), [(2, 1e-2, 4), (3, 1e-2, 8), (2, 1e-3, 10), (2, 1e-4, 16)]
)
def test_chains_wait_for_drafts_only_where_drafts_are_made(
    sequences: int, seconds: float, longest: int
) -> None:
    """With up to two sequences the engine looks for drafts every few tokens, or every 10 ms where a token
    takes so long; with more sequences it makes no drafts."""
    lengths: list[int] = []

    class Noted(DrawingPagesProgram):
        def generate(self, batch: Batch, draws: list[Draw], n: int = 1) -> list[Drawn]:  # type: ignore[override]
            lengths.append(n)
            return super().generate(batch, draws, n)

    engine = Engine(Noted(128), 64, sequences=sequences)  # type: ignore[arg-type]
    adapt = engine._scheduler._pace.adapt
    engine._scheduler._pace.adapt = lambda step, _: adapt(step, seconds * step.tokens)  # type: ignore[method-assign]
    with engine._inbox.changed:
        tickets = [
            engine.submit(Request([i + 1], Generate(Sampling(temperature=1.0, seed=i), 40)))
            for i in range(sequences)
        ]
    for ticket in tickets:
        assert last_of(ticket) == ("length", 40)
    assert max(lengths) == longest
    engine.close()
