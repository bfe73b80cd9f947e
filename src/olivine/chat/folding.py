"""Conversations for templates that lack something: tools, several calls, or places for system messages.

Where a template has no place for declarations, calls and results, they become ordinary text: declarations and
how to call go before the first message, calls are the JSON that was asked for, results are a user's message.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from olivine.chat.messages import Media, Message, Thought, parsed_arguments

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


def one_call_each(messages: Sequence[Message]) -> list[Message]:
    """The conversation with one call in a message, and its result behind it."""
    found: list[Message] = []
    left = list(messages)
    while left:
        message = left.pop(0)
        if len(message.tool_calls) < 2:
            found.append(message)
            continue
        results = list(itertools.takewhile(lambda each: each.role == "tool", left))
        del left[: len(results)]
        for number, call in enumerate(message.tool_calls):
            said = message if number == 0 else replace(message, content="", reasoning=None)
            found.append(replace(said, tool_calls=[call]))
            result = next((each for each in results if each.tool_call_id in (call.id, None)), None)
            if result is not None:
                results.remove(result)
                found.append(result)
        found += results
    return found


_SYSTEM = ("system", "developer")


def has_later_systems(messages: Sequence[Message]) -> bool:
    """Whether a system message stands behind messages of others."""
    return any(
        message.role in _SYSTEM and before.role not in _SYSTEM
        for before, message in itertools.pairwise(messages)
    )


def leading_systems(messages: Sequence[Message]) -> int:
    """How many system messages a conversation begins with."""
    return len(list(itertools.takewhile(lambda message: message.role in _SYSTEM, messages)))


def with_one_system(messages: Sequence[Message]) -> list[Message]:
    """The conversation with the system messages at its beginning as one."""
    count = leading_systems(messages)
    content = [part for message in messages[:count] for part in _parts(message)]
    return [_plain(replace(messages[0], content=content)), *messages[count:]]


def without_later_systems(messages: Sequence[Message]) -> list[Message]:
    """The conversation with system messages behind others as the user's words, in their place: templates that
    refuse them want turns that alternate."""
    count = leading_systems(messages)
    return [*messages[:count], *without_systems(messages[count:])]


def without_systems(messages: Sequence[Message]) -> list[Message]:
    """The conversation with all system messages as the user's words, in their place."""
    found: list[Message] = []
    folded = False  # whether the last message is such a one
    for message in messages:
        system = message.role in _SYSTEM
        if system:
            message = replace(message, role="user")
        if found and message.role == found[-1].role == "user" and (system or folded):
            found[-1] = replace(found[-1], content=[*_parts(found[-1]), *_parts(message)])
            folded = True
        else:
            found.append(message)
            folded = system
    return [_plain(message) for message in found]


def _parts(message: Message) -> list[str | Media | Thought]:
    return [message.content] if isinstance(message.content, str) else list(message.content)


def _plain(message: Message) -> Message:
    """A message of texts alone with one text."""
    if isinstance(message.content, str) or message.media or message.has_thoughts:
        return message
    return replace(message, content="\n\n".join(str(part) for part in message.content))


def _called(messages: Sequence[Message], call_id: str | None) -> str | None:
    calls = [call for message in messages for call in message.tool_calls]
    return next((call.name for call in calls if call_id and call.id == call_id), None)
