"""Conversations for templates that lack something: tools, or system messages behind others.

Where a template has no place for declarations, calls and results, they become ordinary text: declarations and
how to call go before the first message, calls are the JSON that was asked for, results are a user's message.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from olivine.chat.messages import Media, Message, parsed_arguments

INSTRUCTIONS = """\
You have functions at hand. Call one or several of them where that helps, and only then. To call a function, \
answer with nothing but a JSON object with its name and its arguments, such as
{"name": "function_name", "parameters": {"argument": "value"}}
and with a JSON list of such objects to call several. You will be given the results.

The functions, as JSON schemas:
"""


def without_tools(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> list[Message]:
    """The conversation with declarations, calls and results as text."""
    found: list[Message] = []
    before = None
    for message in messages:
        if message.role == "tool":
            name = message.name or _called(messages, message.tool_call_id)
            text = f"The result of {name or 'the call'}:\n{message.text}"
            if before == "tool":
                found[-1] = replace(found[-1], content=f"{found[-1].text}\n\n{text}")
            else:
                found.append(Message("user", text))
        elif message.tool_calls:
            calls = [
                json.dumps(
                    {"name": call.name, "parameters": parsed_arguments(call.arguments)}, ensure_ascii=False
                )
                for call in message.tool_calls
            ]
            text = calls[0] if len(calls) == 1 else f"[{', '.join(calls)}]"
            found.append(
                replace(message, content="\n".join(filter(None, [message.text, text])), tool_calls=[])
            )
        else:
            found.append(message)
        before = message.role
    if not tools:
        return found
    declared = INSTRUCTIONS + "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    if found and found[0].role in ("system", "developer"):
        return [replace(found[0], content=f"{found[0].text}\n\n{declared}"), *found[1:]]
    return [Message("system", declared), *found]


_SYSTEM = ("system", "developer")


def has_later_systems(messages: Sequence[Message]) -> bool:
    """Whether a system message stands behind messages of others."""
    return any(
        message.role in _SYSTEM and before.role not in _SYSTEM
        for before, message in itertools.pairwise(messages)
    )


def without_later_systems(messages: Sequence[Message]) -> list[Message]:
    """The conversation with such system messages as the user's words, in their place: templates that refuse
    them want turns that alternate."""
    found: list[Message] = []
    begun = folded = False  # whether others have spoken; whether the last message is such a one
    for message in messages:
        later = begun and message.role in _SYSTEM
        begun = begun or message.role not in _SYSTEM
        if later:
            message = replace(message, role="user")
        if found and message.role == found[-1].role == "user" and (later or folded):
            found[-1] = replace(found[-1], content=[*_parts(found[-1]), *_parts(message)])
            folded = True
        else:
            found.append(message)
            folded = later
    return [_plain(message) for message in found]


def _parts(message: Message) -> list[str | Media]:
    return [message.content] if isinstance(message.content, str) else list(message.content)


def _plain(message: Message) -> Message:
    """A message of texts alone with one text."""
    if isinstance(message.content, str) or message.media:
        return message
    return replace(message, content="\n\n".join(str(part) for part in message.content))


def _called(messages: Sequence[Message], call_id: str | None) -> str | None:
    calls = [call for message in messages for call in message.tool_calls]
    return next((call.name for call in calls if call_id and call.id == call_id), None)
