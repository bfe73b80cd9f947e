"""A model and the server's ASGI application, in a process that Ray and no web server sends requests to."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
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

# A process that says so is on its way, and none that has to be replaced.
_PASSING = ("loading", "restarting")


class Response(NamedTuple):
    """One that is complete."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes


class Hosted:
    """A model, loaded by `start`, and the application that answers."""

    def __init__(self, config: Config) -> None:
        configure(config.settings)
        (self.model,) = find_models([Path(find(config.model))], [config.alias] if config.alias else [])
        self.model.pinned = self.model.preload = True
        self.model.mmproj = None if config.load.mmproj is None else Path(config.load.mmproj)
        options = {name: value for name, value in vars(config.load).items() if name != "mmproj"}
        self._models = Models([self.model], config.settings, Loader(cast(LoadKwargs, options)))
        self.server = Server(config.settings, self._models)
        self.app = create_app(self.server)
        self._tasks: set[asyncio.Task[None]] = set()
        self._lifespan: _Lifespan | None = None

    async def start(self) -> None:
        self._lifespan = await _begin(self.app)
        if failed := await self._models.started():
            raise failed[0].error or OlivineError(f"{self.model.name} could not be loaded")

    async def stop(self) -> None:
        if self._lifespan is not None:
            await _end(self._lifespan)
            self._lifespan = None
            await asyncio.to_thread(self._models.close)

    async def answer(self, scope: Scope, body: bytes) -> AsyncGenerator[list[Message], None]:
        """The messages of a response, as many at once as there are."""
        arrived: asyncio.Queue[Message | None] = asyncio.Queue()
        gone = asyncio.Event()
        task = asyncio.ensure_future(self._run(scope, body, arrived, gone))
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

    async def whole(self, scope: Scope, body: bytes = b"") -> Response:
        async with aclosing(self.answer(scope, body)) as messages:
            start, *rest = [each async for some in messages for each in some]
        return Response(start["status"], start["headers"], b"".join(each.get("body", b"") for each in rest))

    async def check_health(self) -> None:
        """Raises where the process has to be replaced."""
        scope = {"type": "http", "method": "GET", "path": "/health", "headers": [], "query_string": b""}
        found = await self.whole(scope)
        if found.status != 200 and json.loads(found.body)["status"] not in _PASSING:
            raise RuntimeError(json.loads(found.body)["error"]["message"])

    async def _run(
        self, scope: Scope, body: bytes, arrived: asyncio.Queue[Message | None], gone: asyncio.Event
    ) -> None:
        unread: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> Message:
            if unread:
                return unread.pop()
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            arrived.put_nowait(message)

        try:
            await self.app({**scope}, receive, send)
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
