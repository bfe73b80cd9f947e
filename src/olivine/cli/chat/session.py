"""The state of a conversation: messages, sampling, figures of the last answer. Independent of a terminal."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from olivine.chat.messages import Media, Message, ToolCall
from olivine.chat.thinking import Thinking
from olivine.cli.chat.tools import DECLINED, Tools
from olivine.cli.files import medium
from olivine.errors import RequestError
from olivine.options import Options

if TYPE_CHECKING:
    from olivine.llm import LLM
    from olivine.reply import Delta, Reply
    from olivine.streaming import Stream

# What /set knows, and of which type it is.
SETTINGS: dict[str, type] = {
    "temperature": float,
    "top_p": float,
    "top_k": int,
    "min_p": float,
    "repetition_penalty": float,
    "presence_penalty": float,
    "frequency_penalty": float,
    "seed": int,
    "max_tokens": int,
}


@dataclass(frozen=True)
class Outcome:
    """Tokens and times of one answer. `prompt` and `cached` are unknown if it was interrupted."""

    finish_reason: str
    completion: int
    reasoning: int
    context: int  # tokens of the conversation, with the answer
    prefill: float  # seconds
    decode: float
    prompt: int | None = None
    cached: int = 0
    accepted: int = 0
    seed: int | None = None

    @property
    def speed(self) -> float | None:
        """Tokens a second, the first one not counted: it belongs to the prompt."""
        return (self.completion - 1) / self.decode if self.completion > 1 and self.decode > 0 else None

    def line(self, context: int, device: str) -> str:
        """The line under an answer."""
        words = [f"{self.completion:,} tok"]
        if self.speed is not None:
            words.append(f"{self.speed:.1f} tok/s")
        if self.prompt is not None:
            words.append(f"prompt {self.prompt:,} ({self.cached:,} cached)")
        words += [f"context {self.context:,}/{context:,}", device]
        if self.finish_reason == "cancelled":
            words.insert(0, "stopped")
        elif self.finish_reason == "repetition":
            words.insert(0, "repeated itself")
        elif self.finish_reason == "length":
            words.insert(0, "context full" if self.context >= context else "cut at max_tokens")
        return " · ".join(words)


class Session:
    """A conversation with a model."""

    def __init__(
        self,
        llm: LLM,
        *,
        system: str | None = None,
        think: Any = None,
        response_format: Any = None,
        **options: Any,
    ) -> None:
        self.llm = llm
        self.system = system
        self.think: Any = None
        self.response_format = response_format
        self.messages: list[Message] = []
        self.attached: list[str | Media] = []  # texts and media that go before the next question
        self.tools: Tools | None = None
        self.options = {name: value for name, value in options.items() if value is not None}
        self._check({name: value for name, value in self.options.items() if name in SETTINGS})
        self.last: Outcome | None = None
        self.total = 0  # tokens generated
        if think is not None:
            self.set_thinking(think)

    @property
    def conversation(self) -> list[Message]:
        """All messages, the system's first."""
        return [*self._told, *self.messages]

    @property
    def _told(self) -> list[Message]:
        return [Message("system", self.system)] if self.system else []

    def ask(self, text: str, media: Sequence[Media] = ()) -> Generator[Delta, None, None]:
        """The answer to a text and media, bit by bit. Leaving the loop stops it, and keeps what was said.

        A question that got no answer at all is not kept, and the texts before it wait for the next one.
        """
        return self._answer([self._question(text, media)], self._settled(), attached=True)

    def retry(self) -> Generator[Delta, None, None]:
        """Another answer to the last question, with a fresh seed. If there is none, the old one stays."""
        at = self._last_question()
        seed = int.from_bytes(os.urandom(8), "little")
        return self._answer([self.messages[at]], self.messages[:at], seed=seed)

    @property
    def calls(self) -> list[ToolCall]:
        """The calls of the last answer, which wait for their results."""
        return self.messages[-1].tool_calls if self.messages else []

    def resume(self, results: Sequence[str]) -> Generator[Delta, None, None]:
        """The answer after the results of all calls, in their order."""
        return self._answer(self._results(results), self.messages)

    def _results(self, results: Sequence[str]) -> list[Message]:
        return [
            Message("tool", text, tool_call_id=call.id, name=call.name)
            for call, text in zip(self.calls, results, strict=True)
        ]

    def _settled(self) -> list[Message]:
        """The messages before a new question: no call is without a result."""
        return [*self.messages, *self._results([DECLINED] * len(self.calls))]

    def undo(self) -> Message:
        """Removes the last question and all that followed; gives back the question."""
        at = self._last_question()
        question = self.messages[at]
        self.messages = self.messages[:at]
        self.last = None
        return question

    def _last_question(self) -> int:
        places = [i for i, message in enumerate(self.messages) if message.role == "user"]
        if not places:
            raise RequestError("nothing was asked yet")
        return places[-1]

    def prompt(self, text: str | None = None) -> list[int]:
        """The tokens that the model reads of the conversation, and of a question after it."""
        messages = self.conversation
        if text is not None:
            messages = [*self._told, *self._settled(), self._question(text)]
        return self.llm.conversations.prepare(messages, think=self.think, tools=self._functions).tokens

    def _question(self, text: str, more: Sequence[Media] = ()) -> Message:
        media = [*(each for each in self.attached if isinstance(each, Media)), *more]
        words = "\n\n".join([*(each for each in self.attached if isinstance(each, str)), text])
        return Message("user", [*media, words] if media else words)

    def media_of(self, paths: Sequence[Path]) -> list[Media]:
        """Images, sounds and videos, if the model takes them."""
        if not self.llm.towers:
            raise RequestError("this model takes text only: images, sounds and videos cannot be attached")
        media = [medium(path) for path in paths]
        self.llm.conversations.check_media(media)
        return media

    def attach(self, *paths: Path) -> None:
        """Puts images, sounds or videos before the next question."""
        self.attached += self.media_of(paths)

    @property
    def _functions(self) -> list[Callable[..., Any]] | None:
        return None if self.tools is None else list(self.tools.functions.values())

    def _answer(
        self, added: list[Message], before: list[Message], *, attached: bool = False, **changed: Any
    ) -> Generator[Delta, None, None]:
        deltas = self.llm.stream_chat(
            [*self._told, *before, *added],
            think=self.think,
            response_format=self.response_format,
            tools=self._functions,
            **{**self.options, **changed},
        )
        return self._listen([*before, *added], deltas, attached)

    def _listen(
        self, messages: list[Message], deltas: Stream[Delta, Reply], attached: bool
    ) -> Generator[Delta, None, None]:
        started = time.perf_counter()
        first = 0.0
        content, reasoning = "", ""
        completion = thoughts = 0
        reply: Reply | None = None
        self.last = None
        try:
            for delta in deltas:
                if delta.tokens and not completion:
                    first = time.perf_counter()
                content += delta.content
                reasoning += delta.reasoning
                completion += len(delta.tokens)
                thoughts += delta.reasoning_tokens
                reply = delta.reply
                yield delta
        finally:
            deltas.close()
            self.total += completion
            if reply is not None:
                self.messages = [*messages, reply.message]
                self.last = _outcome(reply)
            elif content:
                self.messages = [*messages, Message("assistant", content, reasoning or None)]
                decode = time.perf_counter() - first
                counted = self.count()
                self.last = Outcome("cancelled", completion, thoughts, counted, first - started, decode)
            if attached and self.last is not None:
                self.attached = []

    def count(self) -> int:
        """Tokens of the conversation, with the beginning of the next answer."""
        return len(self.prompt()) if self.conversation else 0

    @property
    def is_full(self) -> bool:
        """Whether the last answer ended because the context did."""
        last = self.last
        return last is not None and last.finish_reason == "length" and last.context >= self.llm.context

    def clear(self) -> None:
        self.messages = []
        self.attached = []
        self.last = None

    def switch(self, llm: LLM) -> None:
        """Continues with another model."""
        self.llm = llm
        self.last = None

    def set(self, name: str, text: str) -> None:
        """Changes a setting; "default" resets it. Errors are the library's."""
        if text == "default" or (name == "max_tokens" and text == "-1"):  # as llama.cpp has it
            self.options.pop(name, None)
            return
        kind = SETTINGS[name]
        try:
            value = kind(text)
        except ValueError:
            what = "a whole number" if kind is int else "a number"
            raise RequestError(f"{name} must be {what}, and is {text!r}") from None
        self._check({name: value})
        self.options[name] = value

    def _check(self, settings: dict[str, Any]) -> None:
        Options.of(settings).adjusted(self.llm.sampling)
        if (most := settings.get("max_tokens")) is not None and most < 1:
            raise RequestError(f"max_tokens must be at least 1, and is {most}")

    def setting(self, name: str) -> str:
        """A setting's value, and whether it is the default."""
        if name in self.options:
            value = self.options[name]
            return f"{value:,}" if name == "max_tokens" else number(value)
        if name == "max_tokens":
            return "as many as fit"
        if name == "seed":
            return "a fresh one for each answer"
        return f"{number(getattr(self.llm.sampling, name))} (default)"

    def set_thinking(self, how: Any) -> None:
        """Switches reasoning. Unknown words are refused, and so is reasoning if the model has none."""
        if Thinking.of(how).on and not self.llm.conversations.thinks:
            raise RequestError("this model does not think: its chat template has no thoughts")
        self.think = how


def number(value: float) -> str:
    """A number in its shortest form: a file often has the float32 nearest to it."""
    if isinstance(value, int):
        return str(value)
    return str(np.float32(value)) if float(np.float32(value)) == value else str(value)


def _outcome(reply: Reply) -> Outcome:
    usage, timings = reply.usage, reply.timings
    return Outcome(
        reply.finish_reason,
        usage.completion,
        reply.reasoning_tokens,
        usage.prompt + usage.completion,
        timings.prefill,
        timings.decode,
        usage.prompt,
        usage.cached,
        usage.accepted,
        reply.seed,
    )
