"""Phi-4-mini's calls: a JSON list between <|tool_call|> and <|/tool_call|>."""

from __future__ import annotations

from olivine.chat.parsers.bare_json import BareJson
from olivine.chat.parsers.format import Format
from olivine.chat.parsers.rules import json_calls

FORMAT = Format(
    "phi4",
    calls=BareJson,
    call_rules=json_calls("arguments"),
    between_calls=", ",
    call=("<|tool_call|>", "<|/tool_call|>"),
    listed=True,
    loose=BareJson,
)


def format_of(template: str) -> Format | None:
    return FORMAT if "<|/tool|>" in template else None
