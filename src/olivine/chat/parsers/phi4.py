"""Phi-4-mini's calls: a JSON list between <|tool_call|> and <|/tool_call|>."""

from __future__ import annotations

from olivine.chat.parsers.bare_json import BareJson
from olivine.chat.parsers.parser import Format

FORMAT = Format("phi4", calls=BareJson, call=("<|tool_call|>", "<|/tool_call|>"), listed=True, loose=BareJson)
