"""Ending by a signal: a command cleans up first, and still dies by that signal.

A shell then reports 128 + the signal's number (130 for Ctrl-C, 143 for SIGTERM), and a loop in a script ends
too, which it would not after an ordinary exit.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

Handler = Callable[[int, FrameType | None], object] | signal.Handlers

# What asks a program to end; not every system has all of them.
ENDING = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP", "SIGQUIT") if hasattr(signal, name)]


class Signaled(BaseException):
    """A signal asked the program to end; `main` does so after all cleanup."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@contextmanager
def handling(handlers: Mapping[int, Handler]) -> Iterator[None]:
    """Handles signals while it is entered, but none that is ignored, as SIGHUP is after nohup."""
    before = {number: signal.getsignal(number) for number in handlers}
    try:
        for number, old in before.items():
            if old is not None and old != signal.SIG_IGN:
                signal.signal(number, handlers[number])
        yield
    finally:
        for number, old in before.items():
            if old is not None and old != signal.SIG_IGN:
                signal.signal(number, old)


@contextmanager
def interrupts() -> Iterator[None]:
    """Ctrl-C is a KeyboardInterrupt while it is entered. Elsewhere it ends the program at once."""
    with handling({signal.SIGINT: signal.default_int_handler}):
        yield


@contextmanager
def cleaning_up() -> Iterator[None]:
    """What asks the program to end is an exception while this is entered, so that files can be removed."""

    def ended(number: int, frame: FrameType | None) -> None:
        raise Signaled(number)

    with interrupts(), handling(dict.fromkeys(ENDING, ended)):
        yield


def end_by(number: int) -> NoReturn:
    """Ends the program by the signal's default action."""
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    os._exit(128 + number)  # where a signal ends nothing
