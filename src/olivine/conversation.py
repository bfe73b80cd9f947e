"""Chat prompts: from messages, tools and options to the tokens of a request."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np

from olivine.chat.grammar import Grammar, Grammars, Thought, either, response_grammar
from olivine.chat.messages import Media, Message, Messages, Tools, messages_of, tools_of
from olivine.chat.parsers import Format
from olivine.chat.placeholders import Slot, expanded, with_soft_tokens
from olivine.chat.prefix import Prefix
from olivine.chat.template import ChatTemplate, Prompt, template_source
from olivine.chat.thinking import Thinking
from olivine.chat.tool_grammar import calls_grammar
from olivine.checks import INT32, flag, integer, optional, refuse_unknown, refused
from olivine.engine import MediaBlock, ThoughtTokens
from olivine.errors import RequestError
from olivine.formats import Checkpoint
from olivine.options import GenerateKwargs
from olivine.perception import MediaOptions, Perception
from olivine.tokenizer import Tokenizer

if TYPE_CHECKING:
    from typing_extensions import Unpack

_BUDGET = optional(integer("0 or more", 0, INT32))
# Conversations whose answers are recognized when they come back in a prompt, and their tokens in all (5 MB).
REMEMBERED = 512
REMEMBERED_TOKENS = 1 << 20


class RenderKwargs(TypedDict, total=False):
    """The keywords of `LLM.render`: what a chat prompt is made of beside its messages."""

    tools: Tools | None
    tool_choice: Any
    think: Any
    template_options: Mapping[str, Any] | None
    continue_final_message: bool | None


class PromptKwargs(RenderKwargs, total=False):
    """The keywords of a chat that `generate` does not have."""

    parallel_tool_calls: bool
    response_format: Any
    thinking_budget: int | None
    image_tokens: int | None
    pan_and_scan: bool
    video_frames: int | None


PROMPT_OPTIONS = PromptKwargs.__optional_keys__


class ChatKwargs(PromptKwargs, GenerateKwargs, total=False):
    """The keywords of `LLM.chat`, for type checkers and editors."""


@dataclass(frozen=True)
class ChatRequest:
    """A conversation, ready to be answered."""

    prompt: Prompt
    tokens: list[int]
    generated: list[bool]
    tools: dict[str, Any]  # the schemas of the functions that may be called, by name
    thinking: bool  # the prompt has opened a thought
    continued: bool  # the answer continues a text or a thought of the prompt
    grammar: Grammar | None
    several: bool = True  # whether the answer may have more than one call
    required: bool = False  # a grammar makes its calls, and nothing else
    thought: ThoughtTokens | None = None  # None: there is none that the engine could see
    media: tuple[MediaBlock, ...] = ()


@dataclass(frozen=True)
class _ToolChoice:
    """The tools to declare, and those of which one must be called; `named`: exactly once."""

    declared: list[dict[str, Any]]
    required: list[dict[str, Any]]
    named: bool = False


@dataclass(frozen=True)
class _Rendered:
    """A rendered conversation, with what its answer depends on."""

    prompt: Prompt
    prefix: Prefix | None
    tools: _ToolChoice
    thinking: Thinking
    media: list[Media]


def open_conversations(
    checkpoint: Checkpoint,
    tokenizer: Tokenizer,
    vocabulary: int,
    refuse_long: Callable[[str], None],
    variables: Mapping[str, Any],
    perception: Perception | None = None,
) -> Conversations:
    """The conversations of a model, by its own template or by ours for its family. `refuse_long` raises where
    a prompt is too long to be encoded; `variables` are the model's own for its template."""
    source = template_source(checkpoint.chat_template, checkpoint.architecture, checkpoint.prompt_files)
    special = {
        "bos_token": tokenizer.bos_id,
        "eos_token": tokenizer.eos_id,
        "pad_token": tokenizer.pad_id,
        "unk_token": tokenizer.unk_id,
    }
    names = {name: tokenizer.token(i) for name, i in special.items() if i is not None}
    given = {**names, **variables}, tokenizer.guarded_names
    tool_source = checkpoint.tool_template
    with_tools = None if tool_source is None else ChatTemplate(tool_source, *given)
    template = ChatTemplate(source, *given, with_tools=with_tools)
    return Conversations(template, tokenizer, vocabulary, refuse_long, perception)


