"""The input of the Responses API as messages: items of one turn of an assistant's become one message."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from olivine.errors import RequestError
from olivine.server.openai.responses_tools import Tool, custom_arguments

Json = dict[str, Any]
ROLES = ("user", "assistant", "system", "developer")
# Items that bring tools along.
_WITH_TOOLS = ("additional_tools", "tool_search_output")


@dataclass
class Turn:
    """An assistant's message that items are still added to."""

    message: Json
    parts: list[Json] = field(default_factory=list)  # of its content
    thoughts: list[str] = field(default_factory=list)

    def end(self) -> None:
        """Joins the texts: once, because each item would copy those before it."""
        self.message["content"] = _joined(self.parts)
        if self.thoughts:
            self.message["reasoning_content"] = "\n".join(self.thoughts)


class Conversation:
    """Messages, tools that items brought along, and the types of items that were left out."""

    def __init__(self, instructions: Any, given: Any) -> None:
        self.messages: list[Json] = []
        self.tools: list[Any] = []
        self.skipped: list[str] = []
        self._turn: Turn | None = None
        for source, role in ((instructions, "system"), (given, "user")):
            if isinstance(source, str):
                self._say({"role": role, "content": source})
            elif isinstance(source, Sequence):
                for i, item in enumerate(source):
                    self._add(item, f"{'input' if role == 'user' else 'instructions'}[{i}]")
            elif source is not None:
                raise RequestError("input is neither a text nor a list of items", param="input")
        self._end_turn()

    def _add(self, item: Any, where: str) -> None:
        if not isinstance(item, Mapping):
            raise RequestError(f"{where} is not an object", param="input")
        kind = item.get("type") or ("message" if "role" in item else None)
        match kind:
            case "message":
                self._message(item, where)
            case "reasoning":
                self._assistant().thoughts.extend(_thoughts(item, where))
            case "function_call":
                tool = Tool(_text(item, "name", where), item.get("namespace"))
                self._call(item, tool, item.get("arguments") or "", where)
            case "custom_tool_call":
                tool = Tool(_text(item, "name", where), item.get("namespace"))
                self._call(item, tool, custom_arguments(item.get("input")), where)
            case "function_call_output" | "custom_tool_call_output":
                call_id = str(item.get("call_id") or "")
                content = _content(item.get("output"), f"{where}.output")
                self._say({"role": "tool", "tool_call_id": call_id, "content": content})
            case "item_reference":
                raise RequestError(
                    f"{where} refers to an item of an earlier response, and this server keeps none: send the "
                    "item itself",
                    param="input",
                )
            case kind if kind in _WITH_TOOLS and isinstance(item.get("tools"), list):
                self.tools += item["tools"]
            case _:
                self.skipped.append(str(kind)[:60])

    def _message(self, item: Mapping[str, Any], where: str) -> None:
        role = item.get("role")
        if role not in ROLES:
            raise RequestError(
                f"{where} has the role {str(role)[:40]!r}; known: {', '.join(ROLES)}", param="input"
            )
        content = _content(item.get("content"), f"{where}.content")
        if role != "assistant":
            self._say({"role": role, "content": content})
            return
        if isinstance(content, str):
            content = [{"type": "text", "text": content}] if content else []
        self._assistant().parts.extend(content)

    def _call(self, item: Mapping[str, Any], tool: Tool, arguments: Any, where: str) -> None:
        function = {"name": tool.function, "arguments": arguments}
        call = {"id": str(item.get("call_id") or item.get("id") or ""), "function": function}
        self._assistant().message.setdefault("tool_calls", []).append(call)

    def _assistant(self) -> Turn:
        if self._turn is None:
            message: Json = {"role": "assistant"}
            self._say(message)
            self._turn = Turn(message)
        return self._turn

    def _say(self, message: Json) -> None:
        self._end_turn()
        self.messages.append(message)

    def _end_turn(self) -> None:
        if self._turn is not None:
            self._turn.end()
        self._turn = None


def _content(content: Any, where: str) -> Any:
    """Texts alone as one text; parts stay parts beside media, which the model may see or refuse."""
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, Sequence):
        raise RequestError(f"{where} is neither a text nor a list of parts", param="input")
    return _joined([_part(part, f"{where}[{i}]") for i, part in enumerate(content)])


def _joined(parts: list[Json]) -> str | list[Json]:
    if all(part["type"] == "text" for part in parts):
        return "\n".join(part["text"] for part in parts)
    return parts


def _part(part: Any, where: str) -> Json:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    kind = part.get("type") if isinstance(part, Mapping) else None
    match kind:
        case "input_text" | "output_text" | "text":
            return {"type": "text", "text": _text(part, "text", where)}
        case "refusal":
            return {"type": "text", "text": _text(part, "refusal", where)}
        case "input_image" if "image_url" in part:  # a URL, where chat completions have an object around it
            return {"type": "image_url", "image_url": part["image_url"]}
        case "input_image" | "input_audio" | "image_url" | "input_video":
            return dict(part)
        case _:
            raise RequestError(
                f"{where} has the type {str(kind)[:40]!r}; known: input_text, output_text, refusal, "
                "input_image, input_audio",
                param="input",
            )


def _thoughts(item: Mapping[str, Any], where: str) -> list[str]:
    """The texts of a reasoning item: the thought itself, or else its summary."""
    for key in ("content", "summary"):
        parts = item.get(key) or ()
        if not isinstance(parts, Sequence):
            raise RequestError(f"{where}.{key} is not a list of parts", param="input")
        if isinstance(parts, str):
            return [parts]
        texts = [part.get("text") for part in parts if isinstance(part, Mapping)]
        if found := [text for text in texts if isinstance(text, str) and text]:
            return found
    return []


def _text(item: Mapping[str, Any], field: str, where: str) -> str:
    value = item.get(field)
    if not isinstance(value, str):
        raise RequestError(f"{where}: {field} is missing, or is no text", param="input")
    return value
