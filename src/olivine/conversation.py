"""Chat: from messages to a prompt, and from what comes back to content, reasoning and tool calls."""

from __future__ import annotations

import secrets
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np

from olivine.chat.grammar import Grammar, Grammars, Thought, response_grammar
from olivine.chat.messages import Message, Messages, ToolCall, Tools, messages_of, tools_of
from olivine.chat.parsers import CallPiece, CallStart, Content, Event, Parser, Reasoning
from olivine.chat.prefix import Prefix
from olivine.chat.template import ChatTemplate, Prompt, template_source
from olivine.chat.thinking import SWITCHES, Thinking
from olivine.chat.tool_grammar import calls_grammar
from olivine.checks import refused
from olivine.completion import Completion, Piece, StopStrings, TokenLogprob, shortened
from olivine.engine import Ticket, Timings, Usage
from olivine.errors import RequestError
from olivine.formats import Checkpoint
from olivine.tokenizer import Tokenizer

REMEMBERED = 32  # answers whose tokens are known again when they come back in a prompt
OPTIONS = ("tools", "tool_choice", "parallel_tool_calls", "response_format", "think", "template_options")


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


@dataclass(frozen=True)
class Turn:
    """A question, ready to be asked."""

    prompt: Prompt
    tokens: list[int]
    generated: list[bool]
    tools: tuple[str, ...]
    thinking: bool  # the prompt has opened a thought
    continued: bool  # what comes continues a text or a thought of the prompt
    grammar: Grammar | None


def open_conversations(
    checkpoint: Checkpoint,
    tokenizer: Tokenizer,
    vocabulary: int,
    refuse_long: Callable[[str], None],
    variables: Mapping[str, Any],
) -> Conversations:
    """The conversations of a model, by its own template or by ours for its family. `refuse_long` raises where
    a prompt is too long to be encoded; `variables` are the model's own for its template."""
    files = checkpoint.metadata.get("qwen3c.templates")
    source = template_source(checkpoint.chat_template, checkpoint.architecture, files)
    named = {
        "bos": tokenizer.bos_id,
        "eos": tokenizer.eos_id,
        "pad": tokenizer.pad_id,
        "unk": tokenizer.unk_id,
    }
    tokens: dict[str, Any] = {
        f"{name}_token": tokenizer.token(i) for name, i in named.items() if i is not None
    }
    template = ChatTemplate(source, {**tokens, **variables}, tokenizer.guarded_names)
    return Conversations(template, tokenizer, vocabulary, refuse_long)


