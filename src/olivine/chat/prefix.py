"""The beginning of an answer: an assistant's message at the end of a conversation, to be continued."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass

from olivine.chat.messages import Message
from olivine.chat.parsers import Format

# What templates leave as it is, and no text contains.
_END = f"{secrets.randbelow(10**30):030}"
_THOUGHT = f"{secrets.randbelow(10**30):030}"


@dataclass(frozen=True)
class Prefix:
    """The beginning of an answer: a text, an unfinished thought, or a thought and a text."""

    content: str
    reasoning: str | None = None
    in_thought: bool = False

    @classmethod
    def of(cls, message: Message, format: Format) -> Prefix | None:
        """An assistant's message as a prefix; None if it is empty, or has calls."""
        if message.role != "assistant" or message.tool_calls:
            return None
        opens, closes = format.thought
        text = message.text
        if message.reasoning is None and text.lstrip().startswith(opens):  # as models write it
            thought, closed, text = text.lstrip().removeprefix(opens).partition(closes)
            thought = thought.removeprefix(format.channel).lstrip("\n")
            return cls(text.lstrip("\n"), thought.rstrip("\n") if closed else thought, not closed)
        if message.reasoning and not text:
            return cls("", message.reasoning, True)
        return cls(text, message.reasoning and message.reasoning.strip("\n")) if text else None

    @property
    def marked(self) -> Message:
        """The message for the template, with marks where the prefix and its thought end."""
        if self.in_thought:
            return Message("assistant", "", f"{self.reasoning}{_END} ")
        return Message("assistant", f"{self.content}{_END} ", self.reasoning and self.reasoning + _THOUGHT)

    def cut(self, rendered: str) -> str | None:
        """The rendered text up to the mark; None if the template left the prefix or its thought out.

        A template that trims messages took the space behind the mark: the prefix is trimmed then, too.
        """
        before, mark, after = rendered.rpartition(_END)
        if not mark or (self.reasoning and not self.in_thought and _THOUGHT not in before):
            return None
        return (before if after.startswith(" ") else before.rstrip()).replace(_THOUGHT, "")

    def behind(self, prompt: str, format: Format, hide: Callable[[str], str]) -> str:
        """The prefix as the model would have written it behind a prompt."""
        opens, closes = format.thought
        opened = format.opens_thought(prompt)
        text = prompt
        if self.reasoning is not None:
            text += ("" if opened else f"{opens}{format.channel}\n") + hide(self.reasoning)
        if not self.in_thought and (opened or self.reasoning is not None):
            text += f"\n{closes}{format.after_thought}"
        return text + hide(self.content)
