"""Chat messages: what clients send, checked and in one form.

A message is a mapping as OpenAI's API has it: `role` (system, developer, user, assistant, tool), `content` (a
text, or a list of text, media and thinking parts), and for an assistant `tool_calls` and `reasoning_content`,
for a tool's result `tool_call_id` and `name`. The other spellings in use are understood too.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from olivine.chat.functions import declaration
from olivine.chat.nesting import problem_of
from olivine.errors import RequestError

Role = Literal["system", "developer", "user", "assistant", "tool"]
ROLES = ("system", "developer", "user", "assistant", "tool")
REASONING = ("reasoning_content", "reasoning", "thinking")  # how clients name what an assistant thought
# Types of content parts, and which kind of media they are.
_MEDIA = {
    "image": "image",
    "image_url": "image",
    "input_image": "image",
    "audio": "audio",
    "audio_url": "audio",
    "input_audio": "audio",
    "video": "video",
    "video_url": "video",
    "input_video": "video",
}
# Types of parts with a text, and the field that has it.
_TEXT = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
_DEEPEST = 64  # lists and objects in arguments, results and declarations

Messages = str | Sequence["Message | Mapping[str, Any]"]
Tools = Sequence[Mapping[str, Any] | Callable[..., Any]]


@dataclass(frozen=True)
class Media:
    """An image, audio or video part of a message, with its source as the client gave it."""

    kind: Literal["image", "audio", "video"]
    source: Any


@dataclass(frozen=True)
class Thought:
    """A thought in a system message: it shows the model how to think."""

    text: str


@dataclass(frozen=True)
class ToolCall:
    """A call that an assistant made."""

    id: str
    name: str
    arguments: str  # JSON as it was written

    def as_dict(self) -> dict[str, Any]:
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": self.id, "type": "function", "function": function}


@dataclass(frozen=True)
class Message:
    """One message. `as_dict` is the form of clients, `for_template` that of templates."""

    role: Role
    content: str | list[str | Media | Thought] = ""
    reasoning: str | None = None
    tool_calls: list[ToolCall] = field(default_factory=list)
    tool_call_id: str | None = None
    name: str | None = None

    @classmethod
    def of(cls, given: Message | Mapping[str, Any], where: str = "the message") -> Message:
        """A message from what a client sent. An error names the place, which `where` is."""
        if isinstance(given, Message):
            return given
        if not isinstance(given, Mapping):
            raise RequestError(f"{where} is not an object with role and content")
        role = given.get("role")
        if role not in ROLES:
            known = ", ".join(ROLES)
            raise RequestError(f"{where} has the role {_shown(role)}; known: {known}")
        calls = given.get("tool_calls") or []
        if not isinstance(calls, Sequence) or isinstance(calls, str):
            raise RequestError(f"{where}: tool_calls is not a list")
        if calls and role != "assistant":
            raise RequestError(f"{where}: only an assistant makes tool_calls, and this is {role}'s")
        content = given.get("content")
        if content is None:  # what an assistant refuses with stands in its place
            content = _text(given, "refusal", where)
        content = _content(content, where)
        reasoning = next((text for key in REASONING if (text := _text(given, key, where)) is not None), None)
        thoughts = [part.text for part in content if isinstance(part, Thought)]
        if thoughts and role == "assistant":
            content = [part for part in content if not isinstance(part, Thought)]
            reasoning = "\n".join(thoughts) if reasoning is None else reasoning
        elif thoughts and role not in ("system", "developer"):
            raise RequestError(f"{where}: only an assistant and the system think, and this is {role}'s")
        return cls(
            role,
            content,
            reasoning,
            [_call(call, f"{where}: tool_calls[{i}]") for i, call in enumerate(calls)],
            _text(given, "tool_call_id", where),
            _text(given, "name", where),
        )

    @property
    def text(self) -> str:
        """The text of all parts."""
        if isinstance(self.content, str):
            return self.content
        return "\n".join(part for part in self.content if isinstance(part, str))

    @property
    def media(self) -> list[Media]:
        if isinstance(self.content, str):  # which may be long
            return []
        return [part for part in self.content if isinstance(part, Media)]

    @property
    def has_thoughts(self) -> bool:
        """Whether thoughts stand among its parts."""
        return any(isinstance(part, Thought) for part in self.content)

    def as_dict(self) -> dict[str, Any]:
        """The message in the form of clients."""
        found: dict[str, Any] = {"role": self.role, "content": self.content}
        if not isinstance(self.content, str):
            found["content"] = [_part_as_dict(part) for part in self.content]
        if self.reasoning is not None:
            found["reasoning_content"] = self.reasoning
        if self.tool_calls:
            found["tool_calls"] = [call.as_dict() for call in self.tool_calls]
        for key in ("tool_call_id", "name"):
            if getattr(self, key) is not None:
                found[key] = getattr(self, key)
        return found

    def for_template(self) -> dict[str, Any]:
        """The message as templates take it: arguments as objects, reasoning under each of its names."""
        found = self.as_dict()
        if self.reasoning is not None:
            found.update(dict.fromkeys(REASONING, self.reasoning))
        for call in found.get("tool_calls", ()):
            call["function"]["arguments"] = parsed_arguments(call["function"]["arguments"])
        return found


def messages_of(given: Messages) -> list[Message]:
    """A conversation from what a client sent; a text alone is a user's message."""
    if isinstance(given, str):
        return [Message("user", given)]
    if not isinstance(given, Sequence) or not given:
        raise RequestError("messages must be a text or a list of at least one message")
    return [Message.of(each, f"messages[{i}]") for i, each in enumerate(given)]  # type: ignore[arg-type]


