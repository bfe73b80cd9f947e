"""Qwen3-Coder's calls: <function=name> and <parameter=key> with the value as text, between <tool_call> and
</tool_call>. What a text is, a string or a number, the function's schema says."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal

from olivine.chat.parsers import hermes
from olivine.chat.parsers.bare_json import BareJson
from olivine.chat.parsers.events import CallPiece, CallStart, Event
from olivine.chat.parsers.format import Format
from olivine.chat.parsers.rules import Rules

_FUNCTION = "<function="
_PARAMETER = ("<parameter=", "</parameter>")
_END = "</function>"
_LONGEST = 256  # characters of a name
_NAME = re.compile(rf"([^<>\n]{{1,{_LONGEST}}})>")
_NAME_BEGINS = re.compile(rf"[^<>\n]{{0,{_LONGEST}}}")
_WORDS = {"True": "true", "False": "false", "None": "null"}  # as Python, and so the template, writes them
_KINDS = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object"}
# A value up to its closing marker: it has none of the markers in it.
_TEXT = r"(/(.|\n)*/ & ~/(.|\n)*<(\/?tool_call|\/parameter)>(.|\n)*/)"


class FunctionCall:
    """One call, given out when it is complete. `names` may have the functions' schemas."""

    def __init__(self, names: Collection[str], constrained: bool = False) -> None:
        self.state: Literal["undecided", "open", "done", "refused"] = "undecided"
        self.raw = ""
        self.rest = ""
        self._names = names
        self._left = ""  # what is not read yet
        self._searched = 0  # of it, where no end of a value is
        self._name = ""
        self._key: str | None = None  # of the value that is open
        self._pairs: dict[str, str] = {}  # values as JSON

    @property
    def in_string(self) -> bool:
        return False  # a closing marker ends a call that forgot its own

    def feed(self, text: str) -> list[Event]:
        if self.state != "undecided":
            self.rest += text
            return []
        self.raw += text
        self._left += text
        while self.state == "undecided" and self._step():
            pass
        return self._taken()

    def quote(self) -> list[Event]:
        return []

    def end(self) -> list[Event]:
        if self.state == "undecided" and self._name and self._key is None and not self._left.strip():
            self.state = "done"
            return self._taken()
        self.state = "refused" if self.state == "undecided" else "done"
        return []

    def _step(self) -> bool:
        """Reads the next part; False where it is not there yet."""
        if self._key is not None:
            return self._value(self._key)
        self._left = self._left.lstrip()
        if not self._name:
            return self._opening(_FUNCTION)
        if self._left.startswith(_END):
            self.state, self.rest = "done", self._left.removeprefix(_END)
            return False
        return not _END.startswith(self._left) and self._opening(_PARAMETER[0])

    def _opening(self, marker: str) -> bool:
        """Reads a marker with a name."""
        if marker.startswith(self._left):
            return False
        inner = self._left.removeprefix(marker)
        match = _NAME.match(inner)
        if inner == self._left or (match is None and not _NAME_BEGINS.fullmatch(inner)):
            self.state = "refused"
        elif match is not None:
            name, self._left = match[1].strip(), inner[match.end() :]
            if marker == _FUNCTION:
                self._name = name
            else:
                self._key, self._searched = name, 0
            if self._name not in self._names or self._key in self._pairs:
                self.state = "refused"
            return True
        return False

    def _value(self, key: str) -> bool:
        closes = _PARAMETER[1]
        at = self._left.find(closes, self._searched)
        if self._left.find(hermes.CALL[0], self._searched, None if at < 0 else at) >= 0:
            self.state = "refused"  # a call that is never closed holds none back that is behind it
            return False
        if at < 0:
            self._searched = max(0, len(self._left) - len(closes))
            return False
        text, self._left = self._left[:at], self._left[at + len(closes) :]
        self._pairs[key] = _json(text.removeprefix("\n").removesuffix("\n"), self._types(key))
        self._key = None
        return True

    def _types(self, key: str) -> set[str]:
        schema = self._names[self._name] if isinstance(self._names, Mapping) else {}
        properties = schema.get("properties") if isinstance(schema, Mapping) else None
        return types(properties.get(key), schema) if isinstance(properties, Mapping) else set()

    def _taken(self) -> list[Event]:
        if self.state != "done":
            return []
        self.raw = ""
        pairs = (f"{json.dumps(key, ensure_ascii=False)}: {value}" for key, value in self._pairs.items())
        return [CallStart(self._name), CallPiece(f"{{{', '.join(pairs)}}}")]


