"""The rules of a grammar of tool calls, in llguidance's Lark, while it is written."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from olivine.chat.annotations import without_annotations
from olivine.chat.grammar import LAYOUT


class Rules:
    """Rules by name. `tokens` are the markers that are tokens of the vocabulary."""

    def __init__(self, tokens: Mapping[str, int]) -> None:
        self._tokens = tokens
        self.lines: list[str] = []

    def add(self, stem: str, body: str) -> str:
        """Adds a rule; gives its name, which begins with `stem`."""
        name = f"{stem}_{len(self.lines)}"
        self.lines.append(f"{name}: {body}")
        return name

    def marker(self, name: str) -> str:
        """A marker: as its token, if it is one, and else as text."""
        return f"<[{self._tokens[name]}]>" if name in self._tokens else json.dumps(name)

    def arguments(self, function: Mapping[str, Any]) -> str:
        """A rule for a function's arguments as JSON."""
        return self.json_value("arguments", function.get("parameters") or {"type": "object"})

    def json_value(self, stem: str, schema: Mapping[str, Any]) -> str:
        """A rule for JSON that fits a schema."""
        return self.add(stem, "%json " + json.dumps({**without_annotations(schema), "x-guidance": LAYOUT}))

    def in_order(self, rules: Sequence[tuple[str, bool]], between: str = '", "') -> str:
        """A rule for these in their order, with `between` between them; each says whether it is required."""
        first = more = '""'
        for rule, required in reversed(rules):
            after = more
            more = self.add("more", f"{between} {rule} {after}" + ("" if required else f" | {after}"))
            first = self.add("first", f"{rule} {after}" + ("" if required else f" | {first}"))
        return first

    def json_call(self, function: Mapping[str, Any], key: str, before: str = "", after: str = "") -> str:
        """A rule for {"name": …, key: {…}} with the function's arguments, between two other expressions."""
        name = json.dumps(function["name"], ensure_ascii=False)
        head = json.dumps(f'{{"name": {name}, "{key}": ')
        return self.add("call", f'{before} {head} {self.arguments(function)} "}}" {after}'.strip())


def json_calls(key: str) -> Callable[[Rules, Sequence[Mapping[str, Any]]], list[str]]:
    """The `call_rules` of a format whose calls are {"name": …, key: {…}} and nothing else."""
    return lambda rules, functions: [rules.json_call(each, key) for each in functions]
