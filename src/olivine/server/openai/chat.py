"""POST /v1/chat/completions"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any

from olivine.chat.thinking import Thinking
from olivine.reply import Delta, Reply
from olivine.server.answer import SSE, answer
from olivine.server.endpoint import Call, Endpoint
from olivine.server.errors import ApiError, openai_shape
from olivine.server.openai.fields import SamplingBody, chat_logprob, timings_of, usage_of
from olivine.token_stream import TokenLogprob

# How an answer ended, where OpenAI's API has another word or none.
FINISH = {"cancelled": "stop", "timeout": "length", "repetition": "stop"}


class ChatBody(SamplingBody):
    messages: list[dict[str, Any]]
    max_completion_tokens: int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    response_format: dict[str, Any] | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    reasoning_effort: str | None = None
    # Not OpenAI's own.
    think: bool | str | None = None
    enable_thinking: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    def options(self) -> dict[str, Any]:
        """The options of `LLM.chat`."""
        template_options = dict(self.chat_template_kwargs or {})
        for spelling in ("enable_thinking", "thinking", "reasoning_effort"):
            template_options.pop(spelling, None)
        given = {
            **super().options(),
            "tools": self.tools,
            "tool_choice": self.tool_choice,
            "parallel_tool_calls": self.parallel_tool_calls,
            "response_format": self.response_format,
            "think": Thinking.asked(self.model_dump(include=_THINKING)),
            "template_options": template_options or None,
        }
        if self.max_completion_tokens is not None:
            given["max_tokens"] = self.max_completion_tokens
        if self.logprobs:
            given["logprobs"] = self.top_logprobs or 0
        return {name: value for name, value in given.items() if value is not None}


_THINKING = {"think", "enable_thinking", "reasoning_effort", "chat_template_kwargs"}


async def chat_completions(call: Call) -> Mapping[str, Any] | None:
    body: ChatBody = call.body
    stream = bool(body.stream)
    options, messages = body.options(), body.messages
    async with call.server.models.use(body.model) as model:
        usage = bool(body.stream_options and body.stream_options.include_usage)
        encoder = ChatEncoder(model.name, include_usage=usage)

        def submit(listeners: Sequence[Any]) -> Any:
            return model.llm.submit_chat(messages, listeners, **options)

        return await answer(call, submit, encoder, n=body.n or 1, stream=stream)


ENDPOINTS = [
    Endpoint("POST", "/v1/chat/completions", chat_completions, "The next message of a conversation", ChatBody)
]


class ChatEncoder:
    """Chat completions: a role first, then content, then the reason of the end, then perhaps the usage."""

    media_type = SSE
    ping = b": ping\n\n"

    def __init__(self, model: str, *, include_usage: bool) -> None:
        self._id = f"chatcmpl-{secrets.token_hex(12)}"
        self._created = int(time.time())
        self._model = model
        self._include_usage = include_usage
        self._begun: set[int] = set()

    def begin(self, prompt_tokens: int) -> bytes:
        return b""

    def piece(self, index: int, piece: Delta) -> bytes:
        events = []
        if index not in self._begun and (piece.tokens or piece.reply):
            self._begun.add(index)
            events.append(self._choice(index, {"role": "assistant", "content": ""}))
        logprobs = piece.logprobs
        for delta in _deltas(piece):
            events.append(self._choice(index, delta, logprobs=logprobs))
            logprobs = None  # once, however many deltas a piece makes
        if piece.reply is not None:
            events.append(self._choice(index, {}, finish=_finish(piece.reply)))
        return b"".join(events)

    def end(self, results: Sequence[Reply]) -> bytes:
        usage = b""
        if self._include_usage:
            usage = self._event([], usage=_usage(results), timings=_timings(results))
        return usage + b"data: [DONE]\n\n"

    def error(self, error: ApiError) -> bytes:
        return event(openai_shape(error))

    def whole(self, results: Sequence[Reply]) -> Mapping[str, Any]:
        return {
            "id": self._id,
            "object": "chat.completion",
            "created": self._created,
            "model": self._model,
            "choices": [
                {
                    "index": index,
                    "message": _message(reply),
                    "logprobs": _logprobs(reply.logprobs),
                    "finish_reason": _finish(reply),
                }
                for index, reply in enumerate(results)
            ],
            "usage": _usage(results),
            "timings": _timings(results),
        }

    def _choice(
        self,
        index: int,
        delta: Mapping[str, Any],
        *,
        logprobs: list[TokenLogprob] | None = None,
        finish: str | None = None,
    ) -> bytes:
        choice = {"index": index, "delta": delta, "logprobs": _logprobs(logprobs), "finish_reason": finish}
        return self._event([choice])

    def _event(self, choices: list[Any], **more: Any) -> bytes:
        return event(
            {
                "id": self._id,
                "object": "chat.completion.chunk",
                "created": self._created,
                "model": self._model,
                "choices": choices,
                **more,
            }
        )


def event(data: Mapping[str, Any]) -> bytes:
    """A server-sent event."""
    return b"data: %b\n\n" % json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode()


def _deltas(piece: Delta) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    if piece.reasoning:
        found.append({"reasoning_content": piece.reasoning, "reasoning": piece.reasoning})
    if piece.content:
        found.append({"content": piece.content})
    for call in piece.tool_calls:
        function = {"arguments": call.arguments}
        if call.name is None:
            found.append({"tool_calls": [{"index": call.index, "function": function}]})
        else:
            named = {"index": call.index, "id": call.id, "type": "function"}
            found.append({"tool_calls": [{**named, "function": {"name": call.name, **function}}]})
    return found


def _message(reply: Reply) -> dict[str, Any]:
    """The message of an answer. `content` is always there, null beside calls; empty lists are not."""
    message: dict[str, Any] = {"role": "assistant", "content": reply.content}
    if reply.tool_calls:
        message["content"] = reply.content or None
        message["tool_calls"] = [each.as_dict() for each in reply.tool_calls]
    if reply.reasoning is not None:
        message |= {"reasoning_content": reply.reasoning, "reasoning": reply.reasoning}
    return message


def _finish(reply: Reply) -> str:
    return FINISH.get(reply.finish_reason, reply.finish_reason)


def _usage(results: Sequence[Reply]) -> dict[str, Any]:
    return usage_of([reply.usage for reply in results], sum(reply.reasoning_tokens for reply in results))


def _timings(results: Sequence[Reply]) -> dict[str, Any]:
    return timings_of(results[0].usage, results[0].timings)


def _logprobs(logprobs: list[TokenLogprob] | None) -> dict[str, Any] | None:
    return None if logprobs is None else {"content": [chat_logprob(each) for each in logprobs]}
