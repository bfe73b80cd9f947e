"""How deep and how large an object would be as JSON, found without writing it.

An object that a Python caller made may hold another one many times: its JSON can be exponentially larger.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

LARGEST = 1 << 20  # values in all

Problem = Literal["nested too deeply", "too large"]


class _TooDeepError(Exception):
    pass


def problem_of(value: Any, depth: int) -> Problem | None:
    """Why an object cannot be written as JSON with fewer than `depth` lists and objects inside of each other,
    and at most `LARGEST` values."""
    try:
        _, size = _measured(value, depth - 1, {})
    except _TooDeepError:
        return "nested too deeply"
    return "too large" if size > LARGEST else None


def _measured(value: Any, depth: int, known: dict[int, tuple[int, int]]) -> tuple[int, int]:
    """The depth of a value and the number of values in it. What was measured before is in `known`."""
    if not isinstance(value, Mapping | list | tuple):
        return 0, 1
    if depth == 0:
        raise _TooDeepError
    found = known.get(id(value))
    if found is None:
        inside = value.values() if isinstance(value, Mapping) else value
        height, size = 0, 1
        for each in inside:
            below, count = _measured(each, depth - 1, known)
            height, size = max(height, below), size + count
        found = known[id(value)] = (height + 1, size)
    if found[0] > depth:
        raise _TooDeepError
    return found
