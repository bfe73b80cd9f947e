"""What a worker process and its owner send each other over pipes: a JSON header, then bytes.

The owner believes nothing that a worker says: a decoder may have been taken over by the file that it read.
"""

from __future__ import annotations

import json
import os
import select
import struct
import time
from typing import Any

_LENGTH = struct.Struct("<I")
_LONGEST_HEADER = 1 << 20


class Gone(Exception):
    """The other end of a pipe was closed."""


class TooLate(Exception):
    """A deadline passed."""


def send(
    fd: int, header: dict[str, Any], *payload: bytes | memoryview, deadline: float | None = None
) -> None:
    text = json.dumps(header).encode()
    _write(fd, memoryview(_LENGTH.pack(len(text)) + text), deadline)
    for each in payload:
        _write(fd, memoryview(each), deadline)


def receive(fd: int, deadline: float | None = None) -> dict[str, Any]:
    (length,) = _LENGTH.unpack(receive_into(fd, memoryview(bytearray(_LENGTH.size)), deadline))
    if length > _LONGEST_HEADER:
        raise ValueError("a header that is too long")
    header = json.loads(bytes(receive_into(fd, memoryview(bytearray(length)), deadline)))
    if not isinstance(header, dict):
        raise ValueError("a header that is no object")
    return header


def receive_into(fd: int, buffer: memoryview, deadline: float | None = None) -> memoryview:
    """Fills a buffer of bytes."""
    rest = buffer
    while len(rest):
        _wait(fd, select.POLLIN, deadline)
        try:
            count = os.readv(fd, [rest])
        except BlockingIOError:
            continue
        if count == 0:
            raise Gone
        rest = rest[count:]
    return buffer


def _write(fd: int, rest: memoryview, deadline: float | None) -> None:
    while len(rest):
        _wait(fd, select.POLLOUT, deadline)
        try:
            rest = rest[os.write(fd, rest) :]
        except BlockingIOError:
            continue
        except BrokenPipeError:
            raise Gone from None


def _wait(fd: int, events: int, deadline: float | None) -> None:
    if deadline is None:
        return  # a descriptor that blocks
    poll = select.poll()
    poll.register(fd, events)
    if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
        raise TooLate
