"""Holding an engine in the middle of its work."""

from __future__ import annotations

import threading


class Gate:
    """Holds the engine after some of its steps, until it is opened."""

    def __init__(self) -> None:
        self._left: int | None = None
        self._opened = threading.Event()

    def close(self, after: int) -> None:
        self._opened.clear()
        self._left = after

    def open(self) -> None:
        self._left = None
        self._opened.set()

    def wait(self) -> None:
        if self._left is None:
            return
        self._left -= 1
        assert self._left >= 0 or self._opened.wait(60)