class Conversations:
    """What one model needs to chat: its template, its format of thoughts and calls, its grammars."""

    def __init__(
        self,
        template: ChatTemplate,
        tokenizer: Tokenizer,
        vocabulary: int,
        refuse_long: Callable[[str], None] = lambda text: None,
        perception: Perception | None = None,
    ) -> None:
        self.template = template
        self.grammars = Grammars(tokenizer, vocabulary)
        self._tokenizer = tokenizer
        self._refuse_long = refuse_long
        self._perception = perception  # None: the model takes text only
        self._memory: list[tuple[np.ndarray, np.ndarray]] = []  # tokens, and which of them were generated
        # Reentrant: a stream that is dropped remembers its answer, and garbage collection may run anywhere.
        self._lock = threading.RLock()

    def check_media(self, media: Sequence[Media]) -> None:
        """Refuses what the model does not take, before anything is decoded."""
        if self._perception is not None:
            self._perception.check(media)
        elif media:
            raise RequestError("this model takes text only: leave images, sounds and videos out")

    @property
    def format(self) -> Format:
        """How the model writes thoughts and calls."""
        return (self.template.with_tools or self.template).format

    def prepare(
        self,
        messages: Messages,
        *,
        parallel_tool_calls: bool = True,
        response_format: Any = None,
        thinking_budget: int | None = None,
        media: MediaOptions | None = None,
        paths: bool = True,
        **options: Unpack[RenderKwargs],
    ) -> ChatRequest:
        """The prompt of a conversation, and what its answer may be.

        If the last message is an assistant's, the prompt ends inside of it, and the answer continues it.
        Without `paths`, a text that stands for a medium is never the name of a file.
        """
        budget = _BUDGET("thinking_budget", thinking_budget)
        if budget == 0:
            options["think"] = False
        rendered = self._render(messages, **options)
        prefix, tools = rendered.prefix, rendered.tools
        begun = prefix.in_thought if prefix else self.format.opens_thought(rendered.prompt.text)
        sources = self._allowed(response_format, rendered, parallel_tool_calls)
        thought = self._thought(rendered, begun)
        if sources and begun and thought is None:  # no grammar could see where the thought ends
            rendered, begun = replace(rendered, prompt=self._past_the_thought(rendered.prompt)), False
        grammar = self._compiled(sources, thought)
        may_think = begun or (self.thinks and rendered.thinking.on is not False)
        if budget is not None and thought is None and may_think:
            raise RequestError(
                f"this model's thoughts cannot be limited: {' and '.join(self.format.thought)} are no tokens "
                "of its vocabulary; leave thinking_budget out",
                param="thinking_budget",
            )
        tokens, blocks = self._tokens(rendered, media or MediaOptions(), paths)
        functions = [tool["function"] for tool in tools.declared]
        # A required call stands behind the prefix as it stands at the beginning of an answer.
        continued = prefix is not None and (begun if prefix.in_thought else not tools.required)
        return ChatRequest(
            rendered.prompt,
            tokens,
            self._generated(tokens),
            {each["name"]: each.get("parameters") for each in functions},
            begun,
            continued,
            grammar,
            parallel_tool_calls,
            bool(tools.required),
            self._thought_tokens(thought, budget, grammar is not None),
            blocks,
        )

    def _allowed(self, response_format: Any, rendered: _Rendered, several: bool) -> list[str]:
        """What the answer may be, in llguidance's form, and what it may be if that cannot be kept; nothing
        where any text will do. A form beside tools is that of an answer without calls, but an answer that the
        prompt has begun is none of calls."""
        source, tools, prefix = response_grammar(response_format), rendered.tools, rendered.prefix
        answered = prefix is not None and not prefix.in_thought
        if tools.required:
            return [calls_grammar(self.format, tools.required, self.markers, several and not tools.named)]
        if source is None or answered or not tools.declared:
            return [] if source is None else [source]
        # Nobody asked that these calls keep their schemas: one that no grammar keeps is no reason to refuse.
        anything = {"parameters": {"type": "object"}}
        free = [{"function": {**tool["function"], **anything}} for tool in tools.declared]
        return [
            either(source, calls_grammar(self.format, declared, self.markers, several))
            for declared in (tools.declared, free)
        ]

    def _compiled(self, sources: Sequence[str], thought: Thought | None) -> Grammar | None:
        """The first of these grammars that can be kept."""
        for source in sources[:-1]:
            with suppress(RequestError):
                return self.grammars.compile(source, thought)
        return self.grammars.compile(sources[-1], thought) if sources else None

    def _tokens(
        self, rendered: _Rendered, options: MediaOptions, paths: bool
    ) -> tuple[list[int], tuple[MediaBlock, ...]]:
        """The tokens of a prompt, and the media among them."""
        self._refuse_long(rendered.prompt.text)
        tokens, slots = self._encoded(rendered, options, paths=paths)
        if self._perception is None or not slots:
            return tokens, ()
        tokens, places = with_soft_tokens(tokens, slots, self._tokenizer)
        return tokens, self._perception.blocks(places, len(tokens))

    def _encoded(
        self, rendered: _Rendered, options: MediaOptions, **decoding: bool
    ) -> tuple[list[int], list[Slot]]:
        """The tokens of a prompt without those of its media, which are decoded, and the slots for them."""
        prompt, slots = rendered.prompt, list[Slot]()
        if self._perception is not None and rendered.media:
            insets = self._perception.insets(rendered.media, options, **decoding)
            prompt, slots = expanded(prompt, insets)
        return self._tokenizer.encode_rendered(prompt.text, prompt.literal), slots

    def count(self, messages: Messages, **options: Unpack[RenderKwargs]) -> int:
        """How many tokens the prompt of a conversation has, also where the context does not hold them. A text
        that stands for a medium is never the name of a file."""
        refuse_unknown(options, RenderKwargs.__annotations__)
        rendered = self._render(messages, **options)
        tokens, slots = self._encoded(rendered, MediaOptions(), paths=False, counting=True)
        return len(tokens) + sum(part.tokens for slot in slots for part in slot.parts)

    def prompt(self, messages: Messages, **options: Unpack[RenderKwargs]) -> Prompt:
        """The prompt of a conversation, as `prepare` has it."""
        refuse_unknown(options, RenderKwargs.__annotations__)
        return self._render(messages, **options).prompt

    def _render(
        self,
        messages: Messages,
        *,
        tools: Tools | None = None,
        tool_choice: Any = "auto",
        think: Any = None,
        template_options: Mapping[str, Any] | None = None,
        continue_final_message: bool | None = None,
    ) -> _Rendered:
        chosen = _chosen(tools_of(tools), tool_choice)
        thinking = self._thinking(think)
        given = messages_of(messages)
        prefix = self._prefix(given[-1], optional(flag)("continue_final_message", continue_final_message))
        prompt = self._prompt(given, prefix, chosen.declared, thinking, template_options)
        return _Rendered(prompt, prefix, chosen, thinking, [each for one in given for each in one.media])

    def _prefix(self, last: Message, wanted: bool | None) -> Prefix | None:
        """The beginning of the answer, if the last message is one. `wanted`: whether it must be, or not."""
        prefix = Prefix.of(last, self.format) if wanted is not False else None
        if prefix is None:
            if wanted:
                raise RequestError(
                    "continue_final_message: the last message is no text of the assistant's that an answer "
                    "could continue",
                    param="messages",
                )
            return None
        if self.thinks:
            return prefix
        if prefix.in_thought:
            raise RequestError("this model does not think: it cannot continue the thought in messages[-1]")
        return replace(prefix, reasoning=None)

    def _prompt(
        self,
        messages: list[Message],
        prefix: Prefix | None,
        tools: list[dict[str, Any]],
        thinking: Thinking,
        options: Mapping[str, Any] | None,
    ) -> Prompt:
        variables = _variables(options)
        self.check_media([each for message in messages for each in message.media])
        *before, last = messages
        if prefix is not None:
            return self.template.continued(before, tools, thinking, prefix, variables)
        if last.role == "assistant" and not last.tool_calls and not (last.text or last.reasoning):
            messages = before  # an answer that begins with nothing
        return self.template.prompt(messages, tools, thinking, variables)

    @property
    def thinks(self) -> bool:
        """Whether the template has thoughts."""
        return self.template.thinks

    def _thinking(self, think: Any) -> Thinking:
        """How to think, in the terms of this template."""
        thinking = Thinking.of(think).for_template(self.template.variables)
        if thinking.on and not self.thinks:
            raise RequestError(
                "this model does not think: its chat template has no thoughts; leave think out", param="think"
            )
        return thinking

    def _thought(self, rendered: _Rendered, begun: bool) -> Thought | None:
        """The thought before a grammar begins; None where its markers are no tokens."""
        opens, closes = self.format.thought
        if opens not in self.markers or closes not in self.markers:
            return None
        possible = (
            rendered.thinking.on is not False
            and rendered.prefix is None
            and not rendered.prompt.text.rstrip().endswith(closes)
            and opens in self.template.source
        )
        return Thought(self.markers[opens], self.markers[closes], begun, possible)

    def _past_the_thought(self, prompt: Prompt) -> Prompt:
        """A prompt that ends in a thought, behind the end of it."""
        return replace(prompt, text=f"{prompt.text}\n{self.format.thought[1]}{self.format.after_thought}")

    def _thought_tokens(
        self, thought: Thought | None, budget: int | None, constrained: bool
    ) -> ThoughtTokens | None:
        """The thought as the engine sees it. A grammar begins right behind the closing marker."""
        if thought is None or not (thought.open or thought.possible):
            return None
        after = "" if constrained else self.format.after_thought
        before, after_it = (self._tokenizer.encode_after(text) for text in ("\n", after))
        closing = (*before, thought.closes, *after_it)
        return ThoughtTokens(thought.opens, thought.closes, closing, thought.open, budget)

    def grammar(self, response_format: Any) -> Grammar:
        """The grammar of a `response_format`."""
        source = response_grammar(response_format)
        if source is None:
            raise RequestError("any text will do: that needs no grammar")
        return self.grammars.compile(source)

    @cached_property
    def markers(self) -> dict[str, int]:
        """The format's markers that are tokens of this vocabulary."""
        found = {}
        for name in self.format.markers:
            token = self._tokenizer.id_of(name)
            if token is not None and self._tokenizer.token_bytes(token) == name.encode():
                found[name] = token
        return found

    @cached_property
    def marker_names(self) -> dict[int, str]:
        """`markers` by token."""
        return {token: name for name, token in self.markers.items()}

    def remember(self, request: ChatRequest, tokens: Sequence[int]) -> None:
        """Notes that these tokens were generated after that prompt: a later prompt may contain them."""
        if not tokens:
            return
        whole = np.array([*request.tokens, *tokens], np.int32)
        kinds = np.array([*request.generated, *[True] * len(tokens)], bool)

        def earlier(known: np.ndarray, generated: np.ndarray) -> bool:
            """Whether it is the same conversation before this answer."""
            size = len(known)
            return np.array_equal(known, whole[:size]) and np.array_equal(generated, kinds[:size])

        with self._lock:
            memory = [each for each in self._memory if not earlier(*each)][-REMEMBERED + 1 :]
            memory.append((whole, kinds))
            spare = sum(len(each[0]) for each in memory) - REMEMBERED_TOKENS
            while spare > 0:
                spare -= len(memory.pop(0)[0])
            self._memory = memory

    def _generated(self, tokens: Sequence[int]) -> list[bool]:
        """Which tokens of a prompt this model generated: only then can the prefix cache supply them."""
        found = np.zeros(len(tokens), bool)
        ids = np.array(tokens, np.int32)
        longest = 0
        with self._lock:
            known = self._memory  # never changed in place
        for whole, kinds in known:
            size = min(len(whole), len(ids))
            differing = np.flatnonzero(whole[:size] != ids[:size])
            common = int(differing[0]) if differing.size else size
            if common > longest:
                longest = common
                found[:common] = kinds[:common]
        return found.tolist()


