"""The state of a conversation: what was said, how to sample, what the last answer took. Knows no terminal."""

from __future__ import annotations

import time
from collections.abc import Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from olivine.chat.messages import Message
from olivine.chat.thinking import Thinking
from olivine.completion import Options
from olivine.errors import RequestError

if TYPE_CHECKING:
    from olivine.conversation import Delta, Reply
    from olivine.llm import LLM

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
    """What one answer took. Of an answer that was interrupted, nobody counted the cached tokens."""

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

    def __init__(self, llm: LLM, *, system: str | None = None, think: Any = None, **options: Any) -> None:
        Thinking.of(think)  # refuses what it does not know
        self.llm = llm
        self.system = system
        self.think = think
        self.messages: list[Message] = []
        self.attached: list[str] = []  # texts that go before the next question
        self.options = {name: value for name, value in options.items() if value is not None}
        self._check({name: value for name, value in self.options.items() if name in SETTINGS})
        self.last: Outcome | None = None
        self.total = 0  # tokens generated

    @property
    def conversation(self) -> list[Message]:
        """Everything that was said, the system's message first."""
        return [*([Message("system", self.system)] if self.system else []), *self.messages]

    def ask(self, text: str) -> Generator[Delta, None, None]:
        """The answer to a text, bit by bit. Leaving the loop stops it, and keeps what was said.

        A question that got no answer at all is not kept.
        """
        question = self._question(text)
        messages = [*self.conversation, question]
        deltas = self.llm.stream_chat(messages, think=self.think, **self.options)
        return self._listen(question, deltas)

    def prompt(self, text: str | None = None) -> list[int]:
        """The tokens that the model reads of the conversation, and of a question after it."""
        messages = [*self.conversation, *([self._question(text)] if text is not None else [])]
        return self.llm.conversations.ask(messages, think=self.think).tokens

    def _question(self, text: str) -> Message:
        return Message("user", "\n\n".join([*self.attached, text]))

    def _listen(
        self, question: Message, deltas: Generator[Delta, None, None]
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
                self.messages += [question, reply.message]
                self.attached = []
                self.last = _outcome(reply)
            elif content:
                self.messages += [question, Message("assistant", content, reasoning or None)]
                self.attached = []
                decode = time.perf_counter() - first
                counted = self.count()
                self.last = Outcome("cancelled", completion, thoughts, counted, first - started, decode)

    def count(self) -> int:
        """Tokens of the conversation, with the beginning of the next answer."""
        return len(self.llm.conversations.ask(self.conversation).tokens) if self.conversation else 0

    def clear(self) -> None:
        self.messages = []
        self.last = None

    def set(self, name: str, text: str) -> None:
        """Changes a setting; "default" takes it back. What the library refuses is refused in its words."""
        if text == "default":
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
        """A setting's value, and whether it is the model's own."""
        if name in self.options:
            return f"{self.options[name]:,}" if name == "max_tokens" else str(self.options[name])
        if name == "max_tokens":
            return "as many as fit"
        if name == "seed":
            return "a fresh one for each answer"
        return f"{getattr(self.llm.sampling, name)} (the model's default)"

    def set_thinking(self, text: str) -> None:
        Thinking.of(text)
        self.think = text


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
