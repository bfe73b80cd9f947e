"""The rules of a grammar of tool calls, in llguidance's Lark, while it is written."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

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
        schema = function.get("parameters") or {"type": "object"}
        return self.add("arguments", "%json " + json.dumps({**schema, "x-guidance": LAYOUT}))

    def json_call(self, function: Mapping[str, Any], key: str, before: str = "", after: str = "") -> str:
        """A rule for {"name": …, key: {…}} with the function's arguments, between two other expressions."""
        name = json.dumps(function["name"], ensure_ascii=False)
        head = json.dumps(f'{{"name": {name}, "{key}": ')
        return self.add("call", f'{before} {head} {self.arguments(function)} "}}" {after}'.strip())


def json_calls(key: str) -> Callable[[Rules, Sequence[Mapping[str, Any]]], list[str]]:
    """The `call_rules` of a format whose calls are {"name": …, key: {…}} and nothing else."""
    return lambda rules, functions: [rules.json_call(each, key) for each in functions]
