"""Grammars of tool calls, for requests that must make one."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from olivine.chat.grammar import LAYOUT, lark_grammar
from olivine.chat.parsers import Format
from olivine.chat.parsers.mistral import ARGS

MOST = 16  # calls in one answer that must make some: small models never stop by themselves
_GEMMA = r"""
any: string | number | "true" | "false" | "null" | "[" (any ("," any)*)? "]" | "{" (free ("," free)*)? "}"
free: /[A-Za-z_][A-Za-z0-9_]{0,63}/ ":" any
number: integer /(\.[0-9]{1,17})?([eE][+-]?[0-9]{1,3})?/
integer: /-?(0|[1-9][0-9]{0,17})/
string: QUOTE TEXT QUOTE
"""


def calls_grammar(
    format: Format, tools: Sequence[Mapping[str, Any]], tokens: Mapping[str, int], several: bool = True
) -> str:
    """One call of these functions, or up to `MOST`, in llguidance's form. `tokens` are the markers that are
    tokens."""
    rules = _Rules(format, tokens)
    calls = [rules.call(tool["function"]) for tool in tools]
    one = " | ".join(calls)
    between = '", "' if format.bare or format.listed else '"\\n"' if format.name == "hermes" else '""'
    more = f"({between} call){{0,{MOST - 1}}}" if several else ""
    if format.listed:
        opening, closing = map(rules.marker, format.call or ("", ""))
        start = f'start: {opening} "[" call {more} "]" {closing}'
    elif format.bare and several:
        start = f'start: call | "[" call ({between} call){{1,{MOST - 1}}} "]"'
    else:
        start = f"start: call {more}"
    return lark_grammar("\n".join([start, f"call: {one}", *rules.lines]))


class _Rules:
    """The rules of a grammar while it is written."""

    def __init__(self, format: Format, tokens: Mapping[str, int]) -> None:
        self._format = format
        self._tokens = tokens
        self.lines: list[str] = []
        if format.name == "gemma4":
            quote = self.marker(format.quote or "")
            text = r"/(.|\n)*/" if quote.startswith("<[") else "/[^<]*/"  # no text makes a token
            self.lines.append(_GEMMA.replace("QUOTE", quote).replace("TEXT", text))

    def call(self, function: Mapping[str, Any]) -> str:
        """The name of the rule for calls of a function."""
        schema = function.get("parameters") or {"type": "object"}
        name = json.dumps(function["name"], ensure_ascii=False)
        opening, closing = map(self.marker, self._format.call or ("", ""))
        if self._format.name == "gemma4":
            body = f"{json.dumps('call:' + function['name'])} {self._object(schema)}"
            return self._add("call", f"{opening} {body} {closing}")
        key = "parameters" if self._format.bare else "arguments"
        head = json.dumps(f'{{"name": {name}, "{key}": ')
        arguments = self._add("arguments", "%json " + json.dumps({**schema, "x-guidance": LAYOUT}))
        if self._format.name == "mistral":
            return self._add("call", f"{opening} {name} {self.marker(ARGS)} {arguments}")
        if self._format.bare or self._format.listed:
            return self._add("call", f'{head} {arguments} "}}"')
        return self._add("call", f'{opening} "\\n" {head} {arguments} "}}\\n" {closing}')

    def marker(self, name: str) -> str:
        return f"<[{self._tokens[name]}]>" if name in self._tokens else json.dumps(name)

    def _add(self, stem: str, body: str) -> str:
        name = f"{stem}_{len(self.lines)}"
        self.lines.append(f"{name}: {body}")
        return name

    # ---- Gemma 4's notation

    def _object(self, schema: Mapping[str, Any]) -> str:
        """Declared keys in their order, those that are required always."""
        properties = schema.get("properties")
        if not isinstance(properties, Mapping):
            return '"{" (free ("," free)*)? "}"'
        required = schema.get("required") or ()
        first = more = '""'
        for key in sorted(properties, key=lambda key: (key.lower(), key), reverse=True):
            pair = self._add(
                "pair", f"{json.dumps(f'{key}:', ensure_ascii=False)} {self._value(properties[key])}"
            )
            skip = key not in required
            after = more
            more = self._add("more", f'"," {pair} {after}' + (f" | {after}" if skip else ""))
            first = self._add("first", f"{pair} {after}" + (f" | {first}" if skip else ""))
        return f'"{{" {first} "}}"'

    def _value(self, schema: Any) -> str:
        kind = schema.get("type") if isinstance(schema, Mapping) else None
        if kind == "string" and schema.get("enum"):
            quote = self.marker(self._format.quote or "")
            options = " | ".join(json.dumps(str(each), ensure_ascii=False) for each in schema["enum"])
            return f"{quote} ({options}) {quote}"
        if kind in ("string", "integer", "number"):
            return str(kind)
        if kind == "boolean":
            return '("true" | "false")'
        if kind == "array":
            item = self._add("item", self._value(schema.get("items")))
            return f'"[" ({item} ("," {item})*)? "]"'
        if kind == "object":
            return f"({self._object(schema)})"
        return "any"
