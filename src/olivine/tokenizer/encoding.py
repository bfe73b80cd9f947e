"""Encoding with the library, so that a long text stops nobody else and leaves no memory behind."""

from __future__ import annotations

import os
import sys
from functools import cache
from typing import Any

# Characters. `encode` holds the interpreter lock, about 20 ms for so many; encode_batch lets go of it, and
# starts threads of its own when it is first used.
LONG = 1 << 14
# Characters. The library takes about 100 bytes for each while it encodes, and malloc keeps what is freed.
HUGE = 1 << 18


def ids_of(native: Any, text: str) -> list[int]:
    """The ids of a text, without BOS or EOS."""
    if len(text) < LONG:
        ids: list[int] = native.encode(text, add_special_tokens=False).ids
        return ids
    _fork_without_its_threads()
    try:
        ids = native.encode_batch_fast([text], add_special_tokens=False)[0].ids
    finally:
        if len(text) >= HUGE:
            give_memory_back()
    return ids


def give_memory_back() -> None:
    """Returns what malloc holds and nobody uses to the system, where malloc can (glibc's)."""
    if sys.platform == "linux":
        import ctypes

        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)


@cache
def _fork_without_its_threads() -> None:
    """A forked child has none of the library's threads. The library then encodes without them, but says so
    on standard error, unless this variable says that somebody knows."""
    name = "TOKENIZERS_PARALLELISM"
    ours = False

    def before() -> None:
        nonlocal ours
        ours = name not in os.environ
        if ours:
            os.environ[name] = "false"

    def after_in_parent() -> None:
        if ours:
            os.environ.pop(name, None)

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=before, after_in_parent=after_in_parent)  # in the child it stays
