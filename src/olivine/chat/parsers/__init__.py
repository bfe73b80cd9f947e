"""What models write, taken apart: one module a format of tool calls."""

from __future__ import annotations

from olivine.chat.parsers import bare_json, gemma4, hermes, mistral, phi4
from olivine.chat.parsers.events import CallPiece, CallStart, Content, Event, Reasoning
from olivine.chat.parsers.parser import Format, Parser

FORMATS = {
    format.name: format
    for format in (
        gemma4.FORMAT,
        hermes.FORMAT,
        mistral.LIST,
        mistral.NAMED,
        phi4.FORMAT,
        bare_json.FORMAT,
    )
}


def format_of(template: str) -> Format:
    """The format that a chat template speaks of; JSON alone where it speaks of none."""
    if "<|tool_call>" in template:
        return gemma4.FORMAT
    if "<tool_call>" in template:
        return hermes.FORMAT
    if "[TOOL_CALLS]" in template:
        return mistral.format_of(template)
    if "<|/tool|>" in template:
        return phi4.FORMAT
    return bare_json.FORMAT


__all__ = [
    "FORMATS",
    "CallPiece",
    "CallStart",
    "Content",
    "Event",
    "Format",
    "Parser",
    "Reasoning",
    "format_of",
]
