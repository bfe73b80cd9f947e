"""Gemma 4's format: <|tool_call>call:name{key:value,…}<tool_call|>, strings between <|"|>, keys bare.

Arguments are given out as JSON. A call that does not follow the notation is none.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal

from olivine.chat.messages import parsed_arguments
from olivine.chat.parsers.events import CallPiece, CallStart, Event
from olivine.chat.parsers.format import Format
from olivine.chat.parsers.gemma4_grammar import CALL, QUOTE, call_rules
from olivine.chat.parsers.json_call import object_of

_LONGEST = 256  # characters of a name
_HEAD = re.compile(r"\s*call:\s*([^{}]*?)\s*")
_NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?")
_WORDS = {"true": "true", "false": "false", "null": "null", "None": "null", "True": "true", "False": "false"}


class GemmaCall:
    """One call."""

    def __init__(self, names: Collection[str], constrained: bool = False) -> None:
        self.state: Literal["undecided", "open", "done", "refused"] = "undecided"
        self.raw = ""
        self.rest = ""
        self._names = names
        self._constrained = constrained
        self._name: str | None = None
        self._started = False  # the name has been given out
        self._word = ""  # a key or a bare value, as far as it has come
        self._open: list[str] = []  # brackets that are open
        self._escaped = False
        self._out = ""
        self._mode: Callable[[str], None] = self._key

    @property
    def in_string(self) -> bool:
        return self._mode in (self._quoted, self._plain_string)

    def feed(self, text: str) -> list[Event]:
        for at, char in enumerate(text):
            if self.state == "refused":
                self.rest += text[at:]
                break
            if self.state == "done":
                self.rest += char
            elif self._name is not None:
                self.raw += char if self.state == "undecided" else ""
                self._mode(char)
            elif char == "{":
                self._begin()
            else:
                self.raw += char
                head = self.raw.lstrip()
                if not head.startswith("call:"[: len(head)]) or len(head) > _LONGEST:
                    self.state = "refused"
        return self._taken()

    def quote(self) -> list[Event]:
        self.raw += QUOTE if self.state == "undecided" else ""
        self.rest += QUOTE if self.state == "done" else ""
        if self._name is None or self.state == "done":
            pass
        elif self._mode == self._quoted:
            self._out += '"'
            self._mode = self._after
        elif self._mode == self._value and not self._word.strip():
            self._out += '"'
            self._word = ""
            self._mode = self._quoted
        elif self._mode == self._key:
            pass  # quoted keys are read like bare ones
        else:
            self._broken(QUOTE)
        return self._taken()

    def end(self) -> list[Event]:
        if self.state == "undecided":
            self.state = "refused"
        elif self.state == "open":
            self._out += self._word
            self.state = "done"
        return self._taken()

    def _taken(self) -> list[Event]:
        if self._name is None or self.state in ("undecided", "refused"):
            return []
        out, self._out = self._out, ""
        found: list[Event] = [] if self._started else [CallStart(self._name)]
        self._started = True
        return [*found, CallPiece(out)] if out else found

    def _begin(self) -> None:
        head = _HEAD.fullmatch(self.raw)
        if head is None or head[1] not in self._names:
            self.raw += "{"
            self.state = "refused"
            return
        self._name = head[1]
        self._open = ["}"]
        self._out = "{"
        if self._constrained:
            self.state, self.raw = "open", ""
        else:
            self.raw += "{"

    # ---- one method a place in the text

    def _key(self, char: str) -> None:
        if char == ":":
            self._out += f"{json.dumps(self._word.strip(), ensure_ascii=False)}: "
            self._word = ""
            self._mode = self._value
        elif char == "}" and not self._word.strip():
            self._word = ""
            self._close(char)
        elif char in "{}[]":
            self._broken(char)
        else:
            self._word += char

    def _value(self, char: str) -> None:
        begun = bool(self._word.strip())
        if char in "{[" and not begun:
            self._word = ""
            self._open.append("}" if char == "{" else "]")
            self._out += char
            self._mode = self._key if char == "{" else self._value
        elif char == '"' and not begun:
            self._word = ""
            self._out += char
            self._mode = self._plain_string
        elif char in ",]}":
            if begun:
                self._bare()
                self._after(char)
            elif char == "]" and self._open[-1] == "]":
                self._close(char)
            else:
                self._broken(char)
        elif char == "{" and self.state == "undecided":
            self._broken(char)  # no word has one, but each call
        else:
            self._word += char

    def _bare(self) -> None:
        word, self._word = self._word.strip(), ""
        number = _NUMBER.fullmatch(word) is not None
        self._out += word if number else _WORDS.get(word, json.dumps(word, ensure_ascii=False))

    def _quoted(self, char: str) -> None:
        self._out += json.dumps(char, ensure_ascii=False)[1:-1]

    def _plain_string(self, char: str) -> None:
        self._out += char
        if char == '"' and not self._escaped:
            self._mode = self._after
        self._escaped = char == "\\" and not self._escaped

    def _after(self, char: str) -> None:
        if char == ",":
            self._out += ", "
            self._mode = self._key if self._open[-1] == "}" else self._value
        elif char in "]}":
            self._close(char)
        elif not char.isspace():
            self._broken(char)

    def _close(self, char: str) -> None:
        if char != self._open[-1]:
            self._broken(char)
            return
        self._open.pop()
        self._out += char
        self._mode = self._after
        if self._open:
            return
        if self.state == "undecided":
            arguments = object_of(self._out)
            if arguments is None:
                self.state = "refused"
                return
            self._out, self.raw = arguments, ""
        self.state = "done"

    def _broken(self, text: str) -> None:
        """The text violates the notation: it is no call. Where the name has been given out, the rest of the
        arguments is passed on as it is."""
        if self.state == "undecided":
            self.state = "refused"
            return
        self._out += self._word + text
        self._word = ""
        self._mode = self._verbatim

    def _verbatim(self, char: str) -> None:
        self._out += char


_ROLE_TOOL = re.compile(r"""role['"\]]*\s*[!=]=\s*['"]tool['"]""")


def adapt(
    source: str, messages: list[dict[str, Any]], tools: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """The first published templates have no role for results: they read `tool_responses` of the message that
    made the calls."""
    if not tools or _ROLE_TOOL.search(source) or "tool_responses" not in source:
        return messages
    found: list[dict[str, Any]] = []
    for message in messages:
        before = found[-1] if found else {}
        if message["role"] != "tool" or not before.get("tool_calls"):
            found.append(dict(message))
            continue
        named = {call["id"]: call["function"]["name"] for call in before["tool_calls"]}
        name = named.get(message.get("tool_call_id"), message.get("name") or "unknown")
        content = message["content"]
        response = parsed_arguments(content) if isinstance(content, str) and content else content
        before.setdefault("tool_responses", []).append({"name": name, "response": response})
    return found


FORMAT = Format(
    "gemma4",
    calls=GemmaCall,
    call_rules=call_rules,
    call=CALL,
    thought=("<|channel>", "<channel|>"),
    channel="thought",
    after_thought="",
    stray_thought_markers=True,  # it may open a thought twice, or close one that is not open
    quote=QUOTE,
    adapt=adapt,
    # The templates end a turn that has calls, results and text, and begin no other.
    unopened_answer=("<turn|>\n", "<|turn>model\n"),
)


def format_of(template: str) -> Format | None:
    return FORMAT if CALL[0] in template else None
