"""Waiting for what another thread or process does."""

from __future__ import annotations

import time
from collections.abc import Callable


def eventually(fact: Callable[[], bool], seconds: float = 120) -> None:
    """Returns when the fact holds, and fails if it does not within this time."""
    deadline = time.monotonic() + seconds
    while not fact():
        assert time.monotonic() < deadline
        time.sleep(0.002)
