"""Keeps text in messages from becoming special tokens of the prompt.

A template puts texts together and the tokenizer finds special tokens in the result: one that a user typed
looks just like one that the template wrote. So before rendering, the first character of everything in the
messages that is a special token, or could become one when the template cuts it or puts something behind it,
is swapped for a number that nobody can guess. After rendering it is swapped back, and the places where that
happens are known: no special token begins there.

Texts without such a beginning are rendered as they are.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Mapping
from typing import Any

from olivine.chat.parsers import THOUGHT_MARKERS

BLANK = 4096  # characters of white space that a template may trim away
_SOLID = re.compile(r"\S")


class Guard:
    """Replaces and restores the first characters of special tokens."""

    def __init__(self, special: Iterable[str]) -> None:
        self._names = frozenset(filter(None, special))
        self._prefixes = frozenset(name[:size] for name in self._names for size in range(1, len(name) + 1))
        firsts = {name[0] for name in self._names}
        self._first = re.compile(f"[{''.join(map(re.escape, sorted(firsts)))}]") if firsts else None
        # Digits survive what templates do to texts: trimming, upper case, JSON.
        self._secret = f"{secrets.randbelow(10**30):030}"
        self._codes = {char: f"{self._secret}{ord(char):07}" for char in firsts}

    def hide(self, value: Any, keep: tuple[str, ...] = ()) -> Any:
        """The value, with the first characters of special tokens replaced in its texts, but for `keep`."""
        if isinstance(value, str):
            return self._hidden(value, keep)
        if isinstance(value, Mapping):
            return {self.hide(key, keep): self.hide(item, keep) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.hide(item, keep) for item in value]
        return value

    def hide_message(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """A message for the template, which cuts thoughts out of an assistant's by their markers."""
        keep = THOUGHT_MARKERS if message.get("role") == "assistant" else ()
        return {
            key: item if key == "role" else self.hide(item, keep if key == "content" else ())
            for key, item in message.items()
        }

    def reveal(self, rendered: str) -> tuple[str, frozenset[int]]:
        """The text with all characters restored, and the offsets at which no special token begins."""
        if self._secret not in rendered:
            return rendered, frozenset()
        pieces = rendered.split(self._secret)
        text, places = [pieces[0]], set()
        length = len(pieces[0])
        for piece in pieces[1:]:
            places.add(length)
            restored = chr(int(piece[:7])) + piece[7:]
            text.append(restored)
            length += len(restored)
        return "".join(text), frozenset(places)

    def _hidden(self, text: str, keep: tuple[str, ...]) -> str:
        if self._first is None:
            return text
        out, last = [], 0
        for match in self._first.finditer(text):
            at = match.start()
            if self._dangerous(text, at) and not (keep and text.startswith(keep, at)):
                out += [text[last:at], self._codes[text[at]]]
                last = at + 1
        return "".join([*out, text[last:]]) if out else text

    def _dangerous(self, text: str, at: int) -> bool:
        """Whether a special token begins here, or a part of one that the template may complete."""
        end = at + 1
        while text[at:end] in self._prefixes:
            if text[at:end] in self._names or text.startswith(THOUGHT_MARKERS, end):
                return True
            if _SOLID.search(text, end, end + BLANK) is None:
                return True
            end += 1
        return False
