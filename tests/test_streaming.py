"""Streams: cancelled and closed from anywhere, at any time."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

import olivine
from olivine import LLM, DeadlineError, RequestError
from olivine.engine import Ticket, Update
from olivine.errors import OlivineError
from olivine.streaming import Mailbox, Stream, result_of
from oracles import tiny
from oracles.gate import gate_of
from oracles.waiting import eventually

ENDLESS: dict[str, Any] = {"max_tokens": None, "ignore_eos": True, "temperature": 1.0, "seed": 1}


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    path = tiny.write("tiny-qwen3", "Q8_0", tmp_path_factory.mktemp("model"))
    with olivine.load(path, device="reference", context=2048) as llm:
        yield llm


def idle(llm: LLM) -> bool:
    stats = llm.stats()
    return not stats.running and not stats.waiting and all(each.free == each.total for each in stats.pages)


class Updates:
    """A source whose pieces are the updates as they are."""

    def __init__(self, ticket: Ticket, leave: Callable[[], None] = lambda: None) -> None:
        self.ticket = ticket
        self.result: Update | None = None
        self._leave = leave

    def feed(self, update: Update) -> Update:
        self.result = update if update.finish else None
        return update

    def abandon(self) -> None:
        self.ticket.cancel()
        self._leave()


def test_a_stream_is_cancelled_from_another_thread_and_keeps_what_it_has(llm: LLM) -> None:
    stream = llm.stream("x", **ENDLESS)
    pieces, begun = [], threading.Event()

    def read() -> None:
        for piece in stream:
            pieces.append(piece)
            begun.set()

    reader = threading.Thread(target=read)
    reader.start()
    assert begun.wait(30)
    stream.cancel()
    reader.join(30)
    completion = pieces[-1].completion
    assert completion is not None and completion.finish_reason == "cancelled"
    assert "".join(map(str, pieces)) == completion.text
    assert 0 < len(completion.tokens) == completion.usage.completion < 2000
    again = llm.generate("x", **{**ENDLESS, "max_tokens": len(completion.tokens)})
    assert again.tokens == completion.tokens
    assert idle(llm) and list(stream) == []


def test_a_chat_that_is_cancelled_has_a_reply(llm: LLM) -> None:
    with llm.stream_chat("x", **ENDLESS) as stream:
        first = next(delta for delta in stream if delta.tokens)
        stream.cancel()
        *_, last = stream
    assert last.reply is not None and last.reply.finish_reason == "cancelled"
    assert last.reply.tokens[: len(first.tokens)] == first.tokens
    eventually(lambda: idle(llm))


def test_a_stream_that_is_cancelled_before_it_began_has_an_empty_completion(llm: LLM) -> None:
    blocked = [llm.stream("y", **ENDLESS) for _ in range(8)]  # as many as run at the same time
    stream = llm.stream("x", **ENDLESS)
    stream.cancel()
    completion = result_of(stream)
    assert (completion.text, completion.tokens, completion.finish_reason) == ("", [], "cancelled")
    for each in blocked:
        each.close()
    eventually(lambda: idle(llm))


def test_closing_ends_the_iteration_even_of_a_thread_that_waits() -> None:
    cancelled = threading.Event()
    ticket = Ticket(lambda reason: cancelled.set())
    stream = Stream(Updates(ticket))
    waiting, got = threading.Event(), []

    def read() -> None:
        waiting.set()
        got.extend(stream)

    reader = threading.Thread(target=read)
    reader.start()
    assert waiting.wait(30)
    stream.close()
    assert cancelled.is_set()
    ticket.put(Update(finish="cancelled"))  # the engine's answer
    reader.join(30)
    assert got == [] and next(stream, None) is None
    stream.close()


def test_a_stream_is_a_context_manager_and_closes_like_a_generator(llm: LLM) -> None:
    with llm.stream("x", **ENDLESS) as stream:
        next(stream)
    assert list(stream) == []
    with closing(llm.stream("x", **ENDLESS)) as stream:
        assert iter(stream) is stream
    assert next(stream, None) is None
    eventually(lambda: idle(llm))


def test_a_stream_that_nobody_holds_is_cancelled(llm: LLM) -> None:
    stream = llm.stream("x", **ENDLESS)
    gone = weakref.ref(stream)
    gc.disable()
    try:
        del stream
        assert gone() is None  # by its last reference, not by the cycle collector
    finally:
        gc.enable()
    eventually(lambda: idle(llm))


def test_what_is_left_is_done_once_however_a_stream_ends() -> None:
    left: list[str] = []

    def made(*updates: Update) -> Stream[Update, Update]:
        left.clear()
        ticket = Ticket(lambda reason: None)
        for update in updates:
            ticket.put(update)
        return Stream(Updates(ticket, lambda: left.append("left")))

    assert len(list(made(Update(tokens=[1]), Update(finish="stop")))) == 2 and left == ["left"]
    with made(Update(tokens=[1])) as stream:
        next(stream)
    stream.close()
    assert left == ["left"]
    made()
    assert left == ["left"]
    stream = made(Update(error=OlivineError("no")))
    with pytest.raises(OlivineError, match="no"):
        next(stream)
    assert left == ["left"] and next(stream, None) is None


def test_time_that_is_up_is_a_finish_reason(llm: LLM) -> None:
    completion = llm.generate("x", timeout=1e-9, **ENDLESS)
    assert (completion.finish_reason, completion.tokens) == ("timeout", [])
    reply = llm.chat("x", timeout=1e-9, **ENDLESS)
    assert (reply.finish_reason, reply.content) == ("timeout", "")
    assert (
        llm.generate("x", timeout=1000, priority=-5, max_tokens=2, ignore_eos=True).finish_reason == "length"
    )
    for late in (lambda: llm.embed("x", timeout=1e-9), lambda: llm.score("x", "y", timeout=1e-9)):
        with pytest.raises(DeadlineError) as caught:
            late()
        assert caught.value.code == "timeout"
    assert llm.embed("x", timeout=1000, priority=-5).shape == (llm.model.plan.hidden.width,)
    assert llm.stats().finished["timeout"] == 4
    with pytest.raises(RequestError, match="timeout must be above 0, in seconds, and is 0"):
        llm.generate("x", timeout=0)


def test_statistics_count_what_callers_got(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    before = llm.stats()
    completion = llm.generate("Once upon a time", max_tokens=9, ignore_eos=True)
    assert completion.text
    # The reader finds stop strings: the engine waits for its word, after more steps than that takes.
    gate, cancel = gate_of(llm.program, monkeypatch), llm._engine._cancel

    def cancelled(*args: Any) -> None:
        cancel(*args)
        gate.open()

    monkeypatch.setattr(llm._engine, "_cancel", cancelled)
    gate.close(after=9)
    llm.generate("Once upon a time", max_tokens=1000, ignore_eos=True, stop=completion.text[0])
    eventually(lambda: idle(llm))
    after = llm.stats()
    assert after.finished["length"] == before.finished["length"] + 1
    assert after.finished["stop"] == before.finished["stop"] + 1  # though the engine was told to stop
    assert after.generated_tokens >= before.generated_tokens + 10
    assert after.steps > before.steps and after.step_times.p99 > 0 and after.stalled == 0


def test_a_mailbox_wakes_its_loop_once_and_keeps_the_order() -> None:
    woken: list[Callable[[], None]] = []

    class Loop:
        def call_soon_threadsafe(self, callback: Callable[[], None]) -> None:
            woken.append(callback)

    loop: Any = Loop()
    mailbox, heard = Mailbox(loop), list[Any]()
    one, other = (
        mailbox.listener(heard.append),
        mailbox.listener(lambda update: heard.append(("other", update))),
    )
    first, second, third = Update([1]), Update([2]), Update([3])
    one(first), other(second)
    assert len(woken) == 1 and heard == []
    woken.pop()()
    assert heard == [first, ("other", second)]
    one(third)
    assert len(woken) == 1
    woken.pop()()
    assert heard[-1] is third


def test_a_mailbox_of_a_loop_that_is_gone_says_so_to_everyone_and_keeps_it_not(llm: LLM) -> None:
    async def one() -> weakref.ref[asyncio.AbstractEventLoop]:
        await llm.agenerate("x", max_tokens=1)
        return weakref.ref(asyncio.get_running_loop())

    async def listener() -> Callable[[Update], None]:
        return Mailbox.of_running_loop().listener(lambda update: None)

    loop = asyncio.run(one())
    eventually(lambda: gc.collect() >= 0 and loop() is None)
    tell = asyncio.run(listener())
    for _ in range(2):
        with pytest.raises(RuntimeError):
            tell(Update([1]))


def test_two_threads_cannot_read_one_stream(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second hears so, and the first goes on."""
    gate = gate_of(llm.program, monkeypatch)
    gate.close(after=2)
    stream = llm.stream("x", temperature=1.0, seed=1, max_tokens=20, ignore_eos=True)
    pieces: list[Any] = []
    thread = threading.Thread(target=lambda: pieces.extend(stream))
    thread.start()
    eventually(lambda: stream._reading.locked() and llm.stats().running == 1)
    try:
        with pytest.raises(OlivineError, match="another thread waits for the next piece"):
            next(stream)
    finally:
        gate.open()
    thread.join(60)
    assert pieces[-1].completion is not None and len(pieces[-1].completion.tokens) == 20
