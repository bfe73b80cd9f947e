"""Parsers of model output: one module per chat format."""

from __future__ import annotations

from olivine.chat.parsers import bare_json, gemma4, granite, hermes, mistral, olmo, phi4, qwen3_coder, smollm3
from olivine.chat.parsers.events import CallPiece, CallStart, Content, Event, Layout, Reasoning
from olivine.chat.parsers.format import Format
from olivine.chat.parsers.parser import Parser

FORMATS = {
    format.name: format
    for format in (
        gemma4.FORMAT,
        granite.FORMAT,
        hermes.FORMAT,
        smollm3.FORMAT,
        mistral.LIST,
        mistral.NAMED,
        mistral.THINKING,
        olmo.FORMAT,
        phi4.FORMAT,
        bare_json.FORMAT,
        qwen3_coder.FORMAT,
        granite.RESPONDING,
    )
}
THOUGHT_MARKERS = tuple(dict.fromkeys(marker for format in FORMATS.values() for marker in format.thought))


def format_of(template: str) -> Format:
    """The format that a chat template is written for; JSON alone where it has the markers of none."""
    for module in (gemma4, granite, smollm3, qwen3_coder, hermes, mistral, olmo, phi4):
        if (format := module.format_of(template)) is not None:
            return format
    return bare_json.FORMAT


__all__ = [
    "FORMATS",
    "THOUGHT_MARKERS",
    "CallPiece",
    "CallStart",
    "Content",
    "Event",
    "Format",
    "Layout",
    "Parser",
    "Reasoning",
    "format_of",
]
