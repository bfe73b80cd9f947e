"""A server on this machine, for tests that talk HTTP to it."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from olivine.server.endpoint import Server
from olivine.server.loader import Loader
from olivine.server.models import Models, ServedModel
from olivine.server.run import http_server, listen
from olivine.server.settings import Settings


@contextmanager
def serving(
    models: Sequence[ServedModel], settings: Settings | None = None, loader: Loader | None = None
) -> Iterator[str]:
    """Runs a server in a thread; gives its URL, without a slash at the end."""
    settings = settings or Settings()
    server = Server(settings, Models(list(models), settings, loader))
    (listening,) = listen("127.0.0.1", 0)
    running = http_server(server)
    thread = threading.Thread(target=running.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        running.should_exit = True
        thread.join(30)
        assert not thread.is_alive()
        server.models.close()


@contextmanager
def serving_process(*arguments: str) -> Iterator[str]:
    """`olivine serve` in a process of its own; gives its URL."""
    line = [sys.executable, "-m", "olivine", "serve", "--port", "0", *arguments]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            lines = iter(process.stdout.readline, "")
            found = next((each for each in lines if each.startswith("listening on ")), "")
            yield re.findall(r"http://\S+", found)[0]
        finally:
            process.terminate()
            process.communicate(timeout=120)
