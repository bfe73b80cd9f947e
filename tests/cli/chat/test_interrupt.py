"""Ctrl-C: it ends a wait at once, and never a drawing."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Generator

from olivine.cli.chat.interrupt import Interruptible
from olivine.reply import Delta


def press() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_a_wait_for_the_next_delta_ends_at_once() -> None:
    waited_in_vain = threading.Event()
    closed = []

    def deltas() -> Generator[Delta, None, None]:
        try:
            yield Delta(content="one")
            threading.Timer(0.1, press).start()
            threading.Event().wait(30)
            waited_in_vain.set()
            yield Delta(content="two")
        finally:
            closed.append(True)

    before = signal.getsignal(signal.SIGINT)
    with Interruptible() as interruptible:
        said = [delta.content for delta in interruptible.each(deltas())]
    assert said == ["one"] and interruptible.stopped and closed == [True]
    assert not waited_in_vain.is_set()
    assert signal.getsignal(signal.SIGINT) is before


def test_a_drawing_is_finished_first() -> None:
    def deltas() -> Generator[Delta, None, None]:
        yield Delta(content="one")
        yield Delta(content="two")

    drawn = []
    with Interruptible() as interruptible:
        for delta in interruptible.each(deltas()):
            press()
            drawn.append(delta.content)
    assert drawn == ["one"] and interruptible.stopped
