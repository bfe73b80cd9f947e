"""A generation as its caller follows it: in a loop, in an asyncio task, or to its end."""

from __future__ import annotations

import weakref
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Generic, TypeVar

from olivine.engine import Ticket, Update
from olivine.errors import OlivineError

T = TypeVar("T")  # a piece
R = TypeVar("R")  # what the last piece carries


@dataclass(frozen=True)
class Source(Generic[T, R]):
    """A request under way: what its updates become, the result that the last of these carries, and what is
    left to do when nobody wants more."""

    ticket: Ticket
    feed: Callable[[Update], T]
    result: Callable[[T], R | None]
    leave: Callable[[], None] = lambda: None

    def abandon(self) -> None:
        self.ticket.cancel()
        self.leave()


class Stream(Generic[T, R]):
    """Pieces of a generation as they are made. Leaving the loop or dropping the stream stops the generation.

    `cancel` and `close` may be called from any thread, also while another one waits for the next piece.
    """

    def __init__(self, source: Source[T, R]) -> None:
        self._source = source
        self._updates = iter(source.ticket)
        self._over = False
        # Also if nobody ever asks for a piece; not at exit, when the engine ends by itself.
        self._abandon = weakref.finalize(self, source.abandon)
        self._abandon.atexit = False

    def __iter__(self) -> Stream[T, R]:
        return self

    def __next__(self) -> T:
        if self._over:
            raise StopIteration
        try:
            piece = self._source.feed(next(self._updates))
        except BaseException:
            self.close()
            raise
        if self._over:  # closed meanwhile
            raise StopIteration
        if self._source.result(piece) is not None:
            self.close()
        return piece

    def cancel(self) -> None:
        """Stops the generation. The pieces that were made still come, and the last one carries the result,
        with finish_reason "cancelled"."""
        self._source.ticket.cancel()

    def close(self) -> None:
        """Stops the generation and the iteration: there is no further piece. Closing twice is fine."""
        self._over = True
        self._abandon()

    def __enter__(self) -> Stream[T, R]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def result_of(stream: Stream[T, R]) -> R:
    """Reads a stream to its end; gives what the last piece carries."""
    for piece in stream:
        if (found := stream._source.result(piece)) is not None:
            return found
    raise OlivineError("the generation ended without an end")


async def follow(start: Callable[[Callable[[Update], None]], Source[T, R]]) -> AsyncGenerator[T, None]:
    """`Stream` for asyncio: the pieces of the request that `start` hands in, with a listener."""
    import asyncio  # here and below: it takes a while, and a start-up has no use for it

    mail: asyncio.Queue[Update] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def tell(update: Update) -> None:
        loop.call_soon_threadsafe(mail.put_nowait, update)

    source = await _in_thread(lambda: start(tell))
    try:
        while True:
            update = await mail.get()
            if update.error is not None:
                raise update.error
            piece = source.feed(update)
            yield piece
            if source.result(piece) is not None:
                return
    finally:
        source.abandon()


async def _in_thread(start: Callable[[], Source[T, R]]) -> Source[T, R]:
    """Starts a request in a thread, because to encode its prompt may take a while. If the task is cancelled
    meanwhile, so is the request."""
    import asyncio

    started = asyncio.get_running_loop().run_in_executor(None, start)

    def drop(done: Any) -> None:
        if not done.cancelled() and not done.exception():
            done.result().abandon()

    try:
        return await asyncio.shield(started)
    except asyncio.CancelledError:
        started.add_done_callback(drop)
        raise
    finally:
        del started  # an error in it would keep this frame, and the prompt, until cycles are collected
