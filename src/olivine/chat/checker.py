"""Checks untrusted grammars in another process, which is killed if it takes too long.

llguidance's own limits do not bound everything: the intersection of twenty small patterns keeps it busy for
minutes, and native code cannot be stopped inside of a process.
"""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
import threading
from contextlib import suppress
from typing import IO

from olivine.chat.complaints import plainly
from olivine.errors import RequestError

LIMIT = 5.0  # seconds a grammar may take
START = 60.0  # seconds that the process has until it is ready
FUEL = 500_000  # llguidance's measure of work before the first mask: half a second at most
IDLE = 2  # processes that are kept for the next grammars
MEMORY = 2 << 30  # bytes, where the system can limit them
_CODE = "import sys; sys.path[:] = {path!r}; from olivine.chat.checker import serve; serve()"


class Checker:
    """A pool of checking processes: as many as are needed at the same time, and `IDLE` after that."""

    def __init__(self) -> None:
        self._idle: list[subprocess.Popen[bytes]] = []
        self._pid = os.getpid()

    def prepare(self) -> None:
        """Starts a process in advance."""
        with suppress(OSError):
            self._idle.append(_started())

    def check(self, source: str) -> None:
        """Raises where the grammar is wrong, or takes too long."""
        process = self._ready()
        if process is None:
            return
        complaint = _within(LIMIT, process, source)
        if complaint is None:
            _end(process)
            raise RequestError(
                f"the grammar is refused: to read it takes more than {LIMIT:g} seconds, or too much memory"
            )
        self._idle.append(process)
        while len(self._idle) > IDLE:
            with suppress(IndexError):  # another thread was faster
                _end(self._idle.pop(0))
        if complaint:
            raise RequestError(plainly(complaint))

    def _ready(self) -> subprocess.Popen[bytes] | None:
        """A process that responds. None if none can be started: then only llguidance's own limits hold."""
        if self._pid != os.getpid():  # forked: the processes are the parent's
            self._idle, self._pid = [], os.getpid()
        while True:
            old = bool(self._idle)
            try:
                process = self._idle.pop() if old else _started()
            except IndexError:  # another thread was faster
                continue
            except OSError:
                return None
            if _within(START, process, None) is not None:
                return process
            _end(process)
            if not old:
                return None

    def close(self) -> None:
        """Ends the processes. They also end by themselves, with the one that started them."""
        while self._idle and self._pid == os.getpid():
            _end(self._idle.pop())

    __del__ = close


def _started() -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", _CODE.format(path=sys.path)]
    pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=nothing)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        with suppress(OSError):
            pipe.close() if pipe is not None else None


def _within(seconds: float, process: subprocess.Popen[bytes], text: str | None) -> str | None:
    """Sends the text and returns the answer; None on timeout."""
    assert process.stdin is not None and process.stdout is not None
    timer = threading.Timer(seconds, process.kill)
    timer.daemon = True
    timer.start()
    try:
        _send(process.stdin, text or "")
        return _received(process.stdout)
    except OSError:
        return None
    finally:
        timer.cancel()


def serve() -> None:
    """The loop of the checking process: answers each grammar with its error, or with an empty text."""
    from llguidance import LLMatcher, LLParserLimits

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is meant for the one that started this
    with suppress(ImportError, OSError, ValueError):
        import resource  # not everywhere

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    limits = LLParserLimits(verbose_errors=False, initial_lexer_fuel=FUEL)
    while (source := _received(sys.stdin.buffer)) is not None:
        if hasattr(signal, "alarm"):
            signal.alarm(int(4 * LIMIT))  # ends this process even if nobody is there any more to do it
        complaint = LLMatcher.validate_grammar(source, limits=limits) if source else ""
        if hasattr(signal, "alarm"):
            signal.alarm(0)
        _send(sys.stdout.buffer, complaint)


def _send(stream: IO[bytes], text: str) -> None:
    data = text.encode()
    stream.write(struct.pack("<I", len(data)) + data)
    stream.flush()


def _received(stream: IO[bytes]) -> str | None:
    """The next text, or None at the end."""
    head = stream.read(4)
    if len(head) < 4:
        return None
    return stream.read(struct.unpack("<I", head)[0]).decode("utf-8", "replace")
