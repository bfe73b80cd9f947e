"""Granite 3's calls: <|tool_call|> and a JSON list of them. Granite 4's are those of hermes.py."""

from __future__ import annotations

from dataclasses import replace

from olivine.chat.parsers import phi4
from olivine.chat.parsers.format import Format

FORMAT = replace(phi4.FORMAT, name="granite", call=("<|tool_call|>", ""))  # the end of the answer closes them


def format_of(template: str) -> Format | None:
    return FORMAT if "<|tool_call|>" in template and "<|start_of_role|>" in template else None
