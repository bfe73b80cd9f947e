"""Answers as Ollama's API has them: lines of JSON, of which the last has the figures."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

from olivine.chat.messages import ToolCall, parsed_arguments
from olivine.completion import Completion, Piece
from olivine.reply import Delta, Reply
from olivine.server.errors import ApiError, ollama_shape
from olivine.server.events import dumps
from olivine.server.openai.fields import finite
from olivine.token_stream import Alternative, TokenLogprob

NDJSON = "application/x-ndjson"
# How a text ended, where Ollama's API has another word or none.
_DONE = {"tool_calls": "stop", "cancelled": "stop", "timeout": "length", "repetition": "stop"}


def now() -> str:
    return timestamp(time.time())


def timestamp(seconds: float) -> str:
    """A time as Ollama's clients read it."""
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="microseconds")[:-6] + "Z"


class Head:
    """What all lines of a response begin with, and what its last line says about time."""

    def __init__(self, model: str, began: float) -> None:
        """`began`: when the request came (`time.perf_counter`); the model is there now."""
        self.fields = {"model": model, "created_at": now()}
        self.text = dumps(self.fields)[:-1]
        self._began = began
        self._loaded = time.perf_counter()

    def last(self, result: Reply | Completion) -> dict[str, Any]:
        """The end of a response. Durations are in nanoseconds."""
        usage, timings = result.usage, result.timings
        return {
            "done": True,
            "done_reason": _DONE.get(result.finish_reason, result.finish_reason),
            "total_duration": _nanoseconds(time.perf_counter() - self._began),
            "load_duration": _nanoseconds(self._loaded - self._began),
            "prompt_eval_count": usage.prompt,
            "prompt_eval_duration": _nanoseconds(timings.prefill),
            "eval_count": usage.completion,
            "eval_duration": _nanoseconds(timings.decode),
        }


def _nanoseconds(seconds: float) -> int:
    return int(1e9 * seconds)


class ChatEncoder:
    """Messages. A call is sent when it is complete, with its arguments as an object."""

    media_type = NDJSON

    def __init__(self, head: Head) -> None:
        self._head = head
        self._start = f'{head.text},"message":{{"role":"assistant","content":'
        self.ping = self._line('""')  # clients do not skip empty lines
        self._calls: list[tuple[str, str, list[str]]] = []  # id, name, pieces of arguments

    def begin(self, _: Any) -> bytes:
        return b""

    def piece(self, index: int, piece: Delta) -> bytes:
        if not (piece.content or piece.reasoning or piece.tool_calls or piece.logprobs):
            return self._finished_calls(piece)
        lines = b""
        if piece.content or piece.reasoning or piece.logprobs:
            thinking = f',"thinking":{dumps(piece.reasoning)}' if piece.reasoning else ""
            lines = self._line(dumps(piece.content) + thinking, logprobs=piece.logprobs)
        for call in piece.tool_calls:
            if call.name is None:
                self._calls[-1][2].append(call.arguments)
            else:
                lines += self._last_call()
                self._calls.append((call.id or "", call.name, [call.arguments]))
        return lines + self._finished_calls(piece)

    def end(self, results: Sequence[Reply]) -> bytes:
        message = {"role": "assistant", "content": ""}
        return line({**self._head.fields, "message": message, **self._head.last(results[0])})

    def error(self, error: ApiError) -> bytes:
        return line(ollama_shape(error))

    def whole(self, results: Sequence[Reply]) -> Mapping[str, Any]:
        reply = results[0]
        message: dict[str, Any] = {"role": "assistant", "content": reply.content}
        if reply.reasoning is not None:
            message["thinking"] = reply.reasoning
        calls = [found for i, call in enumerate(reply.tool_calls) if (found := _call(i, call))]
        if calls:
            message["tool_calls"] = calls
        return {
            **self._head.fields,
            "message": message,
            **self._head.last(reply),
            **_logprobs(reply.logprobs),
        }

    def _finished_calls(self, piece: Delta) -> bytes:
        return self._last_call() if piece.reply is not None else b""

    def _last_call(self) -> bytes:
        """The call that was begun last, which is complete now."""
        if not self._calls:
            return b""
        call_id, name, pieces = self._calls[-1]
        call = _call(len(self._calls) - 1, ToolCall(call_id, name, "".join(pieces)))
        return self._line(f'"","tool_calls":[{dumps(call)}]') if call else b""

    def _line(self, content: str, *, logprobs: Sequence[TokenLogprob] | None = None) -> bytes:
        reports = f",{dumps(_logprobs(logprobs))[1:-1]}" if logprobs else ""
        return f'{self._start}{content}}},"done":false{reports}}}\n'.encode()


class GenerateEncoder:
    """The text that answers a prompt, by the model's chat template."""

    media_type = NDJSON

    def __init__(self, head: Head) -> None:
        self._head = head
        self._start = f'{head.text},"response":'
        self.ping = self._line('""', None)

    def begin(self, _: Any) -> bytes:
        return b""

    def piece(self, index: int, piece: Delta) -> bytes:
        if not (piece.content or piece.reasoning or piece.logprobs):
            return b""
        thinking = f',"thinking":{dumps(piece.reasoning)}' if piece.reasoning else ""
        return self._line(dumps(piece.content) + thinking, piece.logprobs)

    def end(self, results: Sequence[Reply]) -> bytes:
        return line({**self._head.fields, "response": "", **self._head.last(results[0])})

    def error(self, error: ApiError) -> bytes:
        return line(ollama_shape(error))

    def whole(self, results: Sequence[Reply]) -> Mapping[str, Any]:
        reply = results[0]
        thinking = {} if reply.reasoning is None else {"thinking": reply.reasoning}
        found = {**self._head.fields, "response": reply.content, **thinking}
        return {**found, **self._head.last(reply), **_logprobs(reply.logprobs)}

    def _line(self, response: str, logprobs: Sequence[TokenLogprob] | None) -> bytes:
        reports = f",{dumps(_logprobs(logprobs))[1:-1]}" if logprobs else ""
        return f'{self._start}{response},"done":false{reports}}}\n'.encode()


class RawEncoder(GenerateEncoder):
    """The text that follows a prompt as it is."""

    def piece(self, index: int, piece: Piece) -> bytes:  # type: ignore[override]
        return self._line(dumps(piece.text), piece.logprobs) if piece.text or piece.logprobs else b""

    def end(self, results: Sequence[Completion]) -> bytes:  # type: ignore[override]
        return line({**self._head.fields, "response": "", **self._head.last(results[0])})

    def whole(self, results: Sequence[Completion]) -> Mapping[str, Any]:  # type: ignore[override]
        found = {**self._head.fields, "response": results[0].text, **self._head.last(results[0])}
        return {**found, **_logprobs(results[0].logprobs)}


def line(data: Mapping[str, Any]) -> bytes:
    """A line of a stream."""
    return f"{dumps(data)}\n".encode()


def _call(index: int, call: ToolCall) -> dict[str, Any] | None:
    """A call; None for one that was cut, whose arguments are no object."""
    arguments = parsed_arguments(call.arguments)
    if not isinstance(arguments, dict):
        return None
    return {"id": call.id, "function": {"index": index, "name": call.name, "arguments": arguments}}


def _logprobs(reports: Sequence[TokenLogprob] | None) -> dict[str, Any]:
    if reports is None:
        return {}
    return {"logprobs": [{**_logprob(r), "top_logprobs": [*map(_logprob, r.top)]} for r in reports]}


def _logprob(report: Alternative) -> dict[str, Any]:
    return {"token": report.text, "logprob": finite(report.logprob), "bytes": [*report.text.encode()]}
