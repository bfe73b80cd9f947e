"""Answers as Anthropic's messages: a list of content blocks, streamed block by block."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from olivine.chat.messages import Message
from olivine.engine import Usage
from olivine.reply import CallDelta, Delta, Reply
from olivine.server.answer import SSE
from olivine.server.errors import ApiError, anthropic_shape
from olivine.server.events import named_event, quoted
from olivine.server.parts import Kind, Part, parts_of, whole_piece

_TEXT = (Kind.TEXT, 0)
_STOP = {"length": "max_tokens", "timeout": "max_tokens", "tool_calls": "tool_use"}
_DELTAS = {
    Kind.TEXT: b'"text_delta","text":',
    Kind.THOUGHT: b'"thinking_delta","thinking":',
    Kind.CALL: b'"input_json_delta","partial_json":',
}


class MessagesEncoder:
    """A message: message_start, blocks (each a start, deltas and a stop), message_delta, message_stop.

    The message starts with the first piece, when it is known how much of the prompt was cached; until then a
    stream has pings only. Thoughts have no signature: there is nobody to verify one.
    """

    media_type = SSE
    ping = named_event({"type": "ping"})

    def __init__(self, model: str, *, show_thoughts: bool = True, silent: bool = False) -> None:
        """With `silent` the message is empty, whatever was generated: only the prompt was to be read."""
        self.id = f"msg_{secrets.token_hex(12)}"
        self._model = model
        self._show_thoughts = show_thoughts
        self._silent = silent
        self._usage = Usage()
        self._started = False
        self._index = -1  # of the block that is open, or was the last
        self._open: tuple[Kind, int] | None = None  # its kind, and which call it is
        self._prefix = b""  # of its deltas, up to their text

    def begin(self, usage: Usage) -> bytes:
        self._usage = usage
        return b""

    def piece(self, index: int, piece: Delta) -> bytes:
        if self._silent:
            return b"" if self._started else self._start()
        if self._open == _TEXT and not (piece.tool_calls or piece.reasoning):  # as most pieces are
            return self._delta(piece.content) if piece.content else b""
        events = [] if self._started else [self._start()]
        for part in parts_of(piece):
            block = (part.kind, part.call.index if part.call else 0)
            if block != self._open:
                events += [self._close(), self._begin(block, part.call)]
            if part.text and (self._show_thoughts or part.kind is not Kind.THOUGHT):
                events.append(self._delta(part.text))
        return b"".join(events)

    def end(self, results: Sequence[Reply]) -> bytes:
        reply = self._told(results)
        events = [] if self._started else [self._start()]
        if self._index < 0 and not self._silent:  # clients expect one
            events.append(self._begin(_TEXT, None))
        stop = {"stop_reason": _stop_reason(reply), "stop_sequence": reply.stop_string}
        delta = {"type": "message_delta", "delta": stop, "usage": _usage(reply.usage, reply.reasoning_tokens)}
        return b"".join([*events, self._close(), named_event(delta), named_event({"type": "message_stop"})])

    def error(self, error: ApiError) -> bytes:
        return named_event(anthropic_shape(error))

    def whole(self, results: Sequence[Reply]) -> Mapping[str, Any]:
        reply = self._told(results)
        content = [self._block(part) for part in parts_of(whole_piece(reply))]
        return {
            **self._message(),
            "content": content or ([] if self._silent else [_empty_block(Kind.TEXT, None)]),
            "stop_reason": _stop_reason(reply),
            "stop_sequence": reply.stop_string,
            "usage": _usage(reply.usage, reply.reasoning_tokens),
        }

    def _told(self, results: Sequence[Reply]) -> Reply:
        (reply,) = results
        if not self._silent:
            return reply
        usage = replace(reply.usage, completion=0)
        return Reply(Message("assistant"), "length", usage, reply.timings, reply.seed, [])

    def _block(self, part: Part) -> dict[str, Any]:
        block = _empty_block(part.kind, part.call)
        match part.kind:
            case Kind.TEXT:
                block["text"] = part.text
            case Kind.THOUGHT if self._show_thoughts:
                block["thinking"] = part.text
            case Kind.CALL:
                block["input"] = _input(part.text)
        return block

    def _message(self) -> dict[str, Any]:
        return {"id": self.id, "type": "message", "role": "assistant", "model": self._model}

    def _start(self) -> bytes:
        self._started = True
        message = {**self._message(), "content": [], "stop_reason": None, "stop_sequence": None}
        return named_event({"type": "message_start", "message": {**message, "usage": _usage(self._usage)}})

    def _begin(self, block: tuple[Kind, int], call: CallDelta | None) -> bytes:
        self._open = block
        self._index += 1
        self._prefix = (
            b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,"delta":{"type":%b'
            % (self._index, _DELTAS[block[0]])
        )
        content = _empty_block(block[0], call)
        return named_event({"type": "content_block_start", "index": self._index, "content_block": content})

    def _delta(self, text: str) -> bytes:
        return self._prefix + quoted(text) + b"}}\n\n"

    def _close(self) -> bytes:
        if self._open is None:
            return b""
        return named_event({"type": "content_block_stop", "index": self._index})


def _empty_block(kind: Kind, call: CallDelta | None) -> dict[str, Any]:
    if kind is Kind.TEXT:
        return {"type": "text", "text": ""}
    if kind is Kind.THOUGHT:
        return {"type": "thinking", "thinking": "", "signature": ""}
    assert call is not None
    return {"type": "tool_use", "id": _call_id(call.id or ""), "name": call.name, "input": {}}


def _call_id(own: str) -> str:
    """A call's id as Anthropic's look."""
    return f"toolu_{own.removeprefix('call_')}"


def _input(arguments: str) -> dict[str, Any]:
    """Arguments as an object. Those that an answer breaks off in go under the name that Anthropic's
    documentation has for them."""
    try:
        found = json.loads(arguments or "{}")
    except ValueError:
        found = None
    return found if isinstance(found, dict) else {"INVALID_JSON": arguments}


def _stop_reason(reply: Reply) -> str:
    return "stop_sequence" if reply.stop_string is not None else _STOP.get(reply.finish_reason, "end_turn")


def _usage(usage: Usage, thinking: int = 0) -> dict[str, Any]:
    """Tokens; those of the prompt that were cached count apart, as Anthropic's API has it."""
    return {
        "input_tokens": usage.prompt - usage.cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached,
        "output_tokens": usage.completion,
        "output_tokens_details": {"thinking_tokens": thinking},
    }
