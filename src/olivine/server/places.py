"""Places for work of which only so much is done at the same time; the rest waits, within a bound."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from olivine.errors import BusyError

if TYPE_CHECKING:
    from olivine.server.endpoint import Call


class Places:
    """So many `at_once`, and so many waiting."""

    def __init__(self, at_once: int, waiting: int) -> None:
        self._free = asyncio.Semaphore(at_once)
        self._most = waiting
        self.waiting = 0

    @asynccontextmanager
    async def taken(self, call: Call) -> AsyncIterator[None]:
        """One place, for which a request waits as long as its client does."""
        if self._free.locked():
            if self.waiting >= self._most:
                raise BusyError(f"{self.waiting} requests of this kind are waiting; try again later")
            self.waiting += 1
            try:
                await call.unless_gone(self._free.acquire())
            finally:
                self.waiting -= 1
        else:
            await self._free.acquire()
        try:
            yield
        finally:
            self._free.release()
