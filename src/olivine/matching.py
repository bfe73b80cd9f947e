"""Strings to be found in text that arrives in pieces: stop strings, and markers that are spelled as text."""

from __future__ import annotations

from collections.abc import Sequence


def partial_match(text: str, wanted: Sequence[str]) -> int:
    """How many characters at the end of the text are the beginning of a wanted string: the most of them."""
    longest = 0
    for string in wanted:
        for size in range(min(len(string) - 1, len(text)), longest, -1):
            if text.endswith(string[:size]):
                longest = size
                break
    return longest


class StopStrings:
    """Text that ends where a stop string is complete. What may yet become one is held back."""

    def __init__(self, stop: Sequence[str]) -> None:
        self._stop = [string for string in stop if string]
        self._held = ""

    def add(self, text: str) -> bool:
        """Appends text. True where a stop string is complete: it is cut off, with all that follows it.

        Of several, the one that is complete first ends the text, however it is divided into tokens.
        """
        self._held += text
        if not self._stop:
            return False
        found = [(at + len(string), at) for string in self._stop if (at := self._held.find(string)) >= 0]
        if found:
            self._held = self._held[: min(found)[1]]
        return bool(found)

    def take(self, final: bool = False) -> str:
        """Takes the text that cannot become a stop string any more; with `final`, all of it."""
        held = 0 if final or not self._stop else partial_match(self._held, self._stop)
        size = len(self._held) - held
        text, self._held = self._held[:size], self._held[size:]
        return text
