"""Connections: how many there may be, and how long and how large what comes before a request may be.

Uvicorn closes a connection that was kept alive for too long. It does not close one that never sends a
request, nor one whose client does not read its response; where requests are pipelined, it does not hear that
a client is gone; and, with httptools, it has no limit for headers.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol

from olivine.server.errors import ApiError, openai_shape

if TYPE_CHECKING:
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol as Protocol
else:
    Protocol = AutoHTTPProtocol

MOST_HEAD = 64 << 10  # bytes of a request line and its headers
SPARE_FILES = 256  # open files that are no connections: models, sockets, logs
UNREAD = 60.0  # seconds in which a client must read some of its response
MOST_PIPELINED = 16  # requests that wait for the responses to those before them
_PATIENCE = 16  # busy connections that are looked at for one that is idle
_PHRASES = {431: "Request Header Fields Too Large", 503: "Service Unavailable"}


class Connections:
    """The connections of a server: at most `most`, each without a request for at most `seconds`, and unread
    for at most `UNREAD` seconds.

    When there are too many, the one that has been idle for longest is closed. So those who hold idle
    connections lock nobody out.
    """

    def __init__(self, most: int, seconds: float) -> None:
        self._most = most
        self._seconds = seconds
        self._open: set[Connection] = set()
        # Since when; the longest first. Some are busy again: that is found out when their turn comes.
        self._idle: dict[Connection, float] = {}
        # Where a response is not read as fast as it is made: how many bytes wait, and since when so many.
        self._waiting: dict[Connection, tuple[int, float]] = {}

    def __len__(self) -> int:
        return len(self._open)

    def protocol(self) -> type[asyncio.Protocol]:
        """Uvicorn's protocol, with these limits."""
        return type("Connection", (Connection,), {"all": self})

    @contextmanager
    def swept(self, loop: asyncio.AbstractEventLoop) -> Iterator[None]:
        """Closes connections that are idle, or not read from, for too long, meanwhile."""
        interval = min(1.0, self._seconds / 4)
        handle: asyncio.TimerHandle

        def sweep() -> None:
            nonlocal handle
            self.close_idle(loop.time() - self._seconds)
            self.close_unread(loop.time())
            handle = loop.call_later(interval, sweep)

        handle = loop.call_later(interval, sweep)
        try:
            yield
        finally:
            handle.cancel()

    def close_idle(self, before: float) -> None:
        """Closes what has been idle since before this time."""
        for connection in [each for each, since in self._idle.items() if since < before]:
            del self._idle[connection]
            if connection.is_idle:
                connection.transport.close()  # once its last response is read
                self.waits(connection)

    def waits(self, connection: Connection) -> None:
        """Its client has not read everything that was written."""
        if size := connection.transport.get_write_buffer_size():
            self._waiting[connection] = size, connection.loop.time()

    def close_unread(self, now: float) -> None:
        """Closes those whose clients have read nothing for too long."""
        for connection, (before, since) in [*self._waiting.items()]:
            size = connection.transport.get_write_buffer_size()
            if not size:
                del self._waiting[connection]
            elif size != before:
                self._waiting[connection] = size, now
            elif since < now - UNREAD:
                connection.transport.abort()

    def opened(self, connection: Connection) -> bool:
        """Whether there is room for one more."""
        while len(self._open) >= self._most:
            oldest = self._oldest()
            if oldest is None:
                return False
            self.gone(oldest)
            oldest.transport.abort()  # at once: its file is needed
        self._open.add(connection)
        self.idle(connection)
        return True

    def idle(self, connection: Connection) -> None:
        """Its response is complete, or it is new."""
        if connection in self._open:
            self._idle.pop(connection, None)
            self._idle[connection] = connection.loop.time()

    def gone(self, connection: Connection) -> None:
        self._open.discard(connection)
        self._idle.pop(connection, None)
        self._waiting.pop(connection, None)

    def _oldest(self) -> Connection | None:
        """The connection that has been idle for longest."""
        while self._idle:
            some = list(islice(self._idle, _PATIENCE))
            for each in some:
                if each.is_idle:
                    return each
                del self._idle[each]
        return next((each for each in self._waiting if each.is_idle), None)  # closed, and not read from


class Connection(Protocol):
    """A connection."""

    all: Connections
    _unfinished: tuple[Any, ...] = ()  # the requests whose responses are not complete
    _head: int | None = None  # bytes of the headers that are being read

    @property
    def is_idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if not self.all.opened(self):
            self._refuse(503, "there are too many connections; try again later", "too_many_connections")

    def connection_lost(self, exc: Exception | None) -> None:
        self.all.gone(self)
        for cycle in self._unfinished:  # uvicorn tells the last one only
            cycle.disconnected = not cycle.response_complete
            cycle.message_event.set()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self.all.waits(self)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self.all.idle(self)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._head is not None:
            self._head += len(data)
            if self._head > MOST_HEAD:
                self._refuse(431, f"the headers are longer than {MOST_HEAD} bytes", "headers_too_large")

    # Of httptools' parser. (h11 has a limit of its own, and the same one.)

    def on_message_begin(self) -> None:
        self._head = 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._head = None
        super().on_headers_complete()
        if self.cycle is None:  # no request, but an upgrade
            return
        waiting = [each for each in self._unfinished if not each.response_complete]
        self._unfinished = (*waiting, self.cycle)
        if len(waiting) > MOST_PIPELINED:
            self.transport.abort()
        elif waiting:
            self.flow.resume_reading()  # or nobody would hear that the client is gone

    def _refuse(self, status: int, message: str, code: str) -> None:
        """Answers without the application, and closes the connection."""
        if self.transport.is_closing():
            return
        body = json.dumps(openai_shape(ApiError(status, message, code=code))).encode()
        head = (
            f"HTTP/1.1 {status} {_PHRASES[status]}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nretry-after: 1\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()


def allow_files(connections: int) -> int:
    """Lets this process open as many files as connections need; gives how many connections there can be."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return connections
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + SPARE_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return connections if soft == resource.RLIM_INFINITY else max(1, min(connections, soft - SPARE_FILES))
