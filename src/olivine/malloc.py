"""What glibc's malloc keeps: freed memory, and an arena a thread. Elsewhere these do nothing.

A leaf module: tokenizers free much memory at once, servers have many threads for a long time.
"""

from __future__ import annotations

import ctypes
import sys

_M_ARENA_MAX = -8  # of malloc.h


def return_freed() -> None:
    """Returns free memory that malloc holds to the system."""
    _call("malloc_trim", 0)


def limit_arenas(n: int) -> None:
    """Lets all threads share n arenas. By default there are eight a core, and each keeps what its threads
    needed at most: the memory of a server with many threads grows for hours."""
    _call("mallopt", _M_ARENA_MAX, n)


def _call(name: str, *arguments: int) -> None:
    if sys.platform == "linux":
        function = getattr(ctypes.CDLL(None), name, None)  # musl has neither
        if function is not None:
            function(*arguments)