def parsed_arguments(arguments: str) -> Any:
    """Arguments as an object, or the text itself if it is no JSON object."""
    try:
        value = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        return arguments
    return value if isinstance(value, dict) and problem_of(value, _DEEPEST) is None else arguments


def tools_of(given: Tools | None) -> list[dict[str, Any]]:
    """Declarations of functions: each {"type": "function", "function": {name, description, parameters}}.

    What is given in this form stays as it is, to the letter: templates print it. A Python function becomes
    its declaration.
    """
    if given is None:
        return []
    if not isinstance(given, Sequence) or isinstance(given, str):
        raise RequestError("tools is not a list")
    tools: list[dict[str, Any]] = []
    for i, tool in enumerate(given):
        where = f"tools[{i}]"
        if callable(tool):
            try:
                tool = declaration(tool)
            except RequestError as error:
                raise RequestError(f"{where}: {error}") from None
        if not isinstance(tool, Mapping):
            raise RequestError(f"{where} is neither an object nor a function")
        if tool.get("type", "function") != "function":
            continue  # tools that some clients' own servers run
        function = tool.get("function", tool)
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise RequestError(f"{where}: a function needs a name")
        if not function["name"]:
            raise RequestError(f"{where}: the function's name is empty")
        if not isinstance(function.get("parameters") or {}, Mapping):
            raise RequestError(f"{where}: parameters is not a JSON schema")
        if (problem := problem_of(function, _DEEPEST)) is not None:
            raise RequestError(f"{where} is {problem}")
        try:
            json.dumps(function)
        except (TypeError, ValueError) as error:
            raise RequestError(f"{where} is not JSON: {error}") from None
        if "function" in tool:
            tools.append({**tool, "function": dict(function)})
        else:  # as OpenAI's Responses API has it
            tools.append({"type": "function", "function": {k: v for k, v in function.items() if k != "type"}})
    names = Counter(tool["function"]["name"] for tool in tools)
    if (twice := next((name for name, count in names.items() if count > 1), None)) is not None:
        raise RequestError(f"tools: two functions are named {_shown(twice)}")
    return tools


def _part_as_dict(part: str | Media | Thought) -> dict[str, str]:
    if isinstance(part, Media):
        return {"type": part.kind}
    if isinstance(part, Thought):
        return {"type": "thinking", "thinking": part.text}
    return {"type": "text", "text": part}


def _content(content: Any, where: str) -> str | list[str | Media | Thought]:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, Mapping):
        content = [content]
    if not isinstance(content, Sequence):
        raise RequestError(f"{where}: content is neither a text nor a list of parts")
    return [_part(part, f"{where}: content[{i}]") for i, part in enumerate(content)]


def has_media(messages: Any) -> bool:
    """Whether messages, as clients send them, have images, sounds or videos. Nothing else is checked."""
    contents = [each.get("content") for each in messages if isinstance(each, Mapping)]
    kinds = [
        part.get("type")
        for content in contents
        if isinstance(content, list)
        for part in content
        if isinstance(part, Mapping)
    ]
    return any(isinstance(kind, str) and kind in _MEDIA for kind in kinds)


def _part(part: Any, where: str) -> str | Media | Thought:
    if isinstance(part, str | Media | Thought):
        return part
    if not isinstance(part, Mapping):
        raise RequestError(f"{where} is not an object with a type")
    kind = part.get("type", "text" if "text" in part else None)
    if isinstance(kind, str) and kind in _TEXT:
        if not isinstance(text := part.get(_TEXT[kind]), str):
            raise RequestError(f"{where}: {_TEXT[kind]} is missing")
        return text
    if kind == "thinking":
        thought = part.get("thinking")
        if isinstance(thought, list):  # as Mistral's API has it: parts with texts
            thought = Message("assistant", _content(thought, f"{where}: thinking")).text
        if not isinstance(thought, str):
            raise RequestError(f"{where}: thinking is missing")
        return Thought(thought)
    if not isinstance(kind, str) or kind not in _MEDIA:
        raise RequestError(f"{where} has the type {_shown(kind)}; known: text, thinking, {', '.join(_MEDIA)}")
    return Media(_MEDIA[kind], part.get(kind, part))  # type: ignore[arg-type]


def _call(call: Any, where: str) -> ToolCall:
    function = call.get("function", call) if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise RequestError(f"{where} needs a function with a name")
    arguments = function.get("arguments")
    if arguments is None:
        arguments = ""
    if isinstance(arguments, Mapping):
        if (problem := problem_of(arguments, _DEEPEST)) is not None:
            raise RequestError(f"{where}: its arguments are {problem}")
        try:
            arguments = json.dumps(arguments, ensure_ascii=False)
        except (TypeError, ValueError) as error:
            raise RequestError(f"{where}: its arguments are not JSON: {error}") from None
    if not isinstance(arguments, str):
        raise RequestError(f"{where}: arguments are neither an object nor JSON text")
    return ToolCall(str(call.get("id") or ""), function["name"], arguments)


def _text(given: Mapping[str, Any], key: str, where: str) -> str | None:
    value = given.get(key)
    if value is not None and not isinstance(value, str):
        raise RequestError(f"{where}: {key} is not a text")
    return value


def _shown(value: Any) -> str:
    return repr(value)[:60]
