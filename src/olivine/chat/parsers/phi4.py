"""Phi-4-mini's calls: a JSON list between <|tool_call|> and <|/tool_call|>."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from olivine.chat.parsers.bare_json import BareJson
from olivine.chat.parsers.format import Format, TemplateMessages
from olivine.chat.parsers.rules import json_calls

_CALL = ("<|tool_call|>", "<|/tool_call|>")


def adapt(source: str, messages: TemplateMessages, tools: Sequence[Mapping[str, Any]]) -> TemplateMessages:
    """The published template has the declarations in the system message, as JSON, and calls as text."""
    found = [calls_as_text(message, _CALL) for message in messages]
    if tools:
        if not found or found[0]["role"] != "system":
            found.insert(0, {"role": "system", "content": ""})
        declared = json.dumps([tool["function"] for tool in tools], ensure_ascii=False)
        found[0] = {**found[0], "tools": declared}
    return found


def calls_as_text(message: dict[str, Any], markers: tuple[str, str]) -> dict[str, Any]:
    """The message with its calls behind its content, as the model wrote them."""
    if not message.get("tool_calls"):
        return message
    calls = [call["function"] for call in message["tool_calls"]]
    written = [{"name": call["name"], "arguments": call["arguments"]} for call in calls]
    text = json.dumps(written, ensure_ascii=False)
    return {**message, "content": f"{message.get('content') or ''}{markers[0]}{text}{markers[1]}"}


FORMAT = Format(
    "phi4",
    calls=BareJson,
    call_rules=json_calls("arguments"),
    between_calls=", ",
    call=_CALL,
    brackets=("[", "]"),
    loose=BareJson,
)


def format_of(template: str) -> Format | None:
    if "<|/tool|>" not in template:
        return None
    in_messages = "['tools']" in template or ".tools" in template
    return replace(FORMAT, tools_variable=None, adapt=adapt) if in_messages else FORMAT
