"""Runs the application: listening sockets, uvicorn, and an end in bounded time."""

from __future__ import annotations

import asyncio
import errno
import math
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import NamedTuple

import uvicorn

from olivine import malloc
from olivine.server.app import create_app
from olivine.server.connections import Connections, allow_files
from olivine.server.endpoint import Server

# A minute of mixed requests on two models left 29 MB with the default of eight a core, and 7 MB with one.
ARENAS = 2
CANCELLING = 2.0  # seconds for answers that were cancelled to say so to their clients


class Ended(NamedTuple):
    """What became of the requests that were running when the server was told to stop."""

    finished: int
    cancelled: int


def listen(host: str, port: int) -> list[socket.socket]:
    """Sockets that are bound to all addresses of the host, at one port; at a free one if `port` is 0.

    They are bound before models are loaded, so that a port in use is found out at once.
    """
    found: list[socket.socket] = []
    addresses = dict.fromkeys(
        (family, address[0])
        for family, _, _, _, address in socket.getaddrinfo(
            host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    )
    try:
        for family, address in addresses:
            try:
                found.append(socket.create_server((str(address), port), family=family, backlog=2048))
            except OSError as error:
                # localhost may name ::1 where there is no IPv6.
                if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT) or len(addresses) == 1:
                    raise
                continue
            port = found[0].getsockname()[1]
    except BaseException:
        for each in found:
            each.close()
        raise
    if not found:
        raise OSError(errno.EADDRNOTAVAIL, f"no address of {host} can be listened on")
    return found


def http_server(server: Server, ready: Callable[[], None] | None = None) -> HttpServer:
    """The application in uvicorn. Calls `ready` when the models of the start are loaded: connections are
    accepted before, and /health says so."""
    settings = server.settings
    connections = Connections(allow_files(settings.max_connections), settings.keep_alive)
    config = uvicorn.Config(
        create_app(server),
        http=connections.protocol(),
        log_config=None,
        log_level="warning",
        access_log=False,
        ws="none",
        server_header=False,
        timeout_keep_alive=math.ceil(settings.keep_alive),
        timeout_graceful_shutdown=1,  # what is left then: connections without a request
    )
    return HttpServer(config, server, connections, ready)


def run(server: Server, sockets: Sequence[socket.socket], ready: Callable[[], None] | None = None) -> Ended:
    """Serves until SIGINT or SIGTERM; a second one cancels what still runs."""
    malloc.limit_arenas(ARENAS)
    running = http_server(server, ready)
    running.run(sockets=list(sockets))
    if running.failure is not None:
        raise running.failure
    return running.ended


class HttpServer(uvicorn.Server):
    """Uvicorn's server; when it is told to stop, running requests have `grace` seconds left."""

    def __init__(
        self,
        config: uvicorn.Config,
        server: Server,
        connections: Connections,
        ready: Callable[[], None] | None,
    ) -> None:
        super().__init__(config)
        self._connections = connections
        self.ended = Ended(0, 0)
        self.failure: Exception | None = None  # no model could be loaded, or `ready` failed
        self._models = server.models
        self._grace = server.settings.grace
        self._ready = ready
        self._begun: asyncio.Task[None] | None = None
        self._ending = False  # requests are done or cancelled

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Uvicorn would raise the signals again after its end, and nobody would hear how it ended."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self._told) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _told(self, number: int, frame: FrameType | None) -> None:
        self.force_exit = self.should_exit and not self._ending
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        if self._ready is not None and self.started:
            self._begun = asyncio.create_task(self._begin(self._ready))

    async def _begin(self, ready: Callable[[], None]) -> None:
        try:
            failed = await self._models.started()
            if len(failed) < len(self._models.list()):
                ready()
                return
            self.failure = failed[0].error  # there is nothing to serve
        except Exception as error:  # nobody waits for this task
            self.failure = error
        self.should_exit = True

    async def main_loop(self) -> None:
        with self._connections.swept(asyncio.get_running_loop()):
            await super().main_loop()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accepts nothing more, lets requests finish, and cancels those that do not."""
        for each in self.servers:
            each.close()
        for connection in [*self.server_state.connections]:
            connection.shutdown()
        self._models.end_events()  # of those that would never end
        running = {*self.server_state.tasks}
        end = asyncio.get_running_loop().time() + self._grace
        while not (_all_done(running) or self.force_exit or asyncio.get_running_loop().time() >= end):
            await asyncio.wait(running, timeout=0.1)
        late = {task for task in running if not task.done()}
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late, timeout=CANCELLING)
        self.ended = Ended(len(running) - len(late), len(late))
        self._ending = True
        self.force_exit = False  # uvicorn would leave the application's own end out
        with suppress(asyncio.CancelledError):
            await super().shutdown(sockets=sockets)


def _all_done(tasks: set[asyncio.Task[None]]) -> bool:
    return all(task.done() for task in tasks)
