"""Messages and tools as Anthropic's API has them, in the form that `LLM.chat` takes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from olivine.errors import RequestError

# Claude Code begins its system prompt with a line that changes with each request: left where it is, nothing
# behind it could come from the prefix cache.
BILLING = "x-anthropic-billing-header"

# Blocks of an assistant's that say nothing to another model: encrypted thoughts, and what Anthropic's servers
# ran.
_OPAQUE = ("redacted_thinking", "server_tool_use", "container_upload", "compaction")

Json = dict[str, Any]


class Block(NamedTuple):
    """A content block, and its place for errors."""

    where: str
    type: str
    fields: Mapping[str, Any]


def chat_messages(system: Any, messages: Sequence[Mapping[str, Any]]) -> list[Json]:
    """The conversation. System messages stay where they stand; consecutive messages of a user or of an
    assistant are one turn."""
    found: list[Json] = []
    if instructions := _system_text(_blocks(system, "system")):
        found.append({"role": "system", "content": instructions})
    names: dict[str, str] = {}  # of the functions that were called, by the call's id
    for where, role, blocks in _turns(messages):
        match role:
            case "user":
                found += _user(blocks, names)
            case "assistant":
                found.append(_assistant(blocks, names))
            case "system":
                if text := _system_text(blocks):
                    found.append({"role": "system", "content": text})
            case _:
                raise RequestError(
                    f"{where} has the role {str(role)[:40]!r}; known: user, assistant, system",
                    param="messages",
                )
    return found


def _turns(messages: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, Any, list[Block]]]:
    turn: tuple[str, Any, list[Block]] | None = None
    for i, message in enumerate(messages):
        where, role = f"messages[{i}]", message.get("role")
        blocks = _blocks(message.get("content"), f"{where}.content")
        if turn is not None and role == turn[1] and role in ("user", "assistant"):
            turn[2].extend(blocks)
            continue
        if turn is not None:
            yield turn
        turn = (where, role, blocks)
    if turn is not None:
        yield turn


def _blocks(content: Any, where: str) -> list[Block]:
    """Content blocks; a text alone is one."""
    if content is None:
        return []
    if isinstance(content, str):
        return [Block(where, "text", {"text": content})]
    if not isinstance(content, Sequence):
        raise RequestError(f"{where} is neither a text nor a list of content blocks", param="messages")
    found = []
    for i, block in enumerate(content):
        if not isinstance(block, Mapping) or not isinstance(block.get("type"), str):
            raise RequestError(f"{where}[{i}] is no content block: it has no type", param="messages")
        found.append(Block(f"{where}[{i}]", block["type"], block))
    return found


def _system_text(blocks: Sequence[Block]) -> str:
    texts = []
    for block in blocks:
        text = _text(block, "text")
        if text.startswith(BILLING):
            text = text.partition("\n")[2]
        if text:
            texts.append(text)
    return "\n".join(texts)


def _user(blocks: Sequence[Block], names: Mapping[str, str]) -> list[Json]:
    """Results of calls first, each a message of its own, then what the user says."""
    results, parts = [], []
    for block in blocks:
        if block.type == "tool_result":
            call_id = _text(block, "tool_use_id")
            name = {"name": names[call_id]} if call_id in names else {}
            results.append({"role": "tool", "tool_call_id": call_id, **name, "content": _result(block)})
        else:
            parts += _parts(block)
    return [*results, {"role": "user", "content": _joined(parts)}] if parts or not results else results


def _result(block: Block) -> str | list[Json]:
    content = _joined(
        [
            part
            for inner in _blocks(block.fields.get("content"), f"{block.where}.content")
            for part in _parts(inner)
        ]
    )
    if block.fields.get("is_error") and isinstance(content, str) and not content.lower().startswith("error"):
        return f"Error: {content}"
    return content


def _assistant(blocks: Sequence[Block], names: dict[str, str]) -> Json:
    message: Json = {"role": "assistant"}
    texts, thoughts, calls = [], [], []
    for block in blocks:
        match block.type:
            case "text":
                texts.append(_text(block, "text"))
            case "thinking":
                thoughts.append(_text(block, "thinking"))
            case "tool_use":
                call_id, name = _text(block, "id"), _text(block, "name")
                names[call_id] = name
                arguments = block.fields.get("input") or {}
                calls.append({"id": call_id, "function": {"name": name, "arguments": arguments}})
            case kind if kind in _OPAQUE or kind.endswith("_tool_result"):
                pass
            case _:
                raise _unknown(block, "text, thinking, redacted_thinking, tool_use")
    message["content"] = "\n".join(filter(None, texts))
    if thought := "\n".join(filter(None, thoughts)):
        message["reasoning_content"] = thought
    if calls:
        message["tool_calls"] = calls
    return message


def _parts(block: Block) -> list[Json]:
    """The parts that a block of a user's or of a result is for `LLM.chat`."""
    match block.type:
        case "text":
            return [_part(_text(block, "text"))]
        case "image":
            return [dict(block.fields)]
        case "document":
            return _document(block)
        case "search_result":
            texts = [_text(inner, "text") for inner in _blocks(block.fields.get("content"), block.where)]
            return [_part("\n".join([_text(block, "title"), _text(block, "source"), *texts]))]
        case "tool_reference":
            return [_part(f"The function {_text(block, 'tool_name')} is at hand now.")]
        case _:
            raise _unknown(block, "text, image, document, search_result, tool_result, tool_reference")


