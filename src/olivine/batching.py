"""Many requests of one call, running at the same time: `gather` waits in a thread, `agather` in a task."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from olivine.engine import Engine, Request, Ticket, Update, Usage
from olivine.streaming import Mailbox, Stream

if TYPE_CHECKING:
    import asyncio

S = TypeVar("S", Ticket, Stream[Any, Any])
R = TypeVar("R")


def gather(started: Iterable[S], result: Callable[[S], R], limit: int) -> list[R]:
    """The results of many requests, in their order. At most `limit` of them are submitted and not yet read:
    `started` submits a request when the iteration comes to it.

    If one of them fails, the others are cancelled.
    """
    waiting: deque[S] = deque()
    results: list[R] = []
    try:
        for request in started:
            waiting.append(request)
            if len(waiting) == limit:
                results.append(result(waiting.popleft()))
        while waiting:
            results.append(result(waiting.popleft()))
    finally:
        for request in waiting:
            request.cancel()
    return results


async def agather(started: Iterable[Coroutine[Any, Any, R]], limit: int) -> list[R]:
    """`gather` for asyncio. If the task that waits is cancelled, so are the requests."""
    import asyncio

    waiting: deque[asyncio.Task[R]] = deque()
    results: list[R] = []
    try:
        for request in started:
            waiting.append(asyncio.create_task(request))
            if len(waiting) == limit:
                results.append(await waiting[0])
                waiting.popleft()
        while waiting:
            results.append(await waiting[0])
            waiting.popleft()
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
    return results


async def updates_of(engine: Engine, request: Request) -> tuple[list[Update], Usage]:
    """All updates of a request. They come through the event loop's mailbox: no thread waits for them."""
    import asyncio

    mail: asyncio.Queue[Update] = asyncio.Queue()
    ticket = engine.submit(request, Mailbox.of_running_loop().listener(mail.put_nowait))
    updates: list[Update] = []
    try:
        while not updates or (updates[-1].finish is None and updates[-1].error is None):
            updates.append(await mail.get())
    finally:
        ticket.cancel()
    return updates, ticket.usage