def types(schema: Any, root: Mapping[str, Any], deepest: int = 8) -> set[str]:
    """The types that a value may have; none where the schema does not say."""
    if not isinstance(schema, Mapping) or not deepest:
        return set()
    kinds = schema.get("type")
    found = {kind for kind in (kinds if isinstance(kinds, list) else [kinds]) if isinstance(kind, str)}
    if found:
        return found
    for value in schema["enum"] if _is_list(schema.get("enum")) else ():
        found.add(_KINDS.get(type(value), "null"))
    for key in ("anyOf", "oneOf", "allOf"):
        for inner in schema[key] if _is_list(schema.get(key)) else ():
            found |= types(inner, root, deepest - 1)
    if isinstance(reference := schema.get("$ref"), str):
        kept, _, name = reference.removeprefix("#/").partition("/")
        definitions = root.get(kept)
        inner = definitions.get(name) if isinstance(definitions, Mapping) else None
        found |= types(inner, root, deepest - 1)
    return found


def _json(text: str, kinds: set[str]) -> str:
    """A value's text as JSON: of these types if it can be, and else a string."""
    if kinds != {"string"}:
        word = _WORDS.get(text.strip(), text.strip())
        try:
            value = json.loads(word, parse_constant=_no_number)
        except (ValueError, RecursionError):
            pass
        else:
            kind = _KINDS.get(type(value), "null")
            if not kinds or kind in kinds or (kind == "integer" and "number" in kinds):
                return word
    return json.dumps(text, ensure_ascii=False)


def _no_number(word: str) -> None:
    raise ValueError(f"{word} is not JSON")


def _is_list(value: Any) -> bool:
    return isinstance(value, list)


def call_rules(rules: Rules, functions: Sequence[Mapping[str, Any]]) -> list[str]:
    end = _literal(f"\n{_PARAMETER[1]}\n")
    rules.lines.append(f"text: TEXT\nTEXT: {_TEXT} {end}")
    return [_call(rules, each["name"], each.get("parameters") or {}) for each in functions]


def _call(rules: Rules, name: str, schema: Mapping[str, Any]) -> str:
    """Declared keys in their order, those that are required always."""
    declared = schema.get("properties")
    properties = declared if isinstance(declared, Mapping) else {}
    shared = {key: schema[key] for key in ("$defs", "definitions") if key in schema}  # what values refer to
    pairs = []
    for key, inner in properties.items():
        if not _NAME.fullmatch(f"{key}>") or inner is False:  # JSON Schema: no value fits
            continue
        head = _literal(f"{_PARAMETER[0]}{key}>\n")
        pair = rules.add("pair", f"{head} {_value_rule(rules, inner, schema, shared)}")
        pairs.append((pair, key in (schema.get("required") or ())))
    opens, closes = map(rules.marker, hermes.CALL)
    head, end = _literal(f"\n{_FUNCTION}{name}>\n"), _literal(f"{_END}\n")
    listed = rules.in_order(pairs, between='""')
    return rules.add("call", f"{opens} {head} {listed} {end} {closes}")


def _value_rule(rules: Rules, inner: Any, schema: Mapping[str, Any], shared: Mapping[str, Any]) -> str:
    """A value with its closing marker."""
    kinds = types(inner, schema)
    options = inner.get("enum") if isinstance(inner, Mapping) else None
    end = _literal(f"\n{_PARAMETER[1]}\n")
    if kinds == {"string"} and _is_list(options) and options:
        return f"({' | '.join(_literal(str(each)) for each in options)}) {end}"
    if not kinds or "string" in kinds:
        return "text"
    return f"{rules.json_value('value', {**inner, **shared})} {end}"


def _literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


FORMAT = Format(
    "qwen3-coder",
    calls=FunctionCall,
    call_rules=call_rules,
    between_calls="\n",
    call=hermes.CALL,
    loose=BareJson,
)


def format_of(template: str) -> Format | None:
    return FORMAT if hermes.CALL[0] in template and _FUNCTION in template else None
