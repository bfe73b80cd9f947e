"""Signals while the model loads or answers: Ctrl-C ends the answer, Ctrl-Z stops the program, never in
mid-drawing."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType, TracebackType
from typing import Protocol, TypeVar

from olivine.cli.chat.terminal import Terminal
from olivine.cli.signals import ENDING, Handler, end_by, handling

T = TypeVar("T")
Piece = TypeVar("Piece", covariant=True)

# Signals that stop a program and let it go on; not every system has them.
STOP, CONTINUE = (getattr(signal, name, None) for name in ("SIGTSTP", "SIGCONT"))


def stop(process: int) -> None:
    """Stops this process, or with 0 its whole group, as a terminal does by Ctrl-Z; returns after SIGCONT."""
    assert STOP is not None
    with handling({STOP: signal.SIG_DFL}):
        os.kill(process, STOP)


@contextmanager
def typed_ahead() -> Iterator[None]:
    """For all of a chat. Keys wait for the first prompt, as does what was typed before. It restores the
    terminal, too: if that were done before, an Enter in between would be echoed, and reach it as Ctrl-J. What
    ends or stops the program between prompts and answers does so, with the terminal as it was."""
    terminal = Terminal()

    def ended(number: int, frame: FrameType | None) -> None:
        terminal.reset()
        end_by(number)

    def noted(number: int, frame: FrameType | None) -> None:
        if number == CONTINUE:
            terminal.silence()
        else:
            terminal.reset()
            stop(os.getpid())

    handlers: dict[int, Handler] = dict.fromkeys((signal.SIGINT, *ENDING), ended)
    handlers.update({number: noted for number in (STOP, CONTINUE) if number is not None})
    with handling(handlers):
        terminal.silence()
        terminal.take_typed()
        try:
            yield
        finally:
            Terminal().restore()


class Pieces(Protocol[Piece]):
    """A stream, or a generator that is made of one."""

    def __iter__(self) -> Iterator[Piece]: ...
    def __next__(self) -> Piece: ...
    def close(self) -> object: ...


class Interruptible:
    """Watches for signals while it is entered. Keys other than Ctrl-C and Ctrl-Z wait for the next prompt."""

    def __init__(self, redraw: Callable[[], object] = lambda: None) -> None:
        """`redraw` is called when the program goes on after a stop: the terminal shows other things then."""
        self.stopped = False
        self._redraw = redraw
        self._waiting = False
        self._pending: list[int] = []  # signals that came in mid-drawing
        self._terminal = Terminal()
        self._exit = ExitStack()

    def each(self, pieces: Pieces[T]) -> Iterator[T]:
        """The pieces, until there are no more or Ctrl-C is pressed."""
        try:
            while not self.stopped:
                self._handle_pending()
                self._waiting = True
                piece = next(pieces, None)
                self._waiting = False
                if piece is None:
                    return
                yield piece
        except KeyboardInterrupt:
            self.stopped = True
        finally:
            self._waiting = False
            pieces.close()

    def __enter__(self) -> Interruptible:
        self._exit.enter_context(
            handling(
                {
                    signal.SIGINT: self._pressed,
                    **dict.fromkeys(ENDING, self._ended),
                    **{number: self._noted for number in (STOP, CONTINUE) if number is not None},
                }
            )
        )
        self._terminal.silence()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._handle_pending()
        self._terminal.restore()
        self._exit.close()

    def _pressed(self, number: int, frame: FrameType | None) -> None:
        self.stopped = True
        if self._waiting:  # for the next piece, which may take long while a prompt is read
            self._waiting = False
            raise KeyboardInterrupt

    def _ended(self, number: int, frame: FrameType | None) -> None:
        self._terminal.reset()
        end_by(number)

    def _noted(self, number: int, frame: FrameType | None) -> None:
        self._pending.append(number)
        if self._waiting:
            self._waiting = False
            self._handle_pending()
            self._waiting = not self.stopped
            if self.stopped:  # by Ctrl-C meanwhile
                raise KeyboardInterrupt

    def _handle_pending(self) -> None:
        while self._pending:
            if self._pending.pop(0) == CONTINUE:
                self._terminal.silence()
                self._redraw()
            else:
                self._stop()

    def _stop(self) -> None:
        self._terminal.reset()
        stop(os.getpid())
