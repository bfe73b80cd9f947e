"""Qwen's and Hermes' calls: JSON between <tool_call> and </tool_call>."""

from __future__ import annotations

from olivine.chat.parsers.bare_json import BareJson
from olivine.chat.parsers.json_call import JsonCall
from olivine.chat.parsers.parser import Format

FORMAT = Format("hermes", calls=JsonCall, call=("<tool_call>", "</tool_call>"), loose=BareJson)
