"""A thousand requests of every kind, good and bad: all are answered, and nothing is left behind."""

from __future__ import annotations

import gc
import random
import sys
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from olivine.backends import Batch, Program, Result
from olivine.engine import Embed, Engine, Generate, Request, Sampling, Score, Ticket, Update
from olivine.engine.sequence import Sequence
from olivine.errors import OlivineError, RequestError
from oracles import published, running
from oracles.waiting import eventually

THREADS = 4
CONTEXT, PAGES = 48, 30  # pages of 4 tokens: 120 tokens for six sequences of up to 48


class Fragile:
    """A program that fails now and then."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.rng = random.Random(0)

    def __getattr__(self, name: str) -> object:
        return getattr(self.program, name)

    def step(self, batch: Batch, *, logits: bool = True) -> Result:
        if self.rng.random() < 0.01:
            raise RuntimeError("the power flickered")
        return self.program.step(batch, logits=logits)


def prompt(rng: random.Random) -> list[int]:
    """Few beginnings, so that many are shared."""
    return [rng.randrange(3)] * rng.choice((0, 8, 16)) + [
        rng.randrange(90) for _ in range(rng.randint(1, 20))
    ]


class Caller:
    """One thread that asks for anything, and reads, cancels or forgets what it asked for."""

    def __init__(self, engine: Engine, seed: int) -> None:
        self.engine = engine
        self.rng = random.Random(seed)
        self.seen: Counter[str] = Counter()
        self.open: list[Ticket] = []

    def run(self, count: int) -> None:
        for _ in range(count):
            kind = self.rng.choices((self.good, self.bad, self.quitting, self.deaf), (14, 2, 4, 1))[0]
            kind()
            while len(self.open) > self.rng.randint(0, 4):
                self.read(self.open.pop(0))
        for ticket in self.open:
            self.read(ticket)
        self.open.clear()

    def request(self) -> Request:
        rng = self.rng
        text = prompt(rng)
        match rng.randrange(8):
            case 0:
                return Request(text, Embed(rng.choice(("mean", "last"))))
            case 1:
                return Request([1, *text], Score(rng.randint(1, len(text))))
            case _:
                sampling = Sampling(temperature=rng.choice((0.0, 1.0)), top_k=5, seed=rng.getrandbits(32))
                return Request(text, Generate(sampling, rng.randint(1, 12), logprobs=rng.choice((None, 2))))

    def good(self) -> None:
        self.open.append(self.engine.submit(self.request()))

    def bad(self) -> None:
        no_token = Sampling(logit_bias=dict.fromkeys(range(97), float("-inf")))
        bad = (
            Request([], Generate()),
            Request([1] * 60, Generate()),
            Request([97], Generate()),
            Request([1], Generate(max_tokens=0)),
            Request([1], Generate(no_token)),
        )
        try:
            self.open.append(self.engine.submit(self.rng.choice(bad)))
        except RequestError:
            self.seen["refused"] += 1

    def quitting(self) -> None:
        ticket = self.engine.submit(Request(prompt(self.rng), Generate()))
        for _ in range(self.rng.randint(0, 3)):
            try:
                next(iter(ticket))  # leaving the iteration cancels
            except StopIteration:
                break
            except OlivineError:
                self.seen["error"] += 1
                return
        ticket.cancel()
        self.open.append(ticket)

    def deaf(self) -> None:
        def tell(update: Update) -> None:
            self.seen["nobody listens"] += (update.finish or update.error) is not None
            raise ConnectionError("nobody listens")

        self.engine.submit(self.request(), tell)

    def read(self, ticket: Ticket) -> None:
        if ticket._over:
            self.seen["read before"] += 1
            return
        try:
            *_, last = ticket
        except OlivineError:
            self.seen["error"] += 1
        else:
            assert last.finish is not None
            self.seen[last.finish] += 1


def all_at_once(engine: Engine, seed: int, each: int) -> Counter[str]:
    """What became of `each` requests in each thread."""
    callers = [Caller(engine, seed + i) for i in range(THREADS)]
    errors: list[BaseException] = []

    def guarded(call: Callable[[int], None]) -> None:
        try:
            call(each)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(caller.run,), daemon=True) for caller in callers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    eventually(lambda: engine._scheduler.idle)  # those whose callers did not wait
    return sum((caller.seen for caller in callers), Counter())


@pytest.mark.parametrize("each", [160, pytest.param(250, marks=pytest.mark.exhaustive)])
def test_hundreds_of_requests_leave_nothing_behind(tmp_path: Path, each: int) -> None:
    case = published.case("olmo3-unscaled")
    layers = {"num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"]}
    folder = published.save(replace(case, options={**case.options, **layers}).make(), tmp_path)
    before = set(threading.enumerate())
    program = Fragile(running.reference(folder, PAGES))
    engine = Engine(program, CONTEXT, sequences=6)  # type: ignore[arg-type]
    warm = all_at_once(engine, seed=100, each=each // 5)
    gc.collect()
    blocks = sys.getallocatedblocks()
    seen = warm + all_at_once(engine, seed=200, each=each - each // 5)
    gc.collect()
    grown = sys.getallocatedblocks() - blocks
    assert seen.total() == THREADS * each, seen
    for kind in ("stop", "length", "cancelled", "error", "refused", "nobody listens"):
        assert seen[kind] > 5, seen
    assert engine.free_pages == program.page_counts
    assert sorted(engine._scheduler._slots) == list(range(6))
    assert (engine._scheduler.cache.tables[0] == -1).all()
    assert not [each for each in gc.get_objects() if type(each) is Sequence]
    assert grown < 2 * THREADS * each  # blocks of memory: a request that stays takes dozens
    engine.close()
    assert set(threading.enumerate()) <= before
