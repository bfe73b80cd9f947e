"""Many requests of one call, running at the same time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from olivine.engine import Ticket
from olivine.streaming import Stream

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
