"""Strings to be found in text that arrives in pieces: stop strings, and markers that are spelled as text."""

from __future__ import annotations

from collections.abc import Sequence


def partial_match(text: str, wanted: Sequence[str]) -> int:
    """How many characters at the end of the text may yet become one of these strings, none of them empty."""
    longest = 0
    for string in wanted:
        at = text.find(string[0], max(0, len(text) - len(string) + 1))
        while 0 <= at < len(text) - longest:
            if string.startswith(text[at:]):
                longest = len(text) - at
            at = text.find(string[0], at + 1)
    return longest


class StopStrings:
    """Text that ends where a stop string is complete. What may yet become one is held back."""

    def __init__(self, stop: Sequence[str]) -> None:
        self._stop = [string for string in stop if string]
        self._held = ""
        self.found: str | None = None  # the one that ended the text

    def add(self, text: str) -> bool:
        """Appends text. True where a stop string is complete: it is cut off, with all that follows it.

        Of several, the one that is complete first ends the text, however it is divided into tokens.
        """
        held = self._held = self._held + text
        for string in self._stop:
            if string in held:
                ends = [(at + len(each), at, each) for each in self._stop if (at := held.find(each)) >= 0]
                _, at, self.found = min(ends)
                self._held = held[:at]
                return True
        return False

    def ends_with(self, text: str) -> bool:
        """Whether this text would complete a stop string. Only then it is appended."""
        held = self._held
        if self.add(text):
            return True
        self._held = held
        return False

    def take(self, final: bool = False) -> str:
        """Takes the text that cannot become a stop string any more; with `final`, all of it."""
        held = 0 if final or not self._stop else partial_match(self._held, self._stop)
        size = len(self._held) - held
        text, self._held = self._held[:size], self._held[size:]
        return text
