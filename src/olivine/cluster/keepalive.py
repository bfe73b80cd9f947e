"""Connections between machines: those to a machine that is gone, without a word, end after some seconds."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection

IDLE, INTERVAL = 10, 5  # seconds until the first probe, and between probes
COUNT = 3  # probes without an answer
# The last: milliseconds that what was sent may be without an acknowledgement.
_OPTIONS = {
    "TCP_KEEPIDLE": IDLE,
    "TCP_KEEPINTVL": INTERVAL,
    "TCP_KEEPCNT": COUNT,
    "TCP_USER_TIMEOUT": 1000 * (IDLE + INTERVAL * COUNT),
}


def keep_alive(connection: socket.socket) -> None:
    """Ends the connection about 25 seconds after its other end was last heard of."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _OPTIONS.items():
        if hasattr(socket, name):  # macOS and Windows have some of them
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def shut(connection: Connection) -> None:
    """Ends a connection, whoever waits for it."""
    with suppress(OSError), socket.socket(fileno=os.dup(connection.fileno())) as found:
        found.shutdown(socket.SHUT_RDWR)


@contextmanager
def kept_alive() -> Iterator[None]:
    """Does the same for all connections that are made inside: gloo has no option for its own."""
    before = _descriptors()
    yield
    for each in _descriptors() - before:
        # Another thread's connection may be among them, which it does not harm.
        with suppress(OSError), socket.socket(fileno=os.dup(each)) as found:
            if found.family in (socket.AF_INET, socket.AF_INET6) and found.type == socket.SOCK_STREAM:
                keep_alive(found)


def _descriptors() -> set[int]:
    found = set()
    with suppress(OSError):
        for each in os.listdir("/dev/fd"):
            with suppress(OSError):  # the folder's own is among them, and is closed
                os.fstat(int(each))
                found.add(int(each))
    return found
