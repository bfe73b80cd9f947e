"""Answers as chat completions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from olivine.engine import Usage
from olivine.reply import CallDelta, Delta, Reply
from olivine.server.answer import SSE
from olivine.server.errors import ApiError, openai_shape
from olivine.server.events import dumps
from olivine.server.openai.fields import (
    Head,
    TokenBytes,
    chat_logprob,
    event,
    finish_reason,
    timings_of,
    usage_of,
)
from olivine.token_stream import TokenLogprob


class ChatEncoder:
    """Chat completions. For each output a stream has a chunk with the role, then chunks with content,
    reasoning or tool calls, then one with the reason of the end and an empty delta; at the end perhaps one
    with the usage and no choices. With log-probabilities, each token is reported once, also where it makes no
    text.

    `piece` runs for every token: what all chunks have in common is made once.
    """

    media_type = SSE
    ping = b": ping\n\n"

    def __init__(self, model: str, token_bytes: TokenBytes, *, include_usage: bool) -> None:
        self._head = Head("chatcmpl", "chat.completion.chunk", model)
        self.id = self._head.id
        self._token_bytes = token_bytes
        self._include_usage = include_usage
        self._begun = self._head.begun
        self._usage = ',"usage":null' if include_usage else ""
        self._starts: dict[int, str] = {}  # of the outputs that have begun: their chunks up to the delta
        self._end = f',"logprobs":null,"finish_reason":null}}]{self._usage}}}\n\n'

    def begin(self, usage: Usage) -> bytes:
        return b""

    def piece(self, index: int, piece: Delta) -> bytes:
        if not piece.tokens and piece.reply is None:  # the prompt is read
            return b""
        events, end = "", self._end
        start = self._starts.get(index)
        if start is None:
            start = self._starts[index] = f'{self._begun}"choices":[{{"index":{index},"delta":'
            events = f'{start}{{"role":"assistant","content":""}}{end}'
        if piece.logprobs:
            return (events + self._with_logprobs(start, piece)).encode()
        if piece.reasoning:
            events += f"{start}{_thought(piece)}{end}"
        if piece.content:
            events += f'{start}{{"content":{dumps(piece.content)}}}{end}'
        if piece.tool_calls:
            events += "".join([f"{start}{_call(call)}{end}" for call in piece.tool_calls])
        if piece.reply is not None:
            events += self._last(start, piece.reply)
        return events.encode()

    def _with_logprobs(self, start: str, piece: Delta) -> str:
        deltas = [_thought(piece)] if piece.reasoning else []
        if piece.content:
            deltas.append(f'{{"content":{dumps(piece.content)}}}')
        deltas += [_call(call) for call in piece.tool_calls]
        first, *others = deltas or ['{"content":""}']  # tokens whose text is held back, or that have none
        reports = dumps(self._logprobs(piece.logprobs))
        events = [f'{start}{first},"logprobs":{reports},"finish_reason":null}}]{self._usage}}}\n\n']
        events += [f"{start}{delta}{self._end}" for delta in others]
        return "".join(events) + (self._last(start, piece.reply) if piece.reply is not None else "")

    def _last(self, start: str, reply: Reply) -> str:
        """The chunk with the reason of the end; with the timings, where no usage follows."""
        timings = "" if self._include_usage else f',"timings":{dumps(timings_of(reply.usage, reply.timings))}'
        reason = dumps(finish_reason(reply.finish_reason))
        return f'{start}{{}},"logprobs":null,"finish_reason":{reason}}}]{self._usage}{timings}}}\n\n'

    def end(self, results: Sequence[Reply]) -> bytes:
        usage = ""
        if self._include_usage:
            usage = f'{self._begun}"choices":[],{dumps(_figures(results))[1:]}\n\n'
        return f"{usage}data: [DONE]\n\n".encode()

    def error(self, error: ApiError) -> bytes:
        return event(openai_shape(error))

    def whole(self, results: Sequence[Reply]) -> Mapping[str, Any]:
        choices = [
            {
                "index": index,
                "message": _message(reply),
                "logprobs": None if reply.logprobs is None else self._logprobs(reply.logprobs),
                "finish_reason": finish_reason(reply.finish_reason),
            }
            for index, reply in enumerate(results)
        ]
        return {**self._head.fields("chat.completion"), "choices": choices, **_figures(results)}

    def _logprobs(self, reports: Sequence[TokenLogprob] | None) -> dict[str, Any]:
        found = [chat_logprob(report, self._token_bytes) for report in reports or ()]
        return {"content": found, "refusal": None}


def _thought(piece: Delta) -> str:
    """Under both of the names that clients read."""
    text = dumps(piece.reasoning)
    return f'{{"reasoning_content":{text},"reasoning":{text}}}'


def _call(call: CallDelta) -> str:
    """A bit of a call. Clients concatenate what they get, so id and name are in its first one alone."""
    if call.name is None:
        return (
            f'{{"tool_calls":[{{"index":{call.index},"function":{{"arguments":{dumps(call.arguments)}}}}}]}}'
        )
    function = {"name": call.name, "arguments": call.arguments}
    return dumps(
        {"tool_calls": [{"index": call.index, "id": call.id, "type": "function", "function": function}]}
    )


def _message(reply: Reply) -> dict[str, Any]:
    """The message of an answer. `content` is always there, null beside calls; empty lists are not."""
    message: dict[str, Any] = {"role": "assistant", "content": reply.content}
    if reply.tool_calls:
        message["content"] = reply.content or None
        message["tool_calls"] = [each.as_dict() for each in reply.tool_calls]
    if reply.reasoning is not None:
        message |= {"reasoning_content": reply.reasoning, "reasoning": reply.reasoning}
    return message


def _figures(results: Sequence[Reply]) -> dict[str, Any]:
    reasoning = sum(reply.reasoning_tokens for reply in results)
    return {
        "usage": usage_of([reply.usage for reply in results], reasoning),
        "timings": timings_of(results[0].usage, results[0].timings),
    }
