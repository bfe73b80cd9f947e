"""What one rendering of a chat template may use: time, and units of work and memory.

A unit is about a byte that is made or looked at. All that a template does is charged before it is done, by
the sizes of what it works on: no single operation takes long or makes something large, and all of them
together make no more than there are units.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from jinja2.exceptions import TemplateError

SECONDS = 10.0
WORK = 1 << 27  # units in all, beside what long conversations get
LONGEST = 1 << 20  # characters of a text, beside what long conversations get
MOST = 1 << 20  # entries of a list with all that is in it, counting what is there twice twice
DEEPEST = 200  # lists in lists
WIDEST = 1 << 16  # the largest number that a filter or a method may be given: they pad, repeat and cut by it
CONTAINERS = (list, tuple, dict)
STEP = 64  # units of an operation, whatever it works on, and of an entry that is made


class LimitError(TemplateError):
    """A template that takes too long, or makes too much."""


class Meter(threading.local):
    """The budget of this thread's rendering. Without one, nothing is limited."""

    end = float("inf")
    left: float = float("inf")
    longest: float = float("inf")

    def start(self, given: Mapping[str, Any], seconds: float) -> None:
        """A rendering of these variables begins. A template copies its messages some dozen times, or once a
        message if it collects them in one text."""
        size, messages = _size(given), given.get("messages")
        copies = 64 + (len(messages) if isinstance(messages, Sequence) else 0)
        self.end = time.monotonic() + seconds
        self.left = WORK + size * copies
        self.longest = LONGEST + 8 * size

    def stop(self) -> None:
        self.end = self.left = self.longest = float("inf")

    def charge(self, units: float = 0) -> None:
        """Charges units of work."""
        self.left -= units + STEP
        if self.left < 0:
            raise LimitError("the chat template does too much work")
        if time.monotonic() > self.end:
            raise LimitError("the chat template takes too long")

    def text(self, size: float) -> None:
        """A text of so many characters is about to be made."""
        if size > self.longest:
            raise LimitError(f"the chat template makes a text of more than {int(self.longest)} characters")
        self.charge(size)

    def entries(self, count: float) -> None:
        """A list of so many entries is about to be made."""
        if count > MOST:
            raise LimitError(f"the chat template makes a list of more than {MOST} entries")
        self.charge(STEP * count)

    def made(self, value: Any) -> Any:
        """The value, which was made and is charged; what is in it was charged before."""
        if isinstance(value, str):
            self.text(width(value))
        elif isinstance(value, CONTAINERS):
            self.entries(len(value))
        return value

    def weigh(self, value: Any) -> int:
        """Charges and returns the units of a value with all that is in it. An object counts as often as it
        occurs, as it would in text."""
        if isinstance(value, str):
            units = width(value)
        elif isinstance(value, CONTAINERS):
            units = self._heavy(value)
        else:
            return 0
        self.charge(units)
        return units

    def _heavy(self, value: Collection[Any]) -> int:
        level: list[Any] = [value]
        entries = characters = depth = 0
        while level:
            entries += len(level)
            characters += sum([width(each) for each in level if isinstance(each, str)])
            inside = [each for each in level if isinstance(each, CONTAINERS)]
            if entries + sum(map(len, inside)) > MOST or characters > self.longest:
                raise LimitError(f"the chat template makes lists of more than {MOST} entries")
            depth += 1
            if depth > DEEPEST:
                raise LimitError(f"the chat template puts lists in lists, more than {DEEPEST} deep")
            level = [inner for each in inside for inner in _content(each)]
        return characters + 16 * entries


def width(text: str) -> int:
    """The bytes of a text, about."""
    return len(text) if text.isascii() else 4 * len(text)


def _content(value: Any) -> Sequence[Any]:
    return [*value, *value.values()] if isinstance(value, dict) else value


def _size(value: Any) -> int:
    """The characters and entries of a value from the caller, which is trusted."""
    stack, size = [value], 0
    while stack:
        each = stack.pop()
        size += 1
        if isinstance(each, str):
            size += width(each)
        elif isinstance(each, Mapping):
            stack += each
            stack += each.values()
        elif isinstance(each, CONTAINERS):
            stack += each
    return size
