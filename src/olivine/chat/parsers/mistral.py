"""Mistral's calls: [TOOL_CALLS] and a JSON list of them, or [TOOL_CALLS]name[ARGS]{…} for each.

Between name and [ARGS] one generation of models writes [CALL_ID] and nine characters. Where that marker is a
token it is not seen here, and the nine characters stand right behind the name.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from olivine.chat.parsers.bare_json import BareJson
from olivine.chat.parsers.events import CallPiece, CallStart, Event
from olivine.chat.parsers.format import Format
from olivine.chat.parsers.json_call import OUTSIDE, object_of
from olivine.chat.parsers.rules import Rules, json_calls

CALLS = "[TOOL_CALLS]"
ARGS = "[ARGS]"
_CALL_ID = "[CALL_ID]"
_ID = 9  # characters
_HEAD = re.compile(rf"\s*(.*?)\s*({re.escape(_CALL_ID)}\w{{{_ID}}})?\s*({re.escape(ARGS)})?\s*", re.DOTALL)


class MistralCall:
    """What stands behind [TOOL_CALLS]."""

    def __init__(self, names: Collection[str], constrained: bool = False) -> None:
        self.state: Literal["undecided", "open", "done", "refused"] = "undecided"
        self.raw = ""
        self.rest = ""
        self._names = names
        self._constrained = constrained
        self._called: str | None = None  # the function, where its arguments are read before it is given out
        self._read = ""  # of these arguments
        self._longest = max(map(len, names), default=0) + len(_CALL_ID) + _ID + len(ARGS)
        self._list: BareJson | None = None
        self._depth = 0
        self._quoted = self._escaped = False

    @property
    def in_string(self) -> bool:
        return self._quoted or (self._list is not None and self._list.in_string)

    def feed(self, text: str) -> list[Event]:
        if self._list is not None:
            return self._from_list(self._list, self._list.feed(text))
        if self.state == "open":
            return self._arguments(text)
        if self.state != "undecided":
            self.rest += text
            return []
        self.raw += text
        if self._called is not None:
            return self._arguments(text)
        head, brace, arguments = self.raw.partition("{")
        if head.lstrip().startswith("[") or (brace and not head.strip()):
            self._list = BareJson(self._names, self._constrained)
            return self._from_list(self._list, self._list.feed(self.raw))
        if len(head.strip()) > self._longest:
            self.state = "refused"
            return []
        if not brace:
            return []
        name = self._name(head)
        if name is None:
            self.state = "refused"
            return []
        if not self._constrained:
            self._called = name
            return self._arguments(brace + arguments)
        self.state, self.raw = "open", ""
        return [CallStart(name), *self._arguments(brace + arguments)]

    def quote(self) -> list[Event]:
        return self.feed(ARGS)

    def end(self) -> list[Event]:
        if self._list is not None:
            return self._from_list(self._list, self._list.end())
        self.state = "refused" if self.state == "undecided" else "done"
        return []

    def _name(self, head: str) -> str | None:
        """The function before [ARGS], without the id of the call."""
        match = _HEAD.fullmatch(head)
        name = match[1] if match else head
        if name not in self._names and name[-_ID:].isalnum():
            name = name[:-_ID]
        return name if name in self._names else None

    def _arguments(self, text: str) -> list[Event]:
        for at, char in enumerate(text):
            if self._quoted:
                self._quoted = self._escaped or char != '"'
                self._escaped = char == "\\" and not self._escaped
            elif char == '"':
                self._quoted = True
            elif char in "{[":
                self._depth += 1
            elif char in "}]":
                self._depth -= 1
                if not self._depth:
                    return self._complete(text[: at + 1], text[at + 1 :])
            elif self._called is not None and char not in OUTSIDE:
                self.state = "refused"
                return []
        if self._called is not None:
            self._read += text
            return []
        return [CallPiece(text)] if text else []

    def _complete(self, last: str, rest: str) -> list[Event]:
        """The last of the arguments came, and what stands behind them."""
        if self._called is None:
            self.state, self.rest = "done", rest
            return [CallPiece(last)]
        arguments = object_of(self._read + last)
        if arguments is None:
            self.state = "refused"
            return []
        self.state, self.raw, self.rest = "done", "", rest
        return [CallStart(self._called), CallPiece(arguments)]

    def _from_list(self, calls: BareJson, events: list[Event]) -> list[Event]:
        self.state, self.raw, self.rest = calls.state, calls.raw, calls.rest
        return events


def named_rules(rules: Rules, functions: Sequence[Mapping[str, Any]]) -> list[str]:
    """[TOOL_CALLS]name[ARGS]{…}"""
    opens, between = map(rules.marker, (CALLS, ARGS))
    names = [json.dumps(each["name"], ensure_ascii=False) for each in functions]
    return [
        rules.add("call", f"{opens} {name} {between} {rules.arguments(function)}")
        for name, function in zip(names, functions, strict=True)
    ]


_NINE = re.compile(r"length\s*!=\s*9")


def adapt(
    source: str, messages: list[dict[str, Any]], tools: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Some templates refuse call ids that are not nine letters and digits: other ids are hashed to such."""
    if not _NINE.search(source):
        return messages
    found = []
    for message in messages:
        message = dict(message)
        if "tool_calls" in message:
            message["tool_calls"] = [{**call, "id": _nine(call.get("id"))} for call in message["tool_calls"]]
        if "tool_call_id" in message:
            message["tool_call_id"] = _nine(message["tool_call_id"])
        found.append(message)
    return found


def _nine(given: Any) -> str:
    """The same for the same id, so that results belong to their calls."""
    text = str(given)
    if len(text) == _ID and text.isascii() and text.isalnum():
        return text
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_ID]


# Where a template looks for an assistant's thoughts outside of the content.
_REASONING = re.compile(r"""[.'"]reasoning(_content)?\b""")


def adapt_thinking(
    source: str, messages: list[dict[str, Any]], tools: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """`adapt`, and thoughts of an assistant as the beginning of its content: Magistral's and Ministral's
    templates take them there only, and show those of all turns."""
    messages = adapt(source, messages, tools)
    if _REASONING.search(source):
        return messages
    return [_with_thought(message) if message.get("reasoning_content") else message for message in messages]


def _with_thought(message: dict[str, Any]) -> dict[str, Any]:
    thought, content = f"[THINK]{message['reasoning_content']}[/THINK]", message["content"]
    whole = thought + content if isinstance(content, str) else [{"type": "text", "text": thought}, *content]
    return {**message, "content": whole}


LIST = Format(
    "mistral-list",
    calls=MistralCall,
    call_rules=json_calls("arguments"),
    between_calls=", ",
    call=(CALLS, ""),  # the next call, or the end of the answer, closes one
    brackets=("[", "]"),
    loose=BareJson,
    adapt=adapt,
)
NAMED = replace(LIST, name="mistral", call_rules=named_rules, between_calls="", brackets=None, quote=ARGS)
THINKING = replace(
    NAMED, name="mistral-thinking", thought=("[THINK]", "[/THINK]"), after_thought="", adapt=adapt_thinking
)


def format_of(template: str) -> Format | None:
    """The form that a template of Mistral's has."""
    if CALLS not in template:
        return None
    if ARGS not in template:
        return LIST
    return THINKING if THINKING.thought[0] in template else NAMED
