"""Ctrl-C while the model answers: it ends the answer, never in the middle of a drawing."""

from __future__ import annotations

import signal
import sys
from collections.abc import Generator, Iterator
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from olivine.conversation import Delta


class Interruptible:
    """Watches for Ctrl-C while it is entered. Other keys wait unseen for the next prompt."""

    def __init__(self) -> None:
        self.stopped = False
        self._waiting = False
        self._before: Any = None
        self._terminal: list[Any] | None = None

    def each(self, deltas: Generator[Delta, None, None]) -> Iterator[Delta]:
        """The deltas, until there are no more or Ctrl-C is pressed."""
        try:
            while not self.stopped:
                self._waiting = True
                delta = next(deltas, None)
                self._waiting = False
                if delta is None:
                    return
                yield delta
        except KeyboardInterrupt:
            self.stopped = True
        finally:
            self._waiting = False
            deltas.close()

    def __enter__(self) -> Interruptible:
        self._before = signal.signal(signal.SIGINT, self._pressed)
        self._terminal = _silence()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.signal(signal.SIGINT, self._before)
        if self._terminal is not None:
            import termios

            termios.tcsetattr(sys.stdin.fileno(), termios.TCSANOW, self._terminal)

    def _pressed(self, number: int, frame: FrameType | None) -> None:
        self.stopped = True
        if self._waiting:  # for the next delta, which may take long while a prompt is read
            self._waiting = False
            raise KeyboardInterrupt


def _silence() -> list[Any] | None:
    """Lets the terminal show no keys. Gives back how it was; None if standard input is none."""
    if not sys.stdin.isatty():
        return None
    try:
        import termios
    except ImportError:  # Windows
        return None
    before = termios.tcgetattr(sys.stdin.fileno())
    quiet = termios.tcgetattr(sys.stdin.fileno())
    quiet[0] &= ~termios.ICRNL  # or Enter would reach the next prompt as Ctrl-J
    quiet[3] &= ~(termios.ECHO | termios.ICANON)
    quiet[3] |= termios.NOFLSH  # or Ctrl-C would throw away what is being drawn
    termios.tcsetattr(sys.stdin.fileno(), termios.TCSANOW, quiet)
    return before
