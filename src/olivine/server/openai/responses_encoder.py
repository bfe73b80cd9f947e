"""Answers as responses of OpenAI's API: a list of items, streamed item by item."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any

from olivine.engine import Usage
from olivine.reply import CallDelta, Delta, Reply
from olivine.server.answer import SSE
from olivine.server.errors import ApiError
from olivine.server.events import named_event, quoted
from olivine.server.openai.fields import TokenBytes, chat_logprob
from olivine.server.openai.responses_tools import Tools, custom_input
from olivine.server.parts import Kind, parts_of, whole_piece

Json = dict[str, Any]
_TEXT = (Kind.TEXT, 0)
_STATUS = {"length": "incomplete", "timeout": "incomplete", "cancelled": "cancelled"}
# Codes of errors for which the API has a word of its own.
_CODES = {429: "rate_limit_exceeded", 400: "invalid_prompt"}


class ResponsesEncoder:
    """A response: created, in_progress; for each item its beginning, deltas and end; completed, incomplete or
    failed. Every event has the next number."""

    media_type = SSE
    ping = b": ping\n\n"

    def __init__(self, echo: Mapping[str, Any], tools: Tools, token_bytes: TokenBytes) -> None:
        """`echo` are the fields of the request that a response repeats."""
        self.id = f"resp_{secrets.token_hex(24)}"
        self._response: Json = {
            "id": self.id,
            "object": "response",
            "created_at": int(time.time()),
            "status": "in_progress",
            "error": None,
            "incomplete_details": None,
            "output": [],
            "usage": None,
            **echo,
        }
        self._tools = tools
        self._token_bytes = token_bytes
        self._output: list[Json] = []  # items that are done
        self._number = 0  # of the next event
        self._open: tuple[Kind, int] | None = None  # the kind of the item that is open, and which call it is
        self._item: Json = {}
        self._texts: list[str] = []
        self._logprobs: list[Any] = []
        self._held: list[Any] = []  # reports of tokens whose text is still to come, or that have none
        self._prefix = b""  # of its deltas

    def begin(self, usage: Usage) -> bytes:
        return self._event("response.created", response=self._response) + self._event(
            "response.in_progress", response=self._response
        )

    def piece(self, index: int, piece: Delta) -> bytes:
        if self._open == _TEXT and not (piece.tool_calls or piece.reasoning or piece.logprobs):
            self._texts.append(piece.content)  # as most pieces are
            return self._text_delta(piece.content) if piece.content else b""
        events = []
        if piece.content or not piece.tool_calls:  # what is of a call alone is in no text
            reports = [each for each in piece.logprobs or () if not each.thought]
            self._held += [chat_logprob(each, self._token_bytes) for each in reports]
        for part in parts_of(piece):
            block = (part.kind, part.call.index if part.call else 0)
            if block != self._open:
                events += [self._close(), self._begin(block, part.call)]
            if part.text:
                self._texts.append(part.text)
                if part.kind is Kind.TEXT:
                    events.append(self._text_delta(part.text))
                elif self._item["type"] != "custom_tool_call":  # whose text is known when all of it is there
                    events.append(self._delta(part.text))
        return b"".join(events)

    def end(self, results: Sequence[Reply]) -> bytes:
        (reply,) = results
        events = []
        if not self._output and self._open is None:
            events.append(self._begin(_TEXT, None))
        ending = "incomplete" if reply.finish_reason in _STATUS else "completed"
        events.append(self._close(ending))
        return b"".join([*events, self._event(f"response.{ending}", response=self._finished(reply))])

    def error(self, error: ApiError) -> bytes:
        code = _CODES.get(error.status, "server_error")
        failed = {"code": code, "message": error.message}
        response = {**self._response, "status": "failed", "error": failed, "output": self._output}
        return self._event("error", code=error.code, message=error.message, param=error.param) + self._event(
            "response.failed", response=response
        )

    def whole(self, results: Sequence[Reply]) -> Mapping[str, Any]:
        (reply,) = results
        self.piece(0, whole_piece(reply))
        self.end(results)
        return self._finished(reply)

    def _finished(self, reply: Reply) -> Json:
        status = _STATUS.get(reply.finish_reason, "completed")
        return {
            **self._response,
            "status": status,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "completed_at": int(time.time()) if status == "completed" else None,
            "output": self._output,
            "usage": _usage(reply),
        }

    # ---- items

    def _begin(self, block: tuple[Kind, int], call: CallDelta | None) -> bytes:
        self._open, self._texts, self._logprobs = block, [], []
        self._item, event = self._new_item(block[0], call)
        at = {"item_id": self._item["id"], "output_index": len(self._output)}
        content = b"" if block[0] is Kind.CALL else b'"content_index":0,'
        self._prefix = b'event: %b\ndata: {"type":"%b","item_id":"%b","output_index":%d,%b"delta":' % (
            event,
            event,
            at["item_id"].encode(),
            at["output_index"],
            content,
        )
        events = self._event(
            "response.output_item.added", output_index=len(self._output), item={**self._item}
        )
        if block[0] is not Kind.CALL:
            part = self._part(block[0], "")
            events += self._event("response.content_part.added", **at, content_index=0, part=part)
        return events

    def _new_item(self, kind: Kind, call: CallDelta | None) -> tuple[Json, bytes]:
        """An item that begins, and the name of its deltas."""
        made = secrets.token_hex(24)
        if kind is Kind.TEXT:
            message = {"type": "message", "status": "in_progress", "role": "assistant", "content": []}
            return {"id": f"msg_{made}", **message}, b"response.output_text.delta"
        if kind is Kind.THOUGHT:
            thought = {"type": "reasoning", "status": "in_progress", "summary": [], "content": []}
            return {"id": f"rs_{made}", **thought}, b"response.reasoning_text.delta"
        assert call is not None
        tool = self._tools.named(call.name)
        item: Json = {"status": "in_progress", "call_id": call.id, "name": tool.name}
        if tool.namespace is not None:
            item["namespace"] = tool.namespace
        if tool.custom:
            item = {"id": f"ctc_{made}", "type": "custom_tool_call", **item, "input": ""}
            return item, b"response.custom_tool_call_input.delta"
        item = {"id": f"fc_{made}", "type": "function_call", **item, "arguments": ""}
        return item, b"response.function_call_arguments.delta"

    def _close(self, status: str = "completed") -> bytes:
        """The end of the item that is open, if one is."""
        if self._open is None:
            return b""
        item, text, index = self._item, "".join(self._texts), len(self._output)
        at = {"item_id": item["id"], "output_index": index}
        item["status"] = status
        match item["type"]:
            case "function_call":
                item["arguments"] = text
                events = self._event(
                    "response.function_call_arguments.done", **at, name=item["name"], arguments=text
                )
            case "custom_tool_call":
                item["input"] = text = custom_input(text)
                events = self._delta(text) if text else b""
                events += self._event("response.custom_tool_call_input.done", **at, input=text)
            case kind:
                if kind == "message":
                    self._logprobs += self._taken()
                part = self._part(self._open[0], text)
                item["content"] = [part]
                name = "response.output_text.done" if kind == "message" else "response.reasoning_text.done"
                logprobs = {"logprobs": self._logprobs} if kind == "message" else {}
                events = self._event(name, **at, content_index=0, text=text, **logprobs)
                events += self._event("response.content_part.done", **at, content_index=0, part=part)
        self._open = None
        self._output.append(item)
        return events + self._event("response.output_item.done", output_index=index, item=item)

    def _part(self, kind: Kind, text: str) -> Json:
        if kind is Kind.THOUGHT:
            return {"type": "reasoning_text", "text": text}
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": self._logprobs}

    # ---- events

    def _delta(self, text: str, more: bytes = b"") -> bytes:
        number = self._number
        self._number += 1
        return self._prefix + quoted(text) + more + b',"sequence_number":%d}\n\n' % number

    def _taken(self) -> list[Any]:
        """The reports that were held."""
        found, self._held = self._held, []
        return found

    def _text_delta(self, text: str) -> bytes:
        if not (logprobs := self._taken()):
            return self._delta(text, b',"logprobs":[]')
        self._logprobs += logprobs
        return self._event(
            "response.output_text.delta",
            item_id=self._item["id"],
            output_index=len(self._output),
            content_index=0,
            delta=text,
            logprobs=logprobs,
        )

    def _event(self, kind: str, **fields: Any) -> bytes:
        number = self._number
        self._number += 1
        return named_event({"type": kind, **fields, "sequence_number": number})


def _usage(reply: Reply) -> Json:
    usage = reply.usage
    return {
        "input_tokens": usage.prompt,
        "input_tokens_details": {"cached_tokens": usage.cached, "cache_write_tokens": 0},
        "output_tokens": usage.completion,
        "output_tokens_details": {"reasoning_tokens": reply.reasoning_tokens},
        "total_tokens": usage.prompt + usage.completion,
    }
