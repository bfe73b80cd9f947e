"""Encoding with the library, without blocking other threads on a long text or keeping its memory."""

from __future__ import annotations

import os
from functools import cache
from typing import Any

from olivine import malloc

# Characters. `encode` holds the interpreter lock, about 20 ms for this many; encode_batch releases it, but
# starts threads when it is first used.
LONG = 1 << 14
# Characters. The library uses about 100 bytes for each while it encodes, and malloc keeps freed memory.
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
            malloc.return_freed()
    return ids


@cache
def _fork_without_its_threads() -> None:
    """A forked child has none of the library's threads. The library then encodes without them and prints a
    warning, unless this variable is set."""
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
        os.register_at_fork(before=before, after_in_parent=after_in_parent)  # stays set in the child
