"""Qwen's and Hermes' calls: JSON between <tool_call> and </tool_call>."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from olivine.chat.parsers.bare_json import BareJson
from olivine.chat.parsers.format import Format
from olivine.chat.parsers.json_call import JsonCall
from olivine.chat.parsers.rules import Rules

CALL = ("<tool_call>", "</tool_call>")


def call_rules(rules: Rules, functions: Sequence[Mapping[str, Any]]) -> list[str]:
    opens, closes = map(rules.marker, CALL)
    return [rules.json_call(each, "arguments", f'{opens} "\\n"', f'"\\n" {closes}') for each in functions]


FORMAT = Format(
    "hermes", calls=JsonCall, call_rules=call_rules, between_calls="\n", call=CALL, loose=BareJson
)


def format_of(template: str) -> Format | None:
    return FORMAT if CALL[0] in template else None
