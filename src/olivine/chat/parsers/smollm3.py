"""SmolLM3's calls are those of Hermes; its template takes functions by another name, and calls as text."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from olivine.chat.parsers import hermes
from olivine.chat.parsers.format import Format, TemplateMessages

_VARIABLE = "xml_tools"


def adapt(source: str, messages: TemplateMessages, tools: Sequence[Mapping[str, Any]]) -> TemplateMessages:
    """A template that renders only contents gets calls as content."""
    return messages if "tool_calls" in source else [_with_calls(message) for message in messages]


def _with_calls(message: dict[str, Any]) -> dict[str, Any]:
    if not message.get("tool_calls"):
        return message
    opens, closes = hermes.CALL
    calls = [call["function"] for call in message["tool_calls"]]
    texts = [
        json.dumps({key: call[key] for key in ("name", "arguments")}, ensure_ascii=False) for call in calls
    ]
    written = [f"{opens}\n{text}\n{closes}" for text in texts]
    return {**message, "content": "\n".join(filter(None, [message.get("content"), *written]))}


FORMAT = replace(hermes.FORMAT, name="smollm3", tools_variable=_VARIABLE, adapt=adapt)


def format_of(template: str) -> Format | None:
    return FORMAT if _VARIABLE in template else None
