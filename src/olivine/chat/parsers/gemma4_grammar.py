"""The grammar of Gemma 4's calls: its notation of a function's arguments."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from olivine.chat.parsers.rules import Rules

CALL = ("<|tool_call>", "<tool_call|>")
QUOTE = '<|"|>'
_VALUES = r"""
any: string | number | "true" | "false" | "null" | "[" (any ("," any)*)? "]" | "{" (free ("," free)*)? "}"
free: /[A-Za-z_][A-Za-z0-9_]{0,63}/ ":" any
number: integer /(\.[0-9]{1,17})?([eE][+-]?[0-9]{1,3})?/
integer: /-?(0|[1-9][0-9]{0,17})/
string: QUOTE TEXT QUOTE
"""


def call_rules(rules: Rules, functions: Sequence[Mapping[str, Any]]) -> list[str]:
    quote = rules.marker(QUOTE)
    # Where the quotation mark is a token, no text spells it; else text must not begin it.
    text = r"/(.|\n)*/" if quote.startswith("<[") else "/[^<]*/"
    rules.lines.append(_VALUES.replace("QUOTE", quote).replace("TEXT", text))
    return [_call(rules, function) for function in functions]


def _call(rules: Rules, function: Mapping[str, Any]) -> str:
    opens, closes = map(rules.marker, CALL)
    arguments = _object(rules, function.get("parameters") or {"type": "object"})
    return rules.add("call", f"{opens} {json.dumps('call:' + function['name'])} {arguments} {closes}")


def _object(rules: Rules, schema: Mapping[str, Any]) -> str:
    """Declared keys in their order, those that are required always."""
    properties = schema.get("properties")
    if not isinstance(properties, Mapping):
        return '"{" (free ("," free)*)? "}"'
    pairs = []
    for key in sorted(properties, key=lambda key: (key.lower(), key)):
        named = json.dumps(f"{key}:", ensure_ascii=False)
        pair = rules.add("pair", f"{named} {_value(rules, properties[key])}")
        pairs.append((pair, key in (schema.get("required") or ())))
    listed = rules.in_order(pairs, between='","')
    return f'"{{" {listed} "}}"'


def _value(rules: Rules, schema: Any) -> str:
    kind = schema.get("type") if isinstance(schema, Mapping) else None
    if kind == "string" and schema.get("enum"):
        quote = rules.marker(QUOTE)
        options = " | ".join(json.dumps(str(each), ensure_ascii=False) for each in schema["enum"])
        return f"{quote} ({options}) {quote}"
    if kind in ("string", "integer", "number"):
        return str(kind)
    if kind == "boolean":
        return '("true" | "false")'
    if kind == "array":
        item = rules.add("item", _value(rules, schema.get("items")))
        return f'"[" ({item} ("," {item})*)? "]"'
    if kind == "object":
        return f"({_object(rules, schema)})"
    return "any"
