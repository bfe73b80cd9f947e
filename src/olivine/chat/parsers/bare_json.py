"""Llama's and Gemma 3's calls: the answer is nothing but a JSON object with name and parameters, or a list of
such objects, or has a fenced block with them. Qwen2.5-Coder writes them too, instead of its own format."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Literal

from olivine.chat.parsers.events import CallStart, Event
from olivine.chat.parsers.format import Format
from olivine.chat.parsers.json_call import JsonCall
from olivine.chat.parsers.rules import json_calls

_LANGUAGES = ("json", "tool_call", "tool_code")  # of fenced blocks
_PARTS = "|".join(sorted({word[:size] for word in _LANGUAGES for size in range(1, len(word) + 1)}))
_BEGINNING = re.compile(rf"\s*(```(?:{'|'.join(_LANGUAGES)})?\s*)?(\[\s*)?(?=\{{)")
_UNFINISHED = re.compile(rf"\s*(`{{1,2}}|```(?:{_PARTS})?|```(?:{'|'.join(_LANGUAGES)})?\s*(\[\s*)?|\[\s*)?")
_BETWEEN = re.compile(r"[\s,;]*(?=\{)")


class BareJson:
    """Calls until other text comes; `before` is the text that was read before this scanner."""

    def __init__(self, names: Collection[str], constrained: bool = False, before: str = "") -> None:
        self.state: Literal["undecided", "open", "done", "refused"] = "undecided"
        self.raw = ""
        self.rest = ""
        self._names = names
        self._constrained = constrained
        self._call: JsonCall | None = None
        self._before = before  # the text before the next object
        self._closing = ""  # of the list and the fenced block that are open

    @property
    def in_string(self) -> bool:
        return self._call is not None and self._call.in_string

    def feed(self, text: str) -> list[Event]:
        found: list[Event] = []
        if self.state == "undecided":
            self.raw += text
        while text and self.state in ("undecided", "open"):
            if self._call is None:
                text = self._look(text)
                continue
            events = self._call.feed(text)
            text = ""
            if any(isinstance(event, CallStart) for event in events):
                self.state = "open"
            found += events
            if self._call.state == "refused":
                self._stop(self._before + self._call.raw + self._call.rest)
            elif self._call.state == "done":
                text, self._call, self._before = self._call.rest, None, ""
        return found

    def quote(self) -> list[Event]:
        return []

    def end(self) -> list[Event]:
        found: list[Event] = []
        if self._call is not None:
            found = self._call.end()
            left = self._before + self._call.raw if self._call.state == "refused" else self._call.rest
            self._stop(left)
        else:
            self._stop(self._unclosed())
        return found

    def _look(self, text: str) -> str:
        """Looks for the next object; returns the text from it on."""
        self._before += text
        opening = (_BEGINNING if self.state == "undecided" else _BETWEEN).match(self._before)
        if opening:
            text, self._before = self._before[opening.end() :], opening[0]
            if self.state == "undecided":
                self._closing = ("]" if opening[2] else "") + ("```" if opening[1] else "")
            self._call = JsonCall(self._names, self._constrained, bare=True)
            return text
        if self.state == "undecided":
            if not _UNFINISHED.fullmatch(self._before):
                self._stop("")
        elif self._before.strip(" \t\r\n,;") and self._unclosed().strip():
            self._stop(self._unclosed())
        return ""

    def _unclosed(self) -> str:
        """The text after a call, without the ends of the list and the fenced block around it."""
        at = 0
        for char in self._closing:
            at += len(self._before[at:]) - len(self._before[at:].lstrip())
            at += self._before.startswith(char, at)
        return self._before[at:]

    def _stop(self, rest: str) -> None:
        if self.state == "undecided":
            self.state = "refused"
        elif self.state == "open":
            self.state, self.rest = "done", rest


FORMAT = Format(
    "json",
    calls=BareJson,
    call_rules=json_calls("parameters"),
    between_calls=", ",
    bare=True,
    loose=BareJson,
)
