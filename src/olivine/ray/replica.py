"""A replica: a process with the model and the server's ASGI application, which answers forwarded requests."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, cast

from starlette.types import Message, Scope

from olivine.errors import OlivineError
from olivine.hub import find
from olivine.loading import LoadKwargs
from olivine.ray.config import Config
from olivine.server.app import create_app
from olivine.server.endpoint import Server
from olivine.server.loader import Loader
from olivine.server.log import configure
from olivine.server.models import Models
from olivine.server.sources import find_models

# What of a request's scope is plain data that the application reads.
SCOPE = ("type", "http_version", "method", "scheme", "path", "query_string", "root_path", "headers", "client",
         "server")  # fmt: skip
# A replica that says so is on its way, and none that has to be replaced.
_PASSING = ("loading", "restarting")


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
        configure(config.settings)
        (model,) = find_models([Path(find(config.model))], [config.alias] if config.alias else [])
        model.pinned = model.preload = True
        model.mmproj = None if config.load.mmproj is None else Path(config.load.mmproj)
        options = {name: value for name, value in vars(config.load).items() if name != "mmproj"}
        self._models = Models([model], config.settings, Loader(cast(LoadKwargs, options)))
        self._server = Server(config.settings, self._models)
        self._app = create_app(self._server)
        self._tasks: set[asyncio.Task[None]] = set()
        self._lifespan = await _begin(self._app)
        if failed := await self._models.started():
            raise failed[0].error or OlivineError(f"{model.name} could not be loaded")

    async def answer(self, request: Forwarded) -> AsyncIterator[str | list[Message]]:
        """The messages of a response, as many at once as there are. The replica's id comes before: the
        request has arrived."""
        yield self.id
        arrived: asyncio.Queue[Message | None] = asyncio.Queue()
        gone = asyncio.Event()
        task = asyncio.ensure_future(self._run(request, arrived, gone))
        self._tasks.add(task)  # it may outlive its client: streams can be taken up again
        task.add_done_callback(self._tasks.discard)
        try:
            ended = False
            while not ended:
                messages = [await arrived.get()]
                while not arrived.empty():
                    messages.append(arrived.get_nowait())
                ended = messages[-1] is None
                if some := [each for each in messages if each is not None]:
                    yield some
        finally:
            gone.set()

    async def whole(self, request: Forwarded) -> Whole:
        """A complete response: for what every replica is asked."""
        messages: list[Message] = []
        async for each in self.answer(request):
            messages += [] if isinstance(each, str) else each
        start = messages[0]
        body = b"".join(each.get("body", b"") for each in messages[1:])
        return Whole(self.id, start["status"], start["headers"], body)

    async def holds(self, name: str) -> str:
        """This replica's id, if the answer or the stream of this name is one of its own; else ""."""
        known = self._server.streams.knows(name) or self._server.running.knows(name)
        return self.id if known else ""

    async def check_health(self) -> None:
        """Raises where the replica has to be replaced."""
        scope = {"type": "http", "method": "GET", "path": "/health", "headers": [], "query_string": b""}
        found = await self.whole(Forwarded(scope, b""))
        if found.status != 200 and json.loads(found.body)["status"] not in _PASSING:
            raise RuntimeError(json.loads(found.body)["error"]["message"])

    async def __del__(self) -> None:
        if (lifespan := getattr(self, "_lifespan", None)) is not None:
            await _end(lifespan)
            await asyncio.to_thread(self._models.close)

    async def _run(
        self, request: Forwarded, arrived: asyncio.Queue[Message | None], gone: asyncio.Event
    ) -> None:
        body: list[Message] = [{"type": "http.request", "body": request.body, "more_body": False}]

        async def receive() -> Message:
            if body:
                return body.pop()
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            arrived.put_nowait(message)

        try:
            await self._app({**request.scope}, receive, send)
        finally:
            arrived.put_nowait(None)


class _Lifespan(NamedTuple):
    """The part of an ASGI server that an application is told of: its beginning and its end."""

    task: asyncio.Future[None]
    told: asyncio.Queue[Message]
    said: asyncio.Queue[Message]


async def _begin(app: Any) -> _Lifespan:
    told: asyncio.Queue[Message] = asyncio.Queue()
    said: asyncio.Queue[Message] = asyncio.Queue()
    task = asyncio.ensure_future(app({"type": "lifespan", "state": {}}, told.get, said.put))
    told.put_nowait({"type": "lifespan.startup"})
    await said.get()
    return _Lifespan(task, told, said)


async def _end(lifespan: _Lifespan) -> None:
    lifespan.told.put_nowait({"type": "lifespan.shutdown"})
    await lifespan.task