class Conversations:
    """What one model needs to chat: its template, its notation of calls, its grammars."""

    def __init__(
        self,
        template: ChatTemplate,
        tokenizer: Tokenizer,
        vocabulary: int,
        refuse_long: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.template = template
        self.format = template.format
        self.grammars = Grammars(tokenizer, vocabulary)
        self._tokenizer = tokenizer
        self._refuse_long = refuse_long
        self._memory: deque[tuple[np.ndarray, np.ndarray]] = deque(maxlen=REMEMBERED)
        # Reentrant: a stream that is dropped remembers its answer wherever garbage is collected.
        self._turn = threading.RLock()

    def ask(
        self,
        messages: Messages,
        *,
        tools: Tools | None = None,
        tool_choice: Any = "auto",
        parallel_tool_calls: bool = True,
        response_format: Any = None,
        think: Any = None,
        template_options: Mapping[str, Any] | None = None,
    ) -> Turn:
        """The prompt of a conversation, and what its answer may be.

        If the last message is an assistant's, the prompt ends inside of it, and the answer continues it.
        """
        declared, required, named = _chosen(tools_of(tools), tool_choice)
        thinking = self._thinking(think)
        prompt, prefix = self._prompt(messages_of(messages), declared, thinking, template_options)
        opens, closes = self.format.thought
        begun = prefix.in_thought if prefix else self.format.opens_thought(prompt.text)
        source = response_grammar(response_format)
        if required:
            if source is not None:
                raise RequestError("response_format and a required tool call exclude each other")
            source = calls_grammar(self.format, required, self.markers, parallel_tool_calls and not named)
        grammar = None
        if source is not None:
            thought = None
            if opens in self.markers and closes in self.markers:
                possible = (
                    thinking.on is not False
                    and prefix is None
                    and not prompt.text.rstrip().endswith(closes)
                    and opens in self.template.source
                )
                thought = Thought(self.markers[opens], self.markers[closes], begun, possible)
            grammar = self.grammars.compile(source, thought)
        self._refuse_long(prompt.text)
        tokens = self._tokenizer.encode_rendered(prompt.text, prompt.literal)
        names = tuple(tool["function"]["name"] for tool in declared)
        # A required call stands behind the prefix as it stands at the beginning of an answer.
        continued = prefix is not None and (begun or not required)
        return Turn(prompt, tokens, self._generated(tokens), names, begun, continued, grammar)

    def prompt(
        self,
        messages: Messages,
        *,
        tools: Tools | None = None,
        tool_choice: Any = "auto",
        think: Any = None,
        template_options: Mapping[str, Any] | None = None,
    ) -> Prompt:
        """The prompt of a conversation, as `ask` has it."""
        declared, _, _ = _chosen(tools_of(tools), tool_choice)
        return self._prompt(messages_of(messages), declared, self._thinking(think), template_options)[0]

    def _prompt(
        self,
        messages: list[Message],
        tools: list[dict[str, Any]],
        thinking: Thinking,
        options: Mapping[str, Any] | None,
    ) -> tuple[Prompt, Prefix | None]:
        variables = _variables(options)
        if any(message.media for message in messages):
            raise RequestError("this model is run for text only: leave images, sounds and films out")
        *before, last = messages
        prefix = Prefix.of(last, self.format)
        if prefix is not None:
            if not self.thinks:
                if prefix.in_thought:
                    raise RequestError(
                        "this model does not think: it cannot continue the thought in messages[-1]"
                    )
                prefix = replace(prefix, reasoning=None)
            return self.template.continued(before, tools, thinking, prefix, variables), prefix
        if last.role == "assistant" and not last.tool_calls:
            messages = before  # an answer that begins with nothing
        return self.template.prompt(messages, tools, thinking, variables), None

    @property
    def thinks(self) -> bool:
        """Whether the template speaks of thoughts: by a variable that switches them, or by their markers."""
        return bool(SWITCHES & self.template.variables) or any(
            marker in self.template.source for marker in self.format.thought
        )

    def _thinking(self, think: Any) -> Thinking:
        """How to think, in the terms of this template."""
        thinking = Thinking.of(think).for_template(self.template.variables)
        if thinking.on and not self.thinks:
            raise RequestError(
                "this model does not think: its chat template has no thoughts; leave think out", param="think"
            )
        return thinking

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

    def remember(self, turn: Turn, tokens: Sequence[int]) -> None:
        """These tokens were generated, after that prompt."""
        whole = np.array([*turn.tokens, *tokens], np.int32)
        kinds = np.array([*turn.generated, *[True] * len(tokens)], bool)
        with self._turn:
            self._memory.append((whole, kinds))

    def _generated(self, tokens: Sequence[int]) -> list[bool]:
        """Which tokens of a prompt are answers of ours: only then can the cache take them over."""
        found = np.zeros(len(tokens), bool)
        ids = np.array(tokens, np.int32)
        longest = 0
        with self._turn:
            known = list(self._memory)
        for whole, kinds in known:
            size = min(len(whole), len(ids))
            differing = np.flatnonzero(whole[:size] != ids[:size])
            common = int(differing[0]) if differing.size else size
            if common > longest:
                longest = common
                found[:common] = kinds[:common]
        return found.tolist()


class Answer:
    """Takes one answer apart while it comes."""

    def __init__(
        self,
        conversations: Conversations,
        turn: Turn,
        ticket: Ticket,
        tokenizer: Tokenizer,
        stop: str | Sequence[str],
        seed: int,
    ) -> None:
        self._conversations = conversations
        self._turn = turn
        self._ticket = ticket
        self._seed = seed
        self._names = {token: name for name, token in conversations.markers.items()}
        self._parser = Parser(
            conversations.format,
            turn.tools,
            conversations.markers,
            thinking=turn.thinking,
            continued=turn.continued,
        )
        self._decoder = tokenizer.stream()
        self._stops = StopStrings(stop)
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[tuple[str, str, list[str]]] = []  # id, name, pieces of arguments
        self._tokens: list[int] = []
        self._logprobs: list[TokenLogprob] | None = None
        self._reasoning_tokens = 0
        self._over = False

    def feed(self, piece: Piece) -> Delta:
        """What a piece brings; the last delta has the reply."""
        content, reasoning = "", ""
        calls: list[CallDelta] = []
        tokens: list[int] = []
        thinking = 0
        stopped = False
        for token in piece.tokens:
            tokens.append(token)
            thinking += self._parser.thinking
            said, thought, called, stopped = self._take(self._events(token))
            content, reasoning, calls = content + said, reasoning + thought, calls + called
            if stopped:
                break
        completion = piece.completion
        if completion is not None and not stopped:
            said, thought, called, stopped = self._take(
                [*self._parser.feed(self._decoder.flush()), *self._parser.end()]
            )
            content, reasoning, calls = content + said, reasoning + thought, calls + called
            if not stopped:
                content += self._keep(self._stops.ready(final=True))
        self._tokens += tokens
        logprobs = None
        if piece.logprobs is not None:
            logprobs = piece.logprobs[: len(tokens)]
            self._logprobs = self._logprobs or []
            self._logprobs += logprobs
        self._reasoning_tokens += thinking
        reply = None
        if stopped or completion is not None:
            reply = self._reply(stopped, completion)
        read = {"prefilled": piece.prefilled, "prompt": len(self._turn.tokens)}
        return Delta(
            content, reasoning, calls, tokens, logprobs, reply=reply, reasoning_tokens=thinking, **read
        )

    def leave(self) -> None:
        """The answer is over, or nobody wants more of it: what was said is known again in the next prompt."""
        if not self._over:
            self._over = True
            self._conversations.remember(self._turn, self._tokens)

    def _events(self, token: int) -> list[Event]:
        name = self._names.get(token)
        if name is None:
            return self._parser.feed(self._decoder.push(token))
        return [*self._parser.feed(self._decoder.flush()), *self._parser.mark(name)]

    def _take(self, events: Sequence[Event]) -> tuple[str, str, list[CallDelta], bool]:
        content, reasoning = "", ""
        calls: list[CallDelta] = []
        for event in events:
            match event:
                case Content(text):
                    self._stops.held += text
                    stopped = self._stops.cut()
                    content += self._keep(self._stops.ready(final=stopped))
                    if stopped:
                        return content, reasoning, calls, True
                case Reasoning(text):
                    self._reasoning.append(text)
                    reasoning += text
                case CallStart(name):
                    call_id = f"call_{secrets.token_hex(12)}"
                    calls.append(CallDelta(len(self._calls), call_id, name))
                    self._calls.append((call_id, name, []))
                case CallPiece(text):
                    calls.append(CallDelta(len(self._calls) - 1, arguments=text))
                    self._calls[-1][2].append(text)
        return content, reasoning, calls, False

    def _keep(self, text: str) -> str:
        self._content.append(text)
        return text

    def _reply(self, stopped: bool, completion: Completion | None) -> Reply:
        if stopped:
            self._ticket.cancel("stop")
        self.leave()
        calls = [ToolCall(call_id, name, "".join(pieces)) for call_id, name, pieces in self._calls]
        message = Message("assistant", "".join(self._content), "".join(self._reasoning) or None, calls)
        ended = "stop" if stopped or completion is None else completion.finish_reason
        return Reply(
            message,
            "tool_calls" if calls and ended == "stop" else ended,
            replace(self._ticket.usage, completion=len(self._tokens)),
            replace(self._ticket.timings),
            self._seed,
            self._tokens,
            self._reasoning_tokens,
            self._logprobs,
        )


def _variables(options: Any) -> Mapping[str, Any]:
    """Further variables of a template, if they are some."""
    if options is None:
        return {}
    if not isinstance(options, Mapping) or not all(isinstance(name, str) for name in options):
        raise refused("template_options", "a mapping from the names of variables to their values", options)
    return options


def _chosen(
    tools: list[dict[str, Any]], choice: Any
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], bool]:
    """The tools to declare, those of which one must be called, and whether it is named: then once."""
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
            return tools, named, True
    match choice:
        case None | "auto":
            return tools, [], False
        case "none":
            return [], [], False
        case "required" | "any":
            if not tools:
                raise RequestError("a tool call is required, and there are no tools")
            return tools, tools, False
        case _:
            raise RequestError(
                f"tool_choice is {str(choice)[:60]!r}; known: auto, none, required, or a function"
            )