def _document(block: Block) -> list[Json]:
    source = block.fields.get("source")
    kind = source.get("type") if isinstance(source, Mapping) else None
    title = block.fields.get("title")
    heading = [_part(title)] if isinstance(title, str) and title else []
    if kind == "text":
        return [*heading, _part(_text(Block(f"{block.where}.source", "text", source or {}), "data"))]
    if kind == "content":
        inner = _blocks((source or {}).get("content"), f"{block.where}.source.content")
        return [*heading, *(part for each in inner for part in _parts(each))]
    raise RequestError(
        f"{block.where}: a document whose source is {str(kind)[:40]!r} cannot be read here: give its text, "
        'as a source of the type "text"',
        param="messages",
    )


def _part(text: str) -> Json:
    return {"type": "text", "text": text}


def _joined(parts: Sequence[Json]) -> str | list[Json]:
    """Texts alone are one text; beside media they stay parts."""
    if all(part["type"] == "text" for part in parts):
        return "\n".join(part["text"] for part in parts)
    return list(parts)


def _text(block: Block, field: str) -> str:
    value = block.fields.get(field)
    if not isinstance(value, str):
        raise RequestError(f"{block.where}: {field} is missing, or is no text", param="messages")
    return value


def _unknown(block: Block, known: str) -> RequestError:
    return RequestError(f"{block.where} has the type {block.type[:40]!r}; known: {known}", param="messages")


class Tools(NamedTuple):
    """The functions to declare, and the types of tools that are left out: this server does not have them."""

    declared: list[Json]
    skipped: list[str]


def chat_tools(tools: Sequence[Mapping[str, Any]], messages: Sequence[Mapping[str, Any]]) -> Tools:
    """Functions as `LLM.chat` takes them. One whose loading is deferred is declared once a message refers to
    it; all are, where the search for them would be the server's."""
    searched = any(str(tool.get("type")).startswith("tool_search_tool") for tool in tools)
    referred = _referred(messages)
    declared: list[Json] = []
    skipped = []
    for i, tool in enumerate(tools):
        name, kind = tool.get("name"), tool.get("type")
        if kind not in (None, "custom") and "input_schema" not in tool:
            skipped.append(str(kind))
            continue
        if not isinstance(name, str) or not name:
            raise RequestError(f"tools[{i}] has no name", param="tools")
        if tool.get("defer_loading") and not searched and name not in referred:
            continue
        function: Json = {"name": name}
        if tool.get("description"):
            function["description"] = tool["description"]
        function["parameters"] = tool.get("input_schema") or {"type": "object", "properties": {}}
        declared.append({"type": "function", "function": function})
    return Tools(declared, skipped)


def _referred(messages: Sequence[Mapping[str, Any]]) -> set[str]:
    """The tools to which results in the messages refer."""
    found: set[str] = set()
    for message in messages:
        content = message.get("content")
        for block in content if isinstance(content, list) else ():
            inner = block.get("content") if isinstance(block, Mapping) else None
            for each in (block, *inner) if isinstance(inner, list) else (block,):
                if isinstance(each, Mapping) and each.get("type") == "tool_reference":
                    found.add(str(each.get("tool_name")))
    return found
