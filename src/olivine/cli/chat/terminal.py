"""The terminal's modes: changed while an answer is shown or a message is typed, and given back afterwards."""

from __future__ import annotations

import os
import select
import sys
from contextlib import suppress
from typing import Any, ClassVar, TextIO

from olivine.cli.text import draws

try:
    import termios
except ImportError:  # Windows
    termios = None  # type: ignore[assignment]

# No colors, a cursor, no marks around what is pasted, and a new line.
RESET = b"\x1b[0m\x1b[?25h\x1b[?2004l\r\n"


class Terminal:
    """The terminal of standard input and output, as it was found, or as it was before `silence`. Without one,
    nothing happens.

    A process in the background leaves it alone: it is somebody else's then, and who changes its modes is
    stopped.
    """

    _before_silence: ClassVar[list[Any] | None] = None
    _typed: ClassVar[bytes] = b""  # before keys began to wait

    def __init__(self) -> None:
        self._input = _descriptor(sys.stdin) if sys.stdin.isatty() and termios is not None else None
        self._output = _descriptor(sys.stdout) if draws(sys.stdout) else None
        self._found: list[Any] | None = None
        if self._input is not None:
            self._found = Terminal._before_silence or termios.tcgetattr(self._input)

    def silence(self) -> None:
        """Disables echo; typed keys wait for the next prompt."""
        if self._found is None or self._input is None:
            return
        Terminal._before_silence = self._found
        quiet = list(self._found)
        quiet[0] &= ~termios.ICRNL  # or Enter would reach the next prompt as Ctrl-J
        quiet[3] &= ~(termios.ECHO | termios.ICANON)
        quiet[3] |= termios.NOFLSH  # or Ctrl-C would throw away what is being drawn
        self._set(quiet)

    def take_typed(self) -> None:
        """Reads what was typed before `silence`, for the next prompt: Enter is a line feed in it."""
        if self._input is None or not _foreground(self._input):
            return
        with suppress(OSError):
            while select.select([self._input], [], [], 0)[0] and (read := os.read(self._input, 4096)):
                Terminal._typed += read

    @staticmethod
    def typed() -> str:
        """What was typed then, once, as keys: Enter is a carriage return."""
        read, Terminal._typed = Terminal._typed, b""
        return read.decode("utf-8", "replace").replace("\n", "\r")

    def restore(self) -> None:
        """Restores the modes that were found."""
        if self._found is not None:
            Terminal._before_silence = None
            self._set(self._found)

    def reset(self) -> None:
        """Restores the modes and shows the cursor. A signal handler may call this."""
        self.restore()
        if self._output is not None and _foreground(self._output):
            with suppress(OSError):  # it may be closed
                os.write(self._output, RESET)

    def _set(self, modes: list[Any]) -> None:
        if self._input is not None and _foreground(self._input):
            with suppress(termios.error):  # it may be closed
                termios.tcsetattr(self._input, termios.TCSANOW, modes)


def _descriptor(stream: TextIO) -> int | None:
    try:
        return stream.fileno()
    except (OSError, ValueError):
        return None


def _foreground(descriptor: int) -> bool:
    """Whether this process is in the terminal's foreground, or the terminal has no job control."""
    try:
        return os.tcgetpgrp(descriptor) == os.getpgrp()
    except (OSError, AttributeError):
        return True
