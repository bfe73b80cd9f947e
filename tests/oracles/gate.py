"""Holding an engine in the middle of its work."""

from __future__ import annotations

import threading
from typing import Any

import pytest


class Gate:
    """Holds the engine after some of its steps, until it is opened."""

    def __init__(self) -> None:
        self._left = 0
        self._opened = threading.Event()
        self._opened.set()

    def close(self, after: int) -> None:
        self._left = after
        self._opened.clear()

    def open(self) -> None:
        self._opened.set()

    def wait(self) -> None:
        self._left -= 1
        assert self._left >= 0 or self._opened.wait(120)


def gate_of(program: Any, patch: pytest.MonkeyPatch) -> Gate:
    """A gate, open at first, before every step of a program that generates."""
    gate, name = Gate(), "generate" if hasattr(program, "generate") else "step"
    run = getattr(program, name)

    def held(*args: Any, **options: Any) -> Any:
        gate.wait()
        return run(*args, **options)

    patch.setattr(program, name, held)
    return gate
