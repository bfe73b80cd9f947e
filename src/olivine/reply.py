"""The answer of a chat, whole or in deltas: content, reasoning and tool calls."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from olivine.chat.messages import Message, ToolCall
from olivine.chat.parsers import CallPiece, CallStart, Content, Event, Layout, Parser, Reasoning
from olivine.completion import shortened
from olivine.conversation import ChatRequest, Conversations
from olivine.engine import Timings, Usage
from olivine.matching import StopStrings
from olivine.token_stream import Finished, TokenLogprob


@dataclass(frozen=True)
class CallDelta:
    """A bit of a tool call: the first one has its id and name, the others pieces of its arguments."""

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""


@dataclass(frozen=True)
class Reply:
    """A finished answer. `message` can be put behind the messages it answers as it is.

    Where it continues an assistant's message, it has the continuation only.
    """

    message: Message
    finish_reason: Literal["stop", "length", "tool_calls", "cancelled", "timeout", "repetition"]
    usage: Usage
    timings: Timings
    seed: int
    tokens: list[int]
    reasoning_tokens: int = 0
    logprobs: list[TokenLogprob] | None = None
    stop_string: str | None = None  # the one of `stop` that ended it

    @property
    def content(self) -> str:
        return self.message.text

    @property
    def reasoning(self) -> str | None:
        return self.message.reasoning

    @property
    def tool_calls(self) -> list[ToolCall]:
        return self.message.tool_calls

    def __str__(self) -> str:
        return self.content

    def __repr__(self) -> str:
        parts = [shortened(self.content)]
        if self.reasoning is not None:
            parts.append(f"reasoning={shortened(self.reasoning)}")
        if self.tool_calls:
            parts.append(f"tool_calls=[{', '.join(call.name for call in self.tool_calls)}]")
        parts += [f"finish_reason={self.finish_reason!r}", f"tokens={len(self.tokens)}", f"seed={self.seed}"]
        return f"Reply({', '.join(parts)})"


@dataclass(frozen=True)
class Delta:
    """A bit of an answer as it is made. The last one carries the reply."""

    content: str = ""
    reasoning: str = ""
    tool_calls: list[CallDelta] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] | None = None
    prefilled: int = 0  # prompt tokens read so far
    reply: Reply | None = None
    reasoning_tokens: int = 0  # of `tokens`, those of a thought
    prompt: int = 0  # tokens of the prompt, for `prefilled`

    def __str__(self) -> str:
        return self.content


class ChatConsumer:
    """Parses an answer while it is generated. Stop strings count in its content only."""

    def __init__(self, conversations: Conversations, request: ChatRequest, stop: Sequence[str] = ()) -> None:
        self._conversations = conversations
        self._request = request
        self.markers = conversations.marker_names
        self._parser = Parser(
            conversations.format,
            request.tools,
            conversations.markers,
            thinking=request.thinking,
            continued=request.continued,
            constrained=request.required,
        )
        self._stops = StopStrings(stop)
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[tuple[str, str, list[str]]] = []  # id, name, pieces of arguments
        self._reasoning_tokens = 0
        self._logprobs: list[TokenLogprob] = []
        # Since the last delta.
        self._new_reasoning = ""
        self._new_calls: list[CallDelta] = []
        self._new_reasoning_tokens = 0
        self._new_thoughts: list[bool] = []  # of each token: whether it is of a thought, or its marker
        self.result: Reply | None = None

    def feed(self, text: str) -> bool:
        thinking = self._parser.thinking
        self._new_reasoning_tokens += thinking
        self._new_thoughts.append(thinking)
        return bool(text) and self._take(self._parser.feed(text))

    def mark(self, text: str, name: str) -> bool:
        thinking = self._parser.thinking
        self._new_reasoning_tokens += thinking
        events = [*self._parser.feed(text), *self._parser.mark(name)]
        self._new_thoughts.append(thinking or self._parser.thinking)
        return self._take(events)

    def end(self, text: str) -> bool:
        return self._take([*self._parser.feed(text), *self._parser.end()])

    def piece(
        self,
        tokens: list[int],
        logprobs: list[TokenLogprob] | None,
        prefilled: int,
        finished: Finished | None,
    ) -> Delta:
        content = self._stops.take(final=finished is not None)
        reasoning, self._new_reasoning = self._new_reasoning, ""
        calls, self._new_calls = self._new_calls, []
        thinking, self._new_reasoning_tokens = self._new_reasoning_tokens, 0
        thoughts, self._new_thoughts = self._new_thoughts, []
        if logprobs is not None:
            pairs = zip(logprobs, thoughts, strict=False)
            logprobs = [replace(each, thought=True) if thought else each for each, thought in pairs]
            self._logprobs += logprobs
        self._content.append(content)
        self._reasoning.append(reasoning)
        self._reasoning_tokens += thinking
        if finished is not None:
            self.result = self._reply(finished)
        size = len(self._request.tokens)
        return Delta(content, reasoning, calls, tokens, logprobs, prefilled, self.result, thinking, size)

    def leave(self, tokens: Sequence[int]) -> None:
        self._conversations.remember(self._request, tokens)

    def _take(self, events: Sequence[Event]) -> bool:
        """Sorts events into the next delta. True where the answer ends: at a stop string, or before a call
        that it may not have."""
        for event in events:
            match event:
                case Content(text):
                    if self._stops.add(text):
                        return True
                case Layout(text):
                    if self._stops.ends_with(text):
                        return True
                case Reasoning(text):
                    self._new_reasoning += text
                case CallStart() if self._calls and not self._request.several:
                    return True
                case CallStart(name):
                    call_id = f"call_{secrets.token_hex(12)}"
                    self._new_calls.append(CallDelta(len(self._calls), call_id, name))
                    self._calls.append((call_id, name, []))
                case CallPiece(text):
                    self._new_calls.append(CallDelta(len(self._calls) - 1, arguments=text))
                    self._calls[-1][2].append(text)
        return self._stops.ends_with(self._parser.pending)

    def _reply(self, finished: Finished) -> Reply:
        calls = [ToolCall(call_id, name, "".join(pieces)) for call_id, name, pieces in self._calls]
        message = Message("assistant", "".join(self._content), "".join(self._reasoning) or None, calls)
        return Reply(
            message,
            "tool_calls" if calls and finished.reason == "stop" else finished.reason,
            finished.usage,
            finished.timings,
            finished.seed,
            finished.tokens,
            self._reasoning_tokens,
            None if finished.logprobs is None else self._logprobs,
            self._stops.found,
        )
