"""Notices a text that only repeats itself: small models and greedy sampling end up in loops."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

LONGEST_PERIOD = 256  # tokens: about two paragraphs
REPEATS = 5  # of what recurs, before it counts as a loop …
SPAN = 256  # … and tokens of them together: rulers, tables and lists of zeros are shorter
EVERY = 32  # tokens between two looks


class Repetition:
    """Fed with the tokens of an answer, says whether its end is one passage over and over again."""

    def __init__(self) -> None:
        self._tokens: list[int] = []
        self._looked = 0

    def feed(self, tokens: Sequence[int]) -> bool:
        """Takes in further tokens. True once they repeat."""
        self._tokens += tokens
        if len(self._tokens) - self._looked < EVERY:
            return False
        self._looked = len(self._tokens)
        return period(self._tokens[-REPEATS * LONGEST_PERIOD :]) is not None


def period(tokens: Sequence[int]) -> int | None:
    """The shortest passage that the end of `tokens` is made of, in tokens, if it recurs often enough."""
    ids = np.asarray(tokens)
    if len(ids) < SPAN:
        return None
    candidates = np.flatnonzero(ids[-2 : -LONGEST_PERIOD - 2 : -1] == ids[-1]) + 1
    for size in candidates.tolist():
        span = max(SPAN, REPEATS * size)
        if span <= len(ids) and np.array_equal(ids[-span + size :], ids[-span:-size]):
            return int(size)
    return None
