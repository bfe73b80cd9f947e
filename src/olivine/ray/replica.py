"""A replica: a process with the model and the server's ASGI application, which answers forwarded requests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import NamedTuple

from starlette.types import Message, Scope

from olivine.ray.config import Config
from olivine.ray.hosted import Hosted

# What of a request's scope is plain data that the application reads.
SCOPE = ("type", "http_version", "method", "scheme", "path", "query_string", "root_path", "headers", "client",
         "server")  # fmt: skip


@dataclass(frozen=True)
class Forwarded:
    """A request on its way to a replica."""

    scope: Scope
    body: bytes
    prefixes: tuple[bytes, ...] = ()  # of its prompt, for the router
    replica: str = ""  # the only one that can answer it
    avoid: tuple[str, ...] = ()  # those that failed to


class Whole(NamedTuple):
    """A response that is complete."""

    replica: str
    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes


class Replica:
    """The deployment that answers. Ray counts its requests, checks its health, and lets it finish its
    requests before it is stopped."""

    async def __init__(self, config: Config) -> None:  # type: ignore[misc]
        from ray.serve import get_replica_context

        self.id = get_replica_context().replica_id.unique_id
        self._hosted = Hosted(config)
        await self._hosted.start()

    async def answer(self, request: Forwarded) -> AsyncIterator[str | list[Message]]:
        """The messages of a response, as many at once as there are. The replica's id comes before: the
        request has arrived."""
        yield self.id
        async with aclosing(self._hosted.answer(request.scope, request.body)) as messages:
            async for some in messages:
                yield some

    async def whole(self, request: Forwarded) -> Whole:
        """A complete response: for what every replica is asked."""
        return Whole(self.id, *await self._hosted.whole(request.scope, request.body))

    async def holds(self, name: str) -> str:
        """This replica's id, if the answer or the stream of this name is one of its own; else ""."""
        server = self._hosted.server
        return self.id if server.streams.knows(name) or server.running.knows(name) else ""

    async def check_health(self) -> None:
        """Raises where the replica has to be replaced."""
        await self._hosted.check_health()

    async def __del__(self) -> None:
        if (hosted := getattr(self, "_hosted", None)) is not None:
            await hosted.stop()
