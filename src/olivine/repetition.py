"""Detects generated text that only repeats itself, as small models and greedy sampling do."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

LONGEST_PERIOD = 256  # tokens: about two paragraphs
REPEATS = 5  # times that a passage must occur in a row to count as a loop …
SPAN = 256  # … and tokens of them together: rulers, tables and lists of zeros are shorter
EVERY = 32  # tokens between two checks


class Repetition:
    """Takes the tokens of an answer, one by one, and says whether its end is one passage repeated."""

    def __init__(self) -> None:
        self._tokens: list[int] = []

    def feed(self, token: int) -> bool:
        """Takes in a further token. True once they repeat, which depends on the tokens alone."""
        self._tokens.append(token)
        if len(self._tokens) % EVERY:
            return False
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
