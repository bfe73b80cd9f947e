"""A server on this machine, for tests that talk HTTP to it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import uvicorn

from olivine.server.app import create_app
from olivine.server.endpoint import Server
from olivine.server.models import Models, ServedModel
from olivine.server.settings import Settings


@contextmanager
def serving(models: Sequence[ServedModel], settings: Settings | None = None) -> Iterator[str]:
    """Runs a server in a thread; gives its URL, without a slash at the end."""
    server = Server(settings or Settings(), Models(list(models)))
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    config = uvicorn.Config(create_app(server), log_level="warning", timeout_graceful_shutdown=5)
    running = uvicorn.Server(config)
    thread = threading.Thread(target=running.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        running.should_exit = True
        thread.join(30)
        listening.close()
        assert not thread.is_alive()
