"""Streams that can be taken up again after a broken connection.

A client that sends `X-Stream-Resume: true` with a request for a stream gets the header `X-Stream-Id`, and
events with `id:` lines, numbered from 1. If its connection breaks, the answer is made on for a while, and
GET /v1/streams/{id} with `Last-Event-ID` gives what came after that event, in order and without gaps; DELETE
ends it. Streams of server-sent events only. All is bounded: the number of streams, the bytes that are kept of
each, and the time.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from olivine.server.errors import ApiError
from olivine.server.security import client_of

if TYPE_CHECKING:
    from olivine.server.endpoint import Call

ASKED = "x-stream-resume"
NAME = "x-stream-id"
MOST_STREAMS = 64
MOST_BYTES = 2 << 20  # of a stream's last events


class KeptStream:
    """A stream of events, apart from the connection that reads it. Of the events that were sent, as many of
    the last are kept as `most` bytes hold. Those that were not sent are all kept: who makes them waits."""

    def __init__(self, client: str, headers: list[tuple[bytes, bytes]], most: int, seconds: float) -> None:
        self.id = secrets.token_urlsafe(24)
        self.client = client
        self.over = False  # the last event is there
        self.gone = asyncio.Event()  # nobody will read the rest
        self.task: asyncio.Task[None] | None = None  # which makes the events
        self.drop: Callable[[], None] = lambda: None  # called when it can no longer be read
        self.headers = [*headers, (NAME.encode(), self.id.encode())]
        self._most = most
        self._seconds = seconds
        self._events: deque[bytes] = deque()
        self._made = 0  # the number of the last event
        self._sent = 0  # the highest number that a connection was given
        self._size = 0
        self._ping = b""
        self._reader: object | None = None
        self._changed = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None

    # ---- made

    async def put(self, body: bytes, more: bool) -> None:
        """Adds events; waits while too many were not sent."""
        if self.gone.is_set():
            return
        if body.startswith(b":"):
            self._ping = body
        else:
            for event in body.split(b"\n\n")[:-1]:
                self._made += 1
                event = b"id: %d\n%b\n\n" % (self._made, event)
                self._events.append(event)
                self._size += len(event)
        if not more:
            self.finish()
        self._tell()
        try:
            while not (self._has_room() or self.over or self.gone.is_set()):
                await self._change()
        except asyncio.CancelledError:
            self.end()  # whoever reads is too slow to hear of it
            raise

    def finish(self) -> None:
        """There are no more events. A second time is fine."""
        if not self.over:
            self.over = True
            self._expire_later()
            self._tell()

    def _has_room(self) -> bool:
        while self._size > self._most and self._made - len(self._events) < self._sent:
            self._size -= len(self._events.popleft())
        return self._size <= self._most

    # ---- read

    def check(self, after: int) -> None:
        """Refuses to go on after an event that was not made, or whose successor is no longer kept."""
        if after > self._made:
            raise ApiError(400, f"Last-Event-ID: there is no event {after} yet", code="invalid_value")
        if after < self._made - len(self._events):
            raise ApiError(410, f"what came after event {after} is no longer kept", code="gone")

    async def send(self, receive: Receive, send: Send, after: int) -> None:
        """Gives the events after this one to a connection, up to the end, or until the connection breaks or
        another one takes over."""
        reader = self._reader = object()
        self._sent = after  # what follows is kept for this connection
        if self._timer is not None and not self.over:
            self._timer.cancel()
        watcher = asyncio.create_task(self._watch(receive, reader))
        self._tell()  # to the connection before
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.headers})
            while self._reader is reader:
                try:
                    if not await self._send_next(send):
                        break
                except asyncio.CancelledError:  # the server stops: the last event tells it
                    if self.task is None or self.task.done():
                        raise
                    self.task.cancel()
            await send({"type": "http.response.body", "body": b""})
        finally:
            watcher.cancel()
            self._leave(reader)

    async def _send_next(self, send: Send) -> bool:
        """Sends what there is, or waits for something; whether there will be more."""
        start = self._sent - (self._made - len(self._events))
        body = b"".join(islice(self._events, start, None)) or self._ping
        if body:
            self._sent, self._ping = self._made, b""
            self._tell()  # to who waits for room
            await send({"type": "http.response.body", "body": body, "more_body": True})
        elif self.over or self.gone.is_set():
            return False
        else:
            await self._change()
        return True

    async def _watch(self, receive: Receive, reader: object) -> None:
        with suppress(asyncio.CancelledError):
            while (await receive())["type"] != "http.disconnect":
                pass
            self._leave(reader)

    def _leave(self, reader: object) -> None:
        """The connection is gone: another one has some seconds to take over."""
        if self._reader is reader:
            self._reader = None
            self._tell()
            if not self.over:
                self._expire_later()

    # ---- over

    def end(self) -> None:
        """Nobody reads the rest: what makes the events is told so, as if its client were gone."""
        if self._timer is not None:
            self._timer.cancel()
        self.gone.set()
        self._tell()
        self.drop()

    def _expire_later(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(self._seconds, self.end)

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    def _tell(self) -> None:
        self._changed.set()


class Streams:
    """The streams of a server that can be taken up again."""

    def __init__(self, seconds: float, most: int = MOST_STREAMS, most_bytes: int = MOST_BYTES) -> None:
        self._seconds = seconds
        self._most = most
        self._most_bytes = most_bytes
        self._streams: dict[str, KeptStream] = {}

    def __len__(self) -> int:
        return len(self._streams)

    def knows(self, name: str) -> bool:
        """Whether a stream of this id is kept."""
        return name in self._streams

    def keep(self, client: str, headers: list[tuple[bytes, bytes]]) -> KeptStream | None:
        """A new stream, if there is room: those that are over and were read make room."""
        if len(self._streams) >= self._most:
            for each in self._streams.values():
                if each.over:
                    each.end()
                    break
            else:
                return None
        stream = KeptStream(client, headers, self._most_bytes, self._seconds)
        stream.drop = partial(self._drop, stream)
        self._streams[stream.id] = stream
        return stream

    def _drop(self, stream: KeptStream) -> None:
        self._streams.pop(stream.id, None)

    def find(self, call: Call) -> KeptStream:
        """The stream that a path names. With API keys, only the client that began it finds it."""
        stream = self._streams.get(call.request.path_params["id"])
        if stream is None or (call.server.settings.api_keys and stream.client != call.client):
            raise ApiError(404, "there is no such stream, or it is no longer kept", code="not_found")
        return stream


class Replay:
    """Keeps the streams of clients that ask for it."""

    def __init__(self, app: ASGIApp, streams: Streams) -> None:
        self._app = app
        self._streams = streams

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not _asked(scope):
            await self._app(scope, receive, send)
            return
        stream: KeptStream | None = None
        begun = asyncio.Event()

        async def receiving() -> Message:
            message = await receive()
            if message["type"] == "http.disconnect" and stream is not None:
                await stream.gone.wait()
            return message

        async def sending(message: Message) -> None:
            nonlocal stream
            if message["type"] == "http.response.start":
                media_type = Headers(raw=message["headers"]).get("content-type", "")
                if message["status"] == 200 and media_type.startswith("text/event-stream"):
                    stream = self._streams.keep(client_of(Request(scope)), message["headers"])
            if stream is None:
                await send(message)
            elif message["type"] == "http.response.start":
                begun.set()
            else:
                await stream.put(message.get("body", b""), message.get("more_body", False))

        async def make() -> None:
            await self._app(scope, receiving, sending)

        made = asyncio.create_task(make())
        beginning = asyncio.create_task(begun.wait())
        try:
            await asyncio.wait((made, beginning), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:  # the server stops
            made.cancel()
        finally:
            beginning.cancel()
        if (kept := stream) is None:
            await made
            return
        kept.task = made
        made.add_done_callback(lambda _: kept.finish())
        await kept.send(receive, send, 0)


def _asked(scope: Scope) -> bool:
    if scope["type"] != "http" or scope["method"] != "POST":
        return False
    return Headers(scope=scope).get(ASKED, "").lower() in ("true", "1")


async def resume(call: Call) -> Response | None:
    """GET /v1/streams/{id}"""
    stream = call.server.streams.find(call)
    given = call.request.headers.get("last-event-id", "0")
    if not (given.isascii() and given.isdecimal() and len(given) < 16):
        raise ApiError(400, "Last-Event-ID must be the id of an event", code="invalid_value")
    stream.check(int(given))
    if call.request.method == "HEAD":  # whoever reads the stream goes on
        response = Response()
        response.raw_headers = [*stream.headers]
        return response
    await stream.send(call.receive, call.send, int(given))
    return None


async def end(call: Call) -> Mapping[str, Any]:
    """DELETE /v1/streams/{id}"""
    stream = call.server.streams.find(call)
    stream.end()
    return {"id": stream.id, "deleted": True}
