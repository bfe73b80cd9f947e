"""OLMo 3's calls: name(key=value, …), one a line, between <function_calls> and </function_calls>.

Values are JSON or Python: true or True, null or None, strings in either quotes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from olivine.chat.parsers.bare_json import BareJson
from olivine.chat.parsers.events import CallPiece, CallStart, Event
from olivine.chat.parsers.format import Format, TemplateMessages
from olivine.chat.parsers.rules import Rules

CALLS = ("<function_calls>", "</function_calls>")
_LONGEST = 256  # characters of a name
_BETWEEN = " \t\r\n,;"  # what may stand between calls
_TOKEN = re.compile(
    r"""(?P<key>[^\W\d]\w*)\s*=\s* | (?P<string>"(?:[^"\\]|\\.)*" | '(?:[^'\\]|\\.)*')
    | (?P<word>true|false|null|True|False|None)\b | (?P<number>-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?)
    | (?P<other>[\[\](){},:]|\s+)""",
    re.VERBOSE | re.DOTALL,
)
_OTHERS = {"True": "true", "False": "false", "None": "null", "(": "[", ")": "]"}


class PythonCalls:
    """Calls until something else comes. Each is given out when it is complete."""

    def __init__(self, names: Collection[str], constrained: bool = False) -> None:
        self.state: Literal["undecided", "open", "done", "refused"] = "undecided"
        self.raw = ""
        self.rest = ""
        self._names = names
        self._call = ""  # the next call, as far as it has come
        self._name = ""
        self._depth = 0  # of brackets; 0: before the arguments
        self._quote = ""  # the string that is open
        self._escaped = False

    @property
    def in_string(self) -> bool:
        return bool(self._quote)

    def feed(self, text: str) -> list[Event]:
        found: list[Event] = []
        for at, char in enumerate(text):
            if self.state in ("done", "refused"):
                self.rest += text[at:]
                break
            if self.state == "undecided":
                self.raw += char
            self._call += char
            if not self._depth:
                self._in_name(char)
            elif self._in_arguments(char):
                found += self._taken()
        return found

    def quote(self) -> list[Event]:
        return []

    def end(self) -> list[Event]:
        if self.state in ("undecided", "open"):
            self._stop()
        return []

    def _in_name(self, char: str) -> None:
        name = self._call.lstrip(_BETWEEN)
        if char == "(":
            self._name = name[:-1].rstrip()
            self._depth = 1
            if self._name not in self._names:
                self._stop()
        elif len(name) > _LONGEST or (char == "\n" and name.strip()):
            self._stop()

    def _in_arguments(self, char: str) -> bool:
        """Whether this ends the call."""
        if self._quote:
            if char == self._quote and not self._escaped:
                self._quote = ""
            self._escaped = char == "\\" and not self._escaped
        elif char in "\"'":
            self._quote = char
        elif char == "<":  # in no value, but in the next marker: see json_call.OUTSIDE
            self._stop()
        else:
            self._depth += (char in "([{") - (char in ")]}")
        return not self._depth

    def _taken(self) -> list[Event]:
        """The call that is complete."""
        arguments = _arguments(self._call[self._call.index("(") + 1 : -1])
        if arguments is None:
            self._stop()
            return []
        self.state, self.raw, self._call = "open", "", ""
        return [CallStart(self._name), CallPiece(arguments)]

    def _stop(self) -> None:
        """What comes is no call, or there is no more."""
        if self.state == "undecided":
            self.state = "refused"
        else:
            self.state, self.rest = "done", self._call


def _arguments(text: str) -> str | None:
    """Keyword arguments as a JSON object, or None if they are none."""
    made, at = "", 0
    while at < len(text):
        token = _TOKEN.match(text, at)
        if token is None:
            return None
        at = token.end()
        if token["key"]:
            made += json.dumps(token["key"], ensure_ascii=False) + ": "
        elif token["string"]:
            made += _string(token["string"])
        else:
            made += _OTHERS.get(token[0], token[0])
    try:
        json.loads(f"{{{made}}}")
    except (ValueError, RecursionError):
        return None
    return f"{{{made.strip()}}}"


def _string(text: str) -> str:
    """A string in either quotes as JSON has it."""
    if text[0] == "'":
        inner = re.sub(
            r"\\.|\"", lambda m: {"\\'": "'", '"': '\\"'}.get(m[0], m[0]), text[1:-1], flags=re.DOTALL
        )
        text = f'"{inner}"'
    return re.sub(r"[\x00-\x1f]", lambda m: json.dumps(m[0])[1:-1], text)


def call_rules(rules: Rules, functions: Sequence[Mapping[str, Any]]) -> list[str]:
    return [_call(rules, each["name"], each.get("parameters") or {}) for each in functions]


def _call(rules: Rules, name: str, schema: Mapping[str, Any]) -> str:
    """Declared keys in their order, those that are required always."""
    declared = schema.get("properties")
    properties = declared if isinstance(declared, Mapping) else {}
    shared = {key: schema[key] for key in ("$defs", "definitions") if key in schema}  # what values refer to
    pairs = []
    for key, inner in properties.items():
        if not key.isidentifier() or inner is False:  # JSON Schema: no value fits
            continue
        value = rules.json_value("value", {**inner, **shared} if isinstance(inner, Mapping) else {})
        pair = rules.add("pair", f"{json.dumps(f'{key}=', ensure_ascii=False)} {value}")
        pairs.append((pair, key in (schema.get("required") or ())))
    return rules.add("call", f'{json.dumps(f"{name}(", ensure_ascii=False)} {rules.in_order(pairs)} ")"')


_SYSTEM = "You are a helpful function-calling AI assistant."


def adapt(source: str, messages: TemplateMessages, tools: Sequence[Mapping[str, Any]]) -> TemplateMessages:
    """Templates without `tools` have declarations in the system message and calls beside the answer, both as
    text, and results from the environment."""
    found = [_written(message) for message in messages]
    if tools:
        if not found or found[0]["role"] != "system":
            found.insert(0, {"role": "system", "content": _SYSTEM})
        declared = json.dumps([tool["function"] for tool in tools], ensure_ascii=False)
        found[0] = {**found[0], "functions": declared}
    return found


def _written(message: dict[str, Any]) -> dict[str, Any]:
    if message["role"] == "tool":
        return {**message, "role": "environment"}
    if not message.get("tool_calls"):
        return message
    calls = [call["function"] for call in message["tool_calls"]]
    lines = [f"{call['name']}({_pairs(call['arguments'])})" for call in calls]
    return {**message, "function_calls": "\n".join(lines)}


def _pairs(arguments: Any) -> str:
    if not isinstance(arguments, Mapping):  # what a client sent is no JSON object
        return str(arguments)
    return ", ".join(f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in arguments.items())


FORMAT = Format(
    "olmo",
    calls=PythonCalls,
    call_rules=call_rules,
    between_calls="\n",
    call=CALLS,
    brackets=("", ""),
    loose=BareJson,
)


def format_of(template: str) -> Format | None:
    if CALLS[0] not in template:
        return None
    return FORMAT if "tools" in template else replace(FORMAT, tools_variable=None, adapt=adapt)
