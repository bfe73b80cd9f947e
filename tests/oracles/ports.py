"""Ports for what is started later."""

from __future__ import annotations

import random
import socket

# Below the ports that systems give to whoever asks for any: one of those could be taken meanwhile.
_RANGE = range(20_000, 32_768)


def free_port() -> int:
    """A port that nobody listens on."""
    while True:
        port = random.SystemRandom().choice(_RANGE)
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        return port
