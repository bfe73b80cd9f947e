"""How a caller reads a generation: in a loop (`Stream`), in an asyncio task (`follow`), or to its end.

Asyncio hears of the engine through a `Mailbox`: however many requests a step has tokens for, it wakes the
event loop once.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import AsyncGenerator, Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from olivine.engine import Ticket, Update
from olivine.errors import OlivineError

if TYPE_CHECKING:
    import asyncio  # at run time where it is used: its import takes a while, and most programs do not need it

P = TypeVar("P")  # a piece
R = TypeVar("R")  # the result, which the last piece carries
T = TypeVar("T")
P_co = TypeVar("P_co", covariant=True)
R_co = TypeVar("R_co", covariant=True)
Tell = Callable[[Update], None]  # called by the engine's thread with each update


class Source(Protocol[P_co, R_co]):
    """A request under way, whose updates become pieces: a `TokenStream`."""

    @property
    def ticket(self) -> Ticket: ...
    @property
    def result(self) -> R_co | None:
        """The result, once the last piece is made."""
        ...

    def feed(self, update: Update) -> P_co:
        """The piece that an update makes."""
        ...

    def abandon(self) -> None:
        """Cancels the request: nothing more of it is read. A second time is fine."""
        ...


class Stream(Generic[P, R]):
    """Pieces of a generation as they are made. Leaving the loop or dropping the stream stops the generation.

    `cancel` and `close` may be called from any thread, also while another one waits for the next piece.
    """

    def __init__(self, source: Source[P, R]) -> None:
        self._source = source
        self._updates = iter(source.ticket)
        self._over = False
        self._reading = threading.Lock()
        # Also if no piece is ever asked for; not at exit, when the engine ends by itself.
        self._abandon = weakref.finalize(self, source.abandon)
        self._abandon.atexit = False

    def __iter__(self) -> Stream[P, R]:
        return self

    def __next__(self) -> P:
        if self._over:
            raise StopIteration
        if not self._reading.acquire(blocking=False):
            raise OlivineError("another thread waits for the next piece of this stream: read it in one")
        try:
            piece = self._source.feed(next(self._updates))
        except BaseException:
            self.close()
            raise
        finally:
            self._reading.release()
        if self._over:  # closed meanwhile
            raise StopIteration
        if self._source.result is not None:
            self.close()
        return piece

    def cancel(self) -> None:
        """Stops the generation. The pieces that were made still come, and the last one carries the result,
        with finish_reason "cancelled"."""
        self._source.ticket.cancel()

    def answer_now(self) -> None:
        """Ends the thought of a chat's answer, from any thread: what it has thought stays, and the answer
        follows. Nothing happens where the model does not think."""
        self._source.ticket.end_thought()

    def close(self) -> None:
        """Stops the generation and the iteration: there is no further piece. Closing twice is fine."""
        self._over = True
        self._abandon()

    def __enter__(self) -> Stream[P, R]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def result_of(stream: Stream[P, R]) -> R:
    """Reads a stream to its end; gives what the last piece carries."""
    for _ in stream:
        pass
    return _result(stream._source)


class Mailbox:
    """Carries updates from engines' threads into an event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = weakref.ref(loop)  # weakly, as `_MAILBOXES` has it
        self._letters: deque[tuple[Callable[[Update], None], Update]] = deque()
        self._woken = False

    @classmethod
    def of_running_loop(cls) -> Mailbox:
        """The mailbox of this task's event loop."""
        import asyncio

        loop = asyncio.get_running_loop()
        found = _MAILBOXES.get(loop)
        if found is None:
            found = _MAILBOXES[loop] = cls(loop)
        return found

    def listener(self, put: Callable[[Update], None]) -> Tell:
        """What an engine calls with updates; `put` gets them in the event loop."""

        def tell(update: Update) -> None:
            self._letters.append((put, update))
            if not self._woken:
                self._woken = True
                try:
                    self._wake()
                except BaseException:  # the loop is closed: everyone who tells it something must hear so
                    self._woken = False
                    raise

        return tell

    def _wake(self) -> None:
        loop = self._loop()
        if loop is None:
            raise RuntimeError("the event loop is gone")
        loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        self._woken = False  # before the letters are taken: one that comes later wakes the loop again
        letters = self._letters
        while letters:
            put, update = letters.popleft()
            put(update)


_MAILBOXES: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Mailbox] = weakref.WeakKeyDictionary()


async def follow(start: Callable[[Tell], Source[P, R]]) -> AsyncGenerator[P, None]:
    """`Stream` for asyncio. `start` submits the request, with a listener to its updates."""
    import asyncio

    mail: asyncio.Queue[Update] = asyncio.Queue()
    tell = Mailbox.of_running_loop().listener(mail.put_nowait)
    source = await in_thread(lambda: start(tell), lambda source: source.abandon())
    try:
        while source.result is None:
            update = await mail.get()
            if update.error is not None:
                raise update.error
            yield source.feed(update)
    finally:
        source.abandon()


async def aresult_of(start: Callable[[Tell], Source[P, R]]) -> R:
    """`result_of` for asyncio."""
    sources: list[Source[P, R]] = []

    def started(tell: Tell) -> Source[P, R]:
        sources.append(start(tell))
        return sources[0]

    async for _ in follow(started):
        pass
    return _result(sources[0])


def _result(source: Source[P, R]) -> R:
    if source.result is None:
        raise OlivineError("the generation ended without a result")
    return source.result


async def in_thread(work: Callable[[], T], drop: Callable[[T], object] = lambda result: None) -> T:
    """Does in a thread what may take a while, such as encoding a prompt. If the task is cancelled meanwhile,
    the result goes to `drop`."""
    import asyncio

    started = asyncio.get_running_loop().run_in_executor(None, work)

    def dropped(done: Any) -> None:
        if not done.cancelled() and not done.exception():
            drop(done.result())

    try:
        return await asyncio.shield(started)
    except asyncio.CancelledError:
        started.add_done_callback(dropped)
        raise
    finally:
        del started  # an error in it would keep this frame, and the prompt, until cycles are collected
