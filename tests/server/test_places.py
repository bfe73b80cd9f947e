"""Places: so many at once, so many waiting, and nobody waits whose client is gone."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from olivine.errors import BusyError
from olivine.server.errors import ClientGone
from olivine.server.places import Places


class Caller:
    """A call whose client leaves when it is told to."""

    def __init__(self) -> None:
        self.left = False

    async def unless_gone(self, work: Coroutine[Any, Any, Any]) -> Any:
        task = asyncio.ensure_future(work)
        while not task.done():
            await asyncio.sleep(0)
            if self.left:
                task.cancel()
                raise ClientGone
        return task.result()


def test_places() -> None:
    asyncio.run(_places())


async def _places() -> None:
    places, order = Places(2, 2), list[int]()
    callers = [Caller() for _ in range(5)]
    doors = [asyncio.Event() for _ in range(5)]

    async def work(index: int) -> None:
        async with places.taken(callers[index]):  # type: ignore[arg-type]
            order.append(index)
            await doors[index].wait()

    tasks = [asyncio.create_task(work(i)) for i in range(4)]
    while places.waiting < 2:
        await asyncio.sleep(0)
    assert order == [0, 1]
    with pytest.raises(BusyError, match="2 requests of this kind are waiting"):
        await work(4)
    callers[2].left = True
    with pytest.raises(ClientGone):
        await tasks[2]
    assert places.waiting == 1
    doors[0].set()
    while len(order) < 3:
        await asyncio.sleep(0)
    assert order == [0, 1, 3]
    for door in doors:
        door.set()
    await asyncio.gather(tasks[0], tasks[1], tasks[3])
    await work(4)
    assert places.waiting == 0
