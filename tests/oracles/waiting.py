"""Waiting for what another thread or process does."""

from __future__ import annotations

import time
from collections.abc import Callable


def eventually(fact: Callable[[], bool]) -> None:
    """Returns when the fact holds, and fails if it does not within two minutes."""
    deadline = time.monotonic() + 120
    while not fact():
        assert time.monotonic() < deadline
        time.sleep(0.002)
