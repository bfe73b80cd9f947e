"""The process that something with threads belongs to.

A forked child has a copy of its parent's memory, but none of its threads: what waits for one of them never
returns, and a lock that one of them held stays locked.
"""

from __future__ import annotations

import os

from olivine.errors import OlivineError


class Owner:
    """Knows whether this is still the process that it was made in."""

    def __init__(self) -> None:
        self._pid = os.getpid()

    @property
    def here(self) -> bool:
        return os.getpid() == self._pid

    def check(self) -> None:
        """Raises in any other process."""
        if not self.here:
            raise OlivineError(
                f"this model was loaded in process {self._pid}, and this is a fork of it, {os.getpid()}: "
                "load the model again here, or in multiprocessing use the start method 'spawn'",
                code="forked",
            )
