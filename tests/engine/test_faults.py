"""Exceptions at every point of one request's way through the engine: that request fails, and it alone."""

from __future__ import annotations

import gc
import linecache
import queue
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import numpy as np
import pytest

import olivine.engine
from olivine.engine import Embed, Engine, Generate, Request, Sampling, Score, ThoughtTokens, Update, sampling
from olivine.engine.kvcache import KvCache
from olivine.engine.pace import Pace
from olivine.engine.scheduler import Scheduler
from olivine.engine.sequence import Sequence as RunningSequence
from olivine.errors import OlivineError
from oracles.pages import DrawingPagesProgram, PagesProgram

SOURCE = str(Path(olivine.engine.__file__).parent)
CONTEXT = 32
VICTIM = 9999  # the victim's timeout, which never comes, and its seed


# The end of a sequence is the answer to a fault, and handing a page out or back is integers in lists: these
# do not fail half way.
WHOLE = ("_guard", "__exit__", "fail", "finish", "tell", "take", "share", "register", "give_back", "_evict")


class Fault(Exception):
    pass


class Panic(BaseException):
    """As a library in Rust raises it: no Exception."""


class Grammar:
    """Even tokens only, and now and then a token that must come. Its n-th call raises."""

    def __init__(self, fails_at: int = 0, fault: type[BaseException] = Fault) -> None:
        self.fails_at, self.fault = fails_at, fault
        self.calls = 0
        self.count = 0
        self._lock = threading.Lock()

    def _call(self) -> None:
        with self._lock:
            self.calls += 1
            if self.calls == self.fails_at:
                raise self.fault("injected")

    def mask(self) -> np.ndarray:
        self._call()
        return np.full(2, 0x55555555, np.int32)

    def accept(self, token: int) -> None:
        self._call()
        self.count += 1

    def forced(self) -> list[int]:
        self._call()
        return [4, 6] if self.count % 5 == 0 else []

    @property
    def done(self) -> bool:
        self._call()
        return False


# The neighbors: one shares a prefix with the victim, the others repeat themselves or are scored or embedded.
SHARED = [7] * 9
NEIGHBORS = (
    Request([*SHARED, 3], Generate(Sampling(temperature=1.0, seed=1), 8)),
    Request([1, 2, 3] * 3, Generate(Sampling(logit_bias=dict.fromkeys([1, 2, 3], 9.0)), 8, logprobs=2)),
    Request([9, 8, 7] * 3, Score(2)),
    Request([6, 5] * 4, Embed()),
)
LOUD = Sampling(temperature=1.0, seed=VICTIM)
VICTIMS: dict[str, Callable[[], Request]] = {
    "embed": lambda: Request([*SHARED, *range(14)], Embed(), timeout=VICTIM),
    "score": lambda: Request([*SHARED, *range(14)], Score(12), timeout=VICTIM),
    "generate": lambda: Request([*SHARED, *range(9)], Generate(LOUD, 5, logprobs=1), timeout=VICTIM),
    "grammar": lambda: Request([*SHARED, *range(9)], Generate(LOUD, 8, constraint=Grammar()), timeout=VICTIM),
}
THOUGHT = ThoughtTokens(48, 49, (4, 49, 6), open=True, budget=2)
REPEATS = Sampling(logit_bias=dict.fromkeys([1, 2, 3], 9.0), temperature=0.5, seed=VICTIM)


def result_of(updates: Sequence[Update]) -> Any:
    """What a request gave, to be compared bit for bit; or its error."""
    if updates[-1].error is not None:
        return updates[-1].error
    assert updates[-1].finish in ("length", "stop")
    reports = [report for update in updates for report in update.logprobs]
    embeddings = [update.embedding.tolist() for update in updates if update.embedding is not None]
    return [token for update in updates for token in update.tokens], reports, embeddings


