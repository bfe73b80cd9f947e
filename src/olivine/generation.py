"""Generations of one model: from a prompt or messages and their options to a token stream."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from olivine.checks import INT32, integer
from olivine.completion import Completion, Piece, TextConsumer
from olivine.engine import Engine, Generate, MediaBlock, Request, Sampling, ThoughtTokens
from olivine.errors import RequestError
from olivine.options import GenerateKwargs, Options
from olivine.prompts import Prompt, PromptEncoder
from olivine.streaming import Stream, Tell
from olivine.token_stream import Consumer, P, R, TokenStream
from olivine.tokenizer import Tokenizer

if TYPE_CHECKING:  # at run time not before the first chat: it imports Jinja
    from olivine.chat.messages import Messages
    from olivine.conversation import ChatKwargs, ChatRequest, Conversations
    from olivine.reply import Delta, Reply

_N = integer("at least 1", 1, INT32)


class Generations:
    """Submits generations to an engine."""

    def __init__(
        self,
        engine: Engine,
        tokenizer: Tokenizer,
        prompts: PromptEncoder,
        sampling: Sampling,
        reproducible: bool,
    ) -> None:
        self._engine = engine
        self._tokenizer = tokenizer
        self._prompts = prompts
        self._sampling = sampling
        self._reproducible = reproducible

    # ---- text

    def text(
        self, prompt: Prompt, options: GenerateKwargs, tell: Tell | None = None
    ) -> TokenStream[Piece, Completion]:
        """The text that follows a prompt. `tell` gets the updates, if it is there, instead of the ticket."""
        return self._text(prompt, Options.of(options), tell)

    def texts_of(
        self, prompt: Prompt, options: GenerateKwargs, listeners: Sequence[Tell]
    ) -> list[TokenStream[Piece, Completion]]:
        """A text for each listener, all of the same prompt."""
        chosen = Options.of(options)
        encoded = self._prompts.encode(prompt, parse_special=chosen.parse_special)
        return _all(partial(self._text, encoded, chosen, tell, i) for i, tell in enumerate(listeners))

    def texts(
        self, prompts: Sequence[Prompt], n: int, options: GenerateKwargs
    ) -> Iterator[Stream[Piece, Completion]]:
        """`n` texts of each prompt; each is submitted when the iterator comes to it."""
        n = _N("n", n)
        if isinstance(prompts, str | Mapping) or not isinstance(prompts, Iterable):
            raise RequestError("generate_many takes a list of prompts: put the one that you have in a list")
        chosen = Options.of(options)
        return (Stream(self._text(prompt, chosen, index=i)) for prompt in prompts for i in range(n))

    def _text(
        self, prompt: Prompt, options: Options, tell: Tell | None = None, index: int = 0
    ) -> TokenStream[Piece, Completion]:
        return self._submit(prompt, options, TextConsumer(options.stop_strings), tell, index)

    # ---- chat

    def chat(
        self,
        conversations: Conversations,
        messages: Messages,
        options: ChatKwargs,
        tell: Tell | None = None,
    ) -> TokenStream[Delta, Reply]:
        """The answer to a conversation."""
        return self._answer(conversations, *self._prepared(conversations, messages, options), tell)

    def chats_of(
        self,
        conversations: Conversations,
        messages: Messages,
        options: ChatKwargs,
        listeners: Sequence[Tell],
    ) -> list[TokenStream[Delta, Reply]]:
        """An answer for each listener, all to the same conversation."""
        request, chosen = self._prepared(conversations, messages, options, paths=False)
        return _all(
            partial(self._answer, conversations, request, chosen, tell, i) for i, tell in enumerate(listeners)
        )

    def chats(
        self, conversations: Conversations, several: Sequence[Messages], n: int, options: ChatKwargs
    ) -> Iterator[Stream[Delta, Reply]]:
        """`n` answers to each of several conversations; each is submitted when the iterator comes to it."""
        n = _N("n", n)
        if isinstance(several, str | Mapping) or not isinstance(several, Iterable):
            raise RequestError("chat_many takes a list of conversations: put the one that you have in a list")
        prepared = (self._prepared(conversations, messages, options) for messages in several)
        return (
            Stream(self._answer(conversations, *request, index=i)) for request in prepared for i in range(n)
        )

    def _prepared(
        self,
        conversations: Conversations,
        messages: Messages,
        options: Mapping[str, Any],
        paths: bool = True,
    ) -> tuple[ChatRequest, Options]:
        """A conversation ready to be answered, and the options of the generation. Without `paths`, the
        conversation comes from somebody who may not read this machine's files."""
        from olivine.conversation import PROMPT_OPTIONS
        from olivine.perception import MEDIA_OPTIONS, MediaOptions

        self._engine.check_process()
        of_prompt: Any = {name: value for name, value in options.items() if name in PROMPT_OPTIONS}
        rest = {name: value for name, value in options.items() if name not in PROMPT_OPTIONS}
        chosen = Options.of({"max_tokens": None, **rest})
        if chosen.constraint is not None or chosen.generated is not None:
            raise RequestError("a chat has its own constraint and its own marks: give response_format")
        media = {name: of_prompt.pop(name) for name in MEDIA_OPTIONS if name in of_prompt}
        request = conversations.prepare(messages, media=MediaOptions.of(media), paths=paths, **of_prompt)
        return request, replace(chosen, generated=request.generated, constraint=request.grammar)

    def _answer(
        self,
        conversations: Conversations,
        request: ChatRequest,
        options: Options,
        tell: Tell | None = None,
        index: int = 0,
    ) -> TokenStream[Delta, Reply]:
        from olivine.reply import ChatConsumer

        consumer = ChatConsumer(conversations, request, options.stop_strings)
        return self._submit(request.tokens, options, consumer, tell, index, request.thought, request.media)

    # ---- both

    def _submit(
        self,
        prompt: Prompt,
        options: Options,
        consumer: Consumer[P, R],
        tell: Tell | None,
        index: int,
        thought: ThoughtTokens | None = None,
        media: Sequence[MediaBlock] = (),
    ) -> TokenStream[P, R]:
        """Submits a generation to the engine: the `index`-th of several, whose seeds follow each other."""
        self._engine.check_process()  # before any lock that a thread of the parent's may have held
        sampling = options.adjusted(self._sampling)
        if options.seed is None and options.sampling is None:
            sampling = replace(sampling, seed=random_seed())
        seed = (sampling.seed + index) % (1 << 64)
        # A grammar that is through lets only them come: without them its text would go on behind its end.
        ends = options.constraint is not None or not options.ignore_eos
        own = self._tokenizer.stop_ids if ends else ()
        tokens = self._prompts.encode(prompt, parse_special=options.parse_special)
        job = Generate(
            replace(sampling, seed=seed),
            options.max_tokens,
            options.min_tokens,
            (*own, *options.stop_tokens),
            options.logprobs,
            options.new_constraint(),
            thought,
        )
        generated = None if self._reproducible else options.generated
        request = Request(tokens, job, generated, options.timeout, options.priority, options.client, media)
        return TokenStream(
            self._engine.submit(request, tell),
            self._tokenizer,
            consumer,
            seed=seed,
            logprobs=options.logprobs is not None,
            stop_on_repetition=options.stop_on_repetition,
        )


def _all(starts: Iterable[Callable[[], TokenStream[P, R]]]) -> list[TokenStream[P, R]]:
    """Several submissions, of which all succeed, or none runs."""
    streams: list[TokenStream[P, R]] = []
    try:
        for start in starts:
            streams.append(start())
    except BaseException:
        for stream in streams:
            stream.abandon()
        raise
    return streams


def random_seed() -> int:
    """A fresh seed from the operating system, to be reported so that any output can be had again."""
    return int.from_bytes(os.urandom(8), "little")
