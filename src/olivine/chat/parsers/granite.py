"""Granite 3's calls: <|tool_call|> and a JSON list of them. Granite 4's are those of hermes.py."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from olivine.chat.parsers import phi4
from olivine.chat.parsers.format import Format, TemplateMessages

_CALL = ("<|tool_call|>", "")  # the end of the answer closes it


_RESPONSE = re.compile(r"""==\s*['"]tool_response['"]""")


def adapt(source: str, messages: TemplateMessages, tools: Sequence[Mapping[str, Any]]) -> TemplateMessages:
    """The published templates have the content of messages and nothing of their calls; the first of them has
    its own name for the role of results."""
    found = [phi4.calls_as_text(message, _CALL) for message in messages]
    if not _RESPONSE.search(source):
        return found
    return [{**each, "role": "tool_response"} if each["role"] == "tool" else each for each in found]


_ANSWER = ("<response>", "</response>")  # after a thought, in Granite 3.3
FORMAT = replace(phi4.FORMAT, name="granite", call=_CALL)
RESPONDING = replace(FORMAT, name="granite-responding", answer=_ANSWER)


def format_of(template: str) -> Format | None:
    if _CALL[0] not in template or "<|start_of_role|>" not in template:
        return None
    format = RESPONDING if _ANSWER[0] in template else FORMAT
    return format if "tool_calls" in template else replace(format, adapt=adapt)