class Injector:
    """Raises when the engine's thread comes to a line that calls something, at work for the victim alone."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.lines: dict[tuple[CodeType, int], None] = {}  # lines that were come to, in their order
        self.at: tuple[CodeType, int] | None = None  # raise here, once
        self.thrown = 0
        self._for: list[bool] = []
        guard, leave, adapt = Scheduler._guard, Scheduler._leave, Pace.adapt

        @contextmanager
        def noted(scheduler: Scheduler, sequence: RunningSequence) -> Iterator[None]:
            with guard(scheduler, sequence):
                self._for.append(sequence.request.timeout == VICTIM)
                try:
                    yield
                finally:
                    self._for.pop()

        def leaving(scheduler: Scheduler, sequence: RunningSequence) -> None:
            """What gives pages and slots back cannot fail by itself, and has a test of its own."""
            self._for.append(False)
            try:
                leave(scheduler, sequence)
            finally:
                self._for.pop()

        monkeypatch.setattr(Scheduler, "_guard", noted)
        monkeypatch.setattr(Scheduler, "_leave", leaving)
        # All steps take the same time: what they are must not depend on the machine.
        monkeypatch.setattr(Pace, "adapt", lambda pace, step, _: adapt(pace, step, 0.01))

    @contextmanager
    def armed(self, at: tuple[CodeType, int] | None) -> Iterator[None]:
        self.at, self.thrown = at, 0
        gc.disable()  # the end of another test's engine would be a line of the victim's
        threading.settrace(self._call)
        try:
            yield
        finally:
            threading.settrace(None)  # type: ignore[arg-type]
            gc.enable()

    def _call(self, frame: FrameType, event: str, arg: object) -> Any:
        if threading.current_thread().name != "olivine-engine" and frame.f_back is None:
            sys.settrace(None)  # a thread that computes masks
            return None
        return self._line if frame.f_code.co_filename.startswith(SOURCE) else None

    def _line(self, frame: FrameType, event: str, arg: object) -> Any:
        if event == "line" and self._for and self._for[-1]:
            code, line = frame.f_code, frame.f_lineno
            # The end of a `with` is outside of it.
            text = linecache.getline(code.co_filename, line).strip()
            if "(" in text and not text.startswith("with self._guard") and code.co_name not in WHOLE:
                self.lines[code, line] = None
                if self.at == (code, line) and not self.thrown:
                    self.thrown += 1
                    sys.settrace(None)
                    raise Fault("injected")
        return self._line


@dataclass
class Scene:
    """Requests that run at the same time, over pages that do not suffice for all."""

    victim: Request
    neighbors: tuple[Request, ...]
    chains: bool = False
    pages: int = 11
    heard: list[Any] = field(default_factory=list)  # what the victim got, then what the neighbors got

    def play(self, with_victim: bool = True) -> None:
        program = (DrawingPagesProgram if self.chains else PagesProgram)(self.pages)
        engine = Engine(program, CONTEXT, sequences=4)  # type: ignore[arg-type]
        requests = [*self.neighbors[:1], *([self.victim] if with_victim else []), *self.neighbors[1:]]
        mail: list[list[Update]] = [[] for _ in requests]
        ended = [threading.Event() for _ in requests]

        def listener(mine: list[Update], over: threading.Event) -> Callable[[Update], None]:
            def tell(update: Update) -> None:
                mine.append(update)
                if update.finish is not None or update.error is not None:
                    over.set()

            return tell

        with engine._inbox.changed:  # all at once, so that each play is the same
            for request, mine, over in zip(requests, mail, ended, strict=True):
                engine.submit(request, listener(mine, over))
        assert all(over.wait(120) for over in ended)
        deadline = time.monotonic() + 20
        while not engine._scheduler.idle:
            assert time.monotonic() < deadline
            time.sleep(0.0005)
        assert engine.free_pages == program.page_counts
        assert sorted(engine._scheduler._slots) == list(range(4))
        assert all((table == -1).all() for table in engine._scheduler.cache.tables)
        assert sum(engine.stats().finished.values()) == len(requests)
        engine.close()
        if with_victim:
            mail.insert(0, mail.pop(min(1, len(self.neighbors))))
        self.heard = [result_of(updates) for updates in mail]


SCENES: dict[str, Callable[[], Scene]] = {
    **{name: (lambda make=make: Scene(make(), NEIGHBORS)) for name, make in VICTIMS.items()},  # type: ignore[misc]
    "drafts": lambda: Scene(
        Request([1, 2, 3] * 3, Generate(REPEATS, 12), timeout=VICTIM), NEIGHBORS[:1], pages=20
    ),
    "chain": lambda: Scene(VICTIMS["generate"](), NEIGHBORS[:2], chains=True),
    "thought": lambda: Scene(
        Request([*SHARED, *range(9)], Generate(LOUD, 8, thought=THOUGHT), timeout=VICTIM),
        NEIGHBORS[:2],
        chains=True,
    ),
}


@pytest.mark.parametrize("name", SCENES)
def test_a_fault_at_any_line_of_a_requests_own_work_ends_it_alone(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = SCENES[name]
    quiet = make()
    quiet.play(with_victim=False)
    injector = Injector(monkeypatch)
    others: set[tuple[CodeType, int]] = set()  # lines that an earlier scene comes to
    for each, scene in ((each, make_scene()) for each, make_scene in SCENES.items()):
        injector.lines.clear()
        with injector.armed(None):
            scene.play()
        if each == name:
            break
        others |= set(injector.lines)
    assert not isinstance(scene.heard[0], OlivineError)
    assert scene.heard[1:] == quiet.heard
    lines = [line for line in injector.lines if line not in others]
    assert len(lines) >= (60 if name == "embed" else 3)
    for code, line in lines:
        scene = make()
        with injector.armed((code, line)):
            scene.play()
        where = f"{code.co_name}:{line}: {linecache.getline(code.co_filename, line).strip()}"
        assert scene.heard[1:] == quiet.heard, where
        assert injector.thrown and isinstance(scene.heard[0], OlivineError), where
        assert "Fault: injected" in str(scene.heard[0]) and scene.heard[0].code == "internal_error"


@pytest.mark.parametrize("fault", [Fault, Panic])
def test_a_grammar_that_fails_at_any_call_ends_its_own_request(fault: type[BaseException]) -> None:
    quiet = Scene(VICTIMS["grammar"](), NEIGHBORS[:2])
    quiet.play()
    job = quiet.victim.job
    assert isinstance(job, Generate)
    counted = job.constraint
    assert isinstance(counted, Grammar) and counted.calls > 15
    for n in range(1, counted.calls + 1):
        failing = replace(job, constraint=Grammar(n, fault))
        scene = replace(quiet, victim=replace(quiet.victim, job=failing))
        scene.play()
        assert scene.heard[1:] == quiet.heard[1:]
        assert isinstance(scene.heard[0], OlivineError) and f"{fault.__name__}: injected" in str(
            scene.heard[0]
        )


@pytest.mark.parametrize("chains", [False, True])
def test_a_step_that_fails_is_taken_again_without_the_one_that_fails_it(
    chains: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = SCENES["chain" if chains else "generate"]
    quiet = make()
    quiet.play()
    draw, drawn = sampling.draw, [0]
    for n in range(1, 6):

        def failing(logits: Any, how: Any, position: int, n: int = n) -> Any:
            if how.sampling.seed == VICTIM:
                drawn[0] += 1
                if drawn[0] >= n:
                    raise Fault("injected")
            return draw(logits, how, position)

        drawn[0] = 0
        monkeypatch.setattr(sampling, "draw", failing)
        scene = make()
        scene.play()
        assert scene.heard[1:] == quiet.heard[1:]
        assert isinstance(scene.heard[0], OlivineError) and "Fault: injected" in str(scene.heard[0])


def test_a_listener_that_fails_at_any_update_loses_its_own_request() -> None:
    quiet = Scene(VICTIMS["generate"](), NEIGHBORS)
    quiet.play(with_victim=False)
    for n in range(1, 16):
        program = PagesProgram(11)
        engine = Engine(program, CONTEXT, sequences=4)  # type: ignore[arg-type]
        told = [0]

        def deaf(update: Update, n: int = n, told: list[int] = told) -> None:
            told[0] += 1
            if told[0] >= n:
                raise Fault("nobody listens")

        with engine._inbox.changed:
            first = engine.submit(NEIGHBORS[0])
            engine.submit(VICTIMS["generate"](), deaf)
            others = [engine.submit(request) for request in NEIGHBORS[1:]]
        assert [result_of(list(ticket)) for ticket in (first, *others)] == quiet.heard
        engine.close()
        assert engine.free_pages == program.page_counts


def test_the_cause_of_a_failure_is_kept_for_a_report() -> None:
    scene = Scene(Request([1], Generate(LOUD, 4, constraint=Grammar(3))), ())
    scene.play()
    assert isinstance(scene.heard[0].__cause__, Fault)
    assert scene.heard[0].__cause__.__traceback__ is not None


@pytest.mark.parametrize("where", [(Scheduler, "finish"), (Scheduler, "_leave"), (KvCache, "end")], ids=str)
def test_an_engine_that_fails_to_end_a_request_ends_all_and_takes_no_more(
    where: tuple[type, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One request runs, one waits and one has just come; nobody may wait for ever."""
    others = set(threading.enumerate())
    program = PagesProgram(64)
    stepping, go = threading.Event(), threading.Event()
    step = program.step

    def held(batch: Any, *, logits: bool = True) -> Any:
        stepping.set()
        go.wait(120)
        return step(batch, logits=logits)

    program.step = held  # type: ignore[method-assign]
    engine = Engine(program, CONTEXT, sequences=1)  # type: ignore[arg-type]
    mail: queue.SimpleQueue[Update] = queue.SimpleQueue()
    with engine._inbox.changed:
        for _ in range(2):
            engine.submit(Request([1], Generate(max_tokens=1)), mail.put)
    assert stepping.wait(120)
    engine.submit(Request([1], Generate(max_tokens=1)), mail.put)

    def failing(*_: Any, **__: Any) -> None:
        raise Fault("injected")

    monkeypatch.setattr(*where, failing)
    go.set()
    errors = []
    while len(errors) < 3:
        update = mail.get(timeout=120)
        assert update.finish is None or where[1] != "finish"
        if update.error is not None or update.finish is not None:
            errors.append(update.error)
    # The one whose end failed has its result, if it got that far; the others hear why they have none.
    assert sum(error is not None for error in errors) == (3 if where[1] == "finish" else 2)
    failures = [error for error in errors if error is not None]
    with pytest.raises(OlivineError, match=r"no more requests.*Fault: injected.*load it again") as refused:
        engine.submit(Request([1], Generate()))
    for error in (*failures, refused.value):
        assert error.code == "engine_failed" and isinstance(error.__cause__, Fault)
    assert engine.stats().stalled > 0  # a health check sees it
    engine.close()
    assert "olivine-engine" not in {thread.name for thread in set(threading.enumerate()) - others}
    left = weakref.ref(engine)
    del engine, errors, failures, error, refused, update
    gc.collect()
    assert left() is None


def test_a_listener_that_raises_no_exception_but_an_exit_loses_its_own_request() -> None:
    engine = Engine(PagesProgram(64), CONTEXT)  # type: ignore[arg-type]

    def leaving(update: Update) -> None:
        raise SystemExit

    with engine._inbox.changed:
        engine.submit(Request([1], Generate(max_tokens=5)), leaving)
        mail: queue.SimpleQueue[Update] = queue.SimpleQueue()
        engine.submit(Request([2], Generate(max_tokens=5)), mail.put)
    tokens = 0
    while (update := mail.get(timeout=120)).finish is None:
        assert update.error is None
        tokens += len(update.tokens)
    assert tokens == 5
    engine.close()
