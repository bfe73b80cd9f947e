"""What a chat format is: how a family of models writes thoughts and tool calls. Each has its own module."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from olivine.chat.parsers.rules import Rules
from olivine.chat.parsers.scanner import Scanner

TemplateMessages = list[dict[str, Any]]


@dataclass(frozen=True)
class Format:
    """A chat format. The generic code asks it, and never which one it is."""

    name: str
    calls: Callable[[Collection[str], bool], Scanner]  # reads a call of one of these functions; see there
    # Writes the grammar of calls: adds a rule for each function, and gives the rules' names.
    call_rules: Callable[[Rules, Sequence[Mapping[str, Any]]], list[str]]
    between_calls: str = ""
    call: tuple[str, str] | None = None  # markers around a call; the second may be empty
    brackets: tuple[str, str] | None = None  # of all calls: the markers are around these, and not each call
    thought: tuple[str, str] = ("<think>", "</think>")
    channel: str = ""  # a word behind the opening marker of a thought
    answer: tuple[str, str] | None = None  # markers around the answer
    after_thought: str = "\n\n"  # between its closing marker and the answer
    stray_thought_markers: bool = False  # the model writes some at wrong places: they are dropped
    quote: str | None = None  # a marker inside of calls
    bare: bool = False  # calls have no markers
    # Reads calls that are JSON alone, at the beginning of an answer, or in a fenced block.
    loose: Callable[[Collection[str], bool, str], Scanner] | None = None
    # The variable of templates that have no `tools`: functions; None: `adapt` puts them into the messages.
    tools_variable: str | None = "tools"
    # Messages in the form that a template (its source) takes them, beside these tools; None: as they are.
    adapt: Callable[[str, TemplateMessages, Sequence[Mapping[str, Any]]], TemplateMessages] | None = None
    # A prompt that ends with the first text has no beginning of an answer: the second text is that.
    unopened_answer: tuple[str, str] | None = None

    @property
    def markers(self) -> tuple[str, ...]:
        return tuple(filter(None, (*self.thought, *(self.call or ()), *(self.answer or ()), self.quote)))

    def opens_thought(self, prompt: str) -> bool:
        """Whether a prompt ends with the beginning of a thought."""
        opens = self.thought[0]
        return prompt.rstrip().endswith((opens, opens + self.channel))
