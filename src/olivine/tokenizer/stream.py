"""Turns token ids into text one at a time."""

from __future__ import annotations

import codecs
from collections.abc import Callable


class StreamDecoder:
    """Text of a growing sequence: `push` each id, `flush` at the end.

    A character whose bytes are spread over several tokens is held back until it is complete. Nothing is
    stripped: a stream usually continues a prompt, where a leading space belongs to the text.
    """

    def __init__(self, bytes_of: Callable[[int], bytes]) -> None:
        self._bytes_of = bytes_of
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        """The text that this id completes, possibly empty."""
        return self._utf8.decode(self._bytes_of(token_id))

    def flush(self) -> str:
        """What is left of an unfinished character, as U+FFFD. The decoder can be used again after it."""
        rest = self._utf8.decode(b"", final=True)
        self._utf8.reset()
        return rest
