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


def alive(pid: int) -> bool:
    """Whether a process runs, and is no zombie. Only Linux says so."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False
