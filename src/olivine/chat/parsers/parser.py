"""Parses a model's output while it is generated: reasoning, answer, tool calls.

A pure state machine over text and marker tokens. Nothing is lost but markers and the white space around them:
what looks like a call and is none is given out as text.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Literal

from olivine.chat.parsers.events import CallStart, Content, Event, Layout, Reasoning
from olivine.chat.parsers.format import Format
from olivine.chat.parsers.scanner import Scanner
from olivine.matching import partial_match

FENCE = "```"


class Parser:
    """The parser of one answer."""

    def __init__(
        self,
        format: Format,
        tools: Collection[str] | Mapping[str, Any] = (),
        tokens: Collection[str] = (),
        *,
        thinking: bool = False,
        continued: bool = False,
        constrained: bool = False,
    ) -> None:
        """`tools` are the names that may be called, or their schemas by name. Markers among `tokens` come as
        tokens, through `mark`, and are only text where text spells them. With `thinking`, the prompt has
        opened a thought already; with `continued`, it has the beginning of the thought or of the answer. With
        `constrained`, a grammar sees to it that arguments are JSON: they come while they are made."""
        self._format = format
        self._tools = dict(tools) if isinstance(tools, Mapping) else dict.fromkeys(tools)
        self._tokens = frozenset(tokens)
        self._state: Literal["text", "thought", "call"] = "thought" if thinking else "text"
        self._buffer = ""  # text that is not decided yet
        self._space = ""  # white space that counts only if something follows
        self._constrained = constrained
        self._fresh = True  # nothing of the answer has come
        self._in_answer = False  # the marker before the answer came
        self._trim = False  # white space at this place is layout
        self._channel: str | None = None  # the beginning of a thought, until its channel's name is read
        self._scanner: Scanner | None = None
        self._opening = ""
        self._loose = False  # the call has no markers around it
        self._out: list[Event] = []
        if thinking:
            self._trim = not continued
        elif continued:
            self._fresh = False

    @property
    def thinking(self) -> bool:
        """Whether the next text is reasoning."""
        return self._state == "thought"

    @property
    def pending(self) -> str:
        """White space of the answer that is held back, for it may be layout."""
        return "" if self._state == "thought" else self._space

    def feed(self, text: str) -> list[Event]:
        """The events of further text."""
        self._buffer += text
        self._drain()
        return self._taken()

    def mark(self, name: str) -> list[Event]:
        """The events of a marker token."""
        self._drain(final=True)
        self._marker(name)
        self._drain()
        return self._taken()

    def end(self) -> list[Event]:
        """The events left at the end of the output."""
        self._drain(final=True)
        while self._state == "call":
            self._leave_call("")
            self._drain(final=True)
        if self._channel:
            self._reasoning("", close=True)
        if self._state == "text":
            self._emit(Content, self._space)
        return self._taken()

    # ---- text

    def _drain(self, final: bool = False) -> None:
        """Parses the buffer as far as it is decided; with `final`, all of it."""
        while self._buffer:
            wanted = self._wanted()
            places = [(at, -len(m), m) for m in wanted if (at := self._buffer.find(m)) >= 0]
            if places:
                at, _, marker = min(places)
                text, self._buffer = self._buffer[:at], self._buffer[at + len(marker) :]
                state = self._state
                back = self._text(text)
                # The text before a marker may change what the marker means.
                if back or self._state != state or marker not in self._wanted():
                    self._buffer = back + marker + self._buffer
                else:
                    self._marker(marker)
                continue
            held = 0 if final else partial_match(self._buffer, wanted)
            cut = len(self._buffer) - held
            text, self._buffer = self._buffer[:cut], self._buffer[cut:]
            back = self._text(text)
            self._buffer = back + self._buffer
            if not back:
                return

    def _wanted(self) -> list[str]:
        """The markers to look for in text, in this state."""
        format = self._format
        found: list[str] = []
        if self._state == "thought":
            found = [format.thought[1]]
        elif self._state == "call":
            if format.call and not self._loose:
                found = [format.call[1]] if format.call[1] else []
                if self._scan().state == "done":
                    found.append(format.call[0])  # the closing marker of the call before was forgotten
            if format.quote and not self._loose:
                found.append(format.quote)
        else:
            if self._fresh:
                found = [format.thought[0]]
            if self._answer_marker:
                found.append(self._answer_marker)
            if format.call and self._tools:
                found.append(format.call[0])
            if format.loose and self._tools:
                found.append(FENCE)
        return [marker for marker in found if marker not in self._tokens]

    @property
    def _answer_marker(self) -> str | None:
        """The marker around the answer that may come next."""
        if self._format.answer is None or not (self._fresh or self._in_answer):
            return None
        return self._format.answer[self._in_answer]

    def _text(self, text: str) -> str:
        """Takes text without markers; returns the part that must be parsed again."""
        if self._state == "thought":
            self._reasoning(text)
            return ""
        if self._state == "call":
            return self._after_scanner(self._scan().feed(text))
        if self._format.loose and self._fresh and self._tools and text.strip():
            self._begin_call("", self._format.loose(self._tools, self._constrained, ""), loose=True)
            begin = len(text) - len(text.lstrip())
            self._space += text[:begin]
            return self._after_scanner(self._scan().feed(text[begin:]))
        self._content(text)
        return ""

    def _content(self, text: str) -> None:
        text = self._space + text
        if self._trim:
            text = text.lstrip()
        kept = text.rstrip()
        self._space = text[len(kept) :]
        if kept:
            self._fresh = self._trim = False
            self._emit(Content, kept)

    def _reasoning(self, text: str, close: bool = False) -> None:
        if self._channel is not None:
            self._channel += text
            name = self._format.channel
            if len(self._channel.lstrip()) < len(name) + 1 and not close:
                return
            text = self._channel.lstrip()
            text, self._channel = text.removeprefix(name), None
        text = self._space + text
        if self._trim:
            text = text.lstrip()
        kept = text.rstrip()
        self._space = text[len(kept) :]
        if kept:
            self._trim = False
            self._emit(Reasoning, kept)

    # ---- markers

    def _marker(self, name: str) -> None:
        format = self._format
        opens, closes = format.thought
        if self._state == "thought":
            if name == closes:
                self._reasoning("", close=True)
                self._state, self._space, self._trim = "text", "", True
            elif not (name == opens and format.stray_thought_markers):
                self._reasoning(name)
        elif self._state == "call":
            self._marker_in_call(name)
        elif name == opens:
            self._leave_space()
            self._state, self._trim = "thought", True
            self._channel = "" if format.channel else None
        elif format.call and name == format.call[0] and self._tools:
            self._begin_call(name, format.calls(self._tools, self._constrained))
        elif format.loose and name == FENCE:
            self._begin_call(name, format.loose(self._tools, self._constrained, FENCE), loose=True)
        elif name == self._answer_marker:
            self._leave_space()
            self._in_answer, self._trim = not self._in_answer, True
        elif not (name == closes and format.stray_thought_markers):
            self._content(name)

    def _begin_call(self, opening: str, scanner: Scanner, loose: bool = False) -> None:
        self._opening, self._state, self._scanner, self._loose = opening, "call", scanner, loose

    def _marker_in_call(self, name: str) -> None:
        scanner = self._scan()
        apart = self._loose or name == self._answer_marker
        if apart and not scanner.in_string:  # the next call, or what is none of these calls' business
            self._leave_call("")
            self._drain(final=True)
            self._marker(name)
        elif name == self._format.quote and not self._loose:
            self._buffer = self._after_scanner(scanner.quote()) + self._buffer
        elif self._format.call and name == self._format.call[1] and not scanner.in_string:
            self._leave_call(name)
        elif self._format.call and name == self._format.call[0] and scanner.state == "done":
            self._leave_call("")
            self._marker(name)
        else:
            self._buffer = self._after_scanner(scanner.feed(name)) + self._buffer

    def _leave_call(self, closing: str) -> None:
        """The closing marker came, or the end of the output."""
        scanner = self._scan()
        rest = self._after_scanner(scanner.end())
        if scanner.state == "refused":
            rest += closing
        else:
            self._trim = True
        self._state, self._scanner = "text", None
        self._buffer = rest + self._buffer

    def _scan(self) -> Scanner:
        assert self._scanner is not None
        return self._scanner

    def _after_scanner(self, events: list[Event]) -> str:
        """Takes the scanner's events; returns text that is not part of calls."""
        scanner = self._scan()
        if any(isinstance(event, CallStart) for event in events):
            self._leave_space()
            self._fresh = False
        self._out += events
        if scanner.state == "refused":
            self._state, self._scanner = "text", None
            self._fresh = False  # what is read again begins no call by itself, but may have markers
            self._content(self._opening)
            return scanner.raw + scanner.rest
        if scanner.state == "done" and (self._loose or scanner.rest.strip()):
            self._state, self._scanner, self._trim = "text", None, True
            return scanner.rest
        return ""

    # ---- out

    def _leave_space(self) -> None:
        """White space before a marker or a call is layout."""
        self._emit(Layout, self._space)
        self._space = ""

    def _emit(self, kind: type[Content] | type[Layout] | type[Reasoning], text: str) -> None:
        if text:
            self._out.append(kind(text))

    def _taken(self) -> list[Event]:
        """The events so far; adjacent ones of the same kind are merged."""
        found: list[Event] = []
        for event in self._out:
            last = found[-1] if found else None
            if last is not None and type(last) is type(event) and not isinstance(event, CallStart):
                found[-1] = type(event)(last.text + event.text)  # type: ignore[union-attr]
            elif isinstance(event, CallStart) or event.text:
                found.append(event)
        self._out = []
        return found