def _variables(options: Any) -> Mapping[str, Any]:
    """Further variables of a template."""
    if options is None:
        return {}
    if not isinstance(options, Mapping) or not all(isinstance(name, str) for name in options):
        raise refused("template_options", "a mapping from the names of variables to their values", options)
    return options


def _chosen(tools: list[dict[str, Any]], choice: Any) -> _ToolChoice:
    """What `tool_choice` means for these tools."""
    if isinstance(choice, Mapping):
        kind = choice.get("type")
        if kind in ("auto", "none", "any", "required"):
            choice = kind
        else:
            inner = choice.get("function", choice)
            name = inner.get("name") if isinstance(inner, Mapping) else None
            named = [tool for tool in tools if tool["function"]["name"] == name]
            if not named:
                raise RequestError(f"tool_choice names {str(name)[:60]!r}, which is not among the tools")
            return _ToolChoice(tools, named, named=True)
    match choice:
        case None | "auto":
            return _ToolChoice(tools, [])
        case "none":
            return _ToolChoice([], [])
        case "required" | "any":
            if not tools:
                raise RequestError("a tool call is required, and there are no tools")
            return _ToolChoice(tools, tools)
        case _:
            raise RequestError(
                f"tool_choice is {str(choice)[:60]!r}; known: auto, none, required, or a function"
            )
