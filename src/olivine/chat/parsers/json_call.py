"""{"name": …, "arguments": {…}}, read as it comes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection
from typing import Literal

from olivine.chat.parsers.events import CallPiece, CallStart, Event

_ARGUMENTS = ("arguments", "parameters")
_IGNORED = ("type", "id")
_SPACE = " \t\r\n"
# All that JSON has outside of strings. What begins the next call is none of it, so that a call which is never
# closed does not hold those behind it back, to be read again with each of them.
OUTSIDE = frozenset(f'{_SPACE}{{}}[]:,"+-.0123456789Eetrufalsn')
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_RAW = re.compile(r"\\.|[\x00-\x1f]", re.DOTALL)


class JsonCall:
    """One call. `names` are the functions that may be called; with `bare`, arguments must be there."""

    def __init__(self, names: Collection[str], constrained: bool = False, bare: bool = False) -> None:
        self.state: Literal["undecided", "open", "done", "refused"] = "undecided"
        self.raw = ""
        self.rest = ""
        self._names = names
        self._constrained = constrained
        self._bare = bare
        self._name: str | None = None
        self._key = ""
        self._value = ""  # of a key, as far as it has come
        self._arguments: str | None = None  # that came before the name
        self._tail = ""  # what came after the arguments
        self._depth = 0
        self._quoted = False
        self._escaped = False
        self._out: list[Event] = []
        self._mode: Callable[[str], None] = self._before_object

    @property
    def in_string(self) -> bool:
        return self._quoted

    def feed(self, text: str) -> list[Event]:
        for at, char in enumerate(text):
            if self.state in ("done", "refused"):
                self.rest += text[at:]
                break
            if self.state == "undecided":
                self.raw += char
            if self._arguments is not None and self._mode != self._in_value:
                self._tail += char
            self._mode(char)
        return self._taken()

    def quote(self) -> list[Event]:
        return []

    def end(self) -> list[Event]:
        if self.state == "undecided":
            self.state = "refused"
        elif self.state == "open":
            self._finish(self._tail)
        return self._taken()

    def _taken(self) -> list[Event]:
        """The events so far; pieces of arguments are merged."""
        pieces = "".join(event.text for event in self._out if isinstance(event, CallPiece))
        found: list[Event] = [event for event in self._out if isinstance(event, CallStart)]
        self._out = []
        return [*found, CallPiece(pieces)] if pieces else found

    # ---- one method a place in the text

    def _before_object(self, char: str) -> None:
        if char == "{":
            self._mode = self._before_key
        elif char not in _SPACE:
            self._fail()

    def _before_key(self, char: str) -> None:
        if char == '"':
            self._key, self._quoted = "", True
            self._mode = self._in_key
        elif char == "}":
            self._close()
        elif char not in _SPACE:
            self._fail()

    def _in_key(self, char: str) -> None:
        if char == '"' and not self._escaped:
            self._quoted = False
            known = self._key in (*_ARGUMENTS, *_IGNORED, "name")
            repeated = (self._key == "name" and self._name is not None) or (
                self._key in _ARGUMENTS and self._arguments is not None
            )
            self._mode = self._colon
            if not known or repeated:
                self._fail()
            return
        self._escaped = char == "\\" and not self._escaped
        self._key += char

    def _colon(self, char: str) -> None:
        if char == ":":
            self._mode = self._before_value
        elif char not in _SPACE:
            self._fail()

    def _before_value(self, char: str) -> None:
        if char in _SPACE:
            return
        if char in ",}]:":
            self._fail()
            return
        self._value, self._depth = "", 0
        self._mode = self._in_value
        if self._key in _ARGUMENTS:
            self._arguments = ""
            self._tail = ""
            if self._constrained and self._name is not None and char == "{":
                self._open()
        self._in_value(char)

    def _in_value(self, char: str) -> None:
        if not self._quoted and not self._depth and self._value and char in f",}}]{_SPACE}":
            self._end_value()  # a number or a word ends with what follows it
            if self.state in ("undecided", "open"):
                if self._arguments is not None:
                    self._tail += char
                self._after_value(char)
            return
        self._value += char
        if self._streaming:
            self._out.append(CallPiece(char))
        if self._quoted:
            if char == '"' and not self._escaped:
                self._quoted = False
                if not self._depth:
                    self._end_value()
            self._escaped = char == "\\" and not self._escaped
        elif char == '"':
            self._quoted = True
        elif char in "{[":
            self._depth += 1
        elif char in "}]":
            self._depth -= 1
            if self._depth == 0:
                self._end_value()
        elif char not in OUTSIDE:
            self._fail()

    @property
    def _streaming(self) -> bool:
        return self.state == "open" and self._key in _ARGUMENTS

    def _end_value(self) -> None:
        self._mode = self._after_value
        if self._key == "name":
            try:
                name = json.loads(self._value)
            except ValueError:
                name = None
            if not isinstance(name, str) or name not in self._names:
                self._fail()
                return
            self._name = name
            if self._arguments is not None:
                self._open(self._arguments)
        elif self._key in _ARGUMENTS and not self._streaming:
            arguments = object_of(self._value)
            if arguments is None:
                self._fail()
                return
            self._arguments = arguments
            if self._name is not None:
                self._open(arguments)

    def _after_value(self, char: str) -> None:
        if char == ",":
            self._mode = self._before_key
        elif char == "}":
            self._close()
        elif char not in _SPACE:
            self._fail()

    # ---- what comes of it

    def _open(self, arguments: str = "") -> None:
        self.state = "open"
        self.raw = ""
        self._tail = ""
        self._out.append(CallStart(self._name or ""))
        if arguments:
            self._out.append(CallPiece(arguments))

    def _close(self) -> None:
        if self.state == "undecided":
            if self._name is None or self._bare:
                self.state = "refused"
                return
            self._open("{}")
        self._finish("")

    def _fail(self) -> None:
        """The text is no call, or its call ends here."""
        if self.state == "open":
            self._finish(self._tail)
        else:
            self.state = "refused"

    def _finish(self, rest: str) -> None:
        self.state = "done"
        self._quoted = False
        self.rest = rest + self.rest


def object_of(value: str) -> str | None:
    """Arguments as JSON that every client can parse: they are an object, an object in a string, or nothing.
    Line ends inside of strings, which models write as they are, are escaped."""
    for text in (value, _STRING.sub(lambda string: _RAW.sub(_escaped, string[0]), value)):
        try:
            found = json.loads(text, parse_constant=_refuse)
            if isinstance(found, str):
                text, found = found, json.loads(found, parse_constant=_refuse)
        except (ValueError, RecursionError):
            continue
        if found is None:
            return "{}"
        return text if isinstance(found, dict) else None
    return None


def _escaped(found: re.Match[str]) -> str:
    return found[0] if found[0].startswith("\\") else json.dumps(found[0])[1:-1]


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is Python's, and not JSON's")
