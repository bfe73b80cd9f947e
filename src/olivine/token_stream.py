"""From a request's updates to pieces of its output. Each token is decoded once; a consumer makes the pieces.

Two consumers exist: `completion.TextConsumer` (plain text) and `reply.ChatConsumer` (content, reasoning and
tool calls).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Generic, NamedTuple, Protocol, TypeVar

from olivine.backends import TokenLogprobs
from olivine.engine import Finish, Ticket, Timings, Update, Usage
from olivine.repetition import Repetition
from olivine.tokenizer import Tokenizer

P = TypeVar("P")  # a piece
R = TypeVar("R")  # the result, which the last piece carries
P_co = TypeVar("P_co", covariant=True)
R_co = TypeVar("R_co", covariant=True)


@dataclass(frozen=True)
class Alternative:
    """A token that might have come, and its natural log-probability."""

    token: int
    text: str
    logprob: float


@dataclass(frozen=True)
class TokenLogprob(Alternative):
    """A token that came, and the likeliest ones in its place."""

    top: tuple[Alternative, ...] = ()
    thought: bool = False  # it is of a thought, and not of the answer


class Finished(NamedTuple):
    """How a generation ended, and what it took."""

    reason: Finish
    tokens: list[int]
    usage: Usage
    timings: Timings
    seed: int
    logprobs: list[TokenLogprob] | None


class Consumer(Protocol[P_co, R_co]):
    """Makes pieces of text that arrives token by token.

    `feed`, `mark` and `end` return True where a stop string is complete: no text follows it.
    """

    @property
    def markers(self) -> Mapping[int, str]:
        """The tokens that go to `mark`."""
        ...

    @property
    def result(self) -> R_co | None:
        """What the last piece carries; None before it."""
        ...

    def feed(self, text: str, /) -> bool:
        """Takes the text of one token, perhaps empty: a character may take several tokens."""
        ...

    def mark(self, text: str, name: str) -> bool:
        """Takes a marker token, and the text left from the tokens before it."""
        ...

    def end(self, text: str) -> bool:
        """The output is over; `text` is left from its last tokens."""
        ...

    def piece(
        self,
        tokens: list[int],
        logprobs: list[TokenLogprob] | None,
        prefilled: int,
        finished: Finished | None,
    ) -> P_co:
        """What the text since the last piece makes; with `finished`, the last piece."""
        ...

    def leave(self, tokens: Sequence[int]) -> None:
        """Nothing more is read: these tokens were generated. Called once, however the generation ends."""
        ...


class TokenStream(Generic[P, R]):
    """One request: detokenizes its updates, and decides where its output ends."""

    def __init__(
        self,
        ticket: Ticket,
        tokenizer: Tokenizer,
        consumer: Consumer[P, R],
        *,
        seed: int = 0,
        logprobs: bool = False,
        stop_on_repetition: bool = False,
    ) -> None:
        self.ticket = ticket
        self._tokenizer = tokenizer
        self._decoder = tokenizer.stream()
        self._consumer = consumer
        self._seed = seed
        self._repeats = Repetition().feed if stop_on_repetition else None
        self._tokens: list[int] = []
        self._logprobs: list[TokenLogprob] | None = [] if logprobs else None
        self._left = False

    @property
    def result(self) -> R | None:
        """What the last piece carries; None before it."""
        return self._consumer.result

    def feed(self, update: Update) -> P:
        """The piece that an update makes."""
        consumer, decoder = self._consumer, self._decoder
        feed, push, markers = consumer.feed, decoder.push, consumer.markers
        tokens, stopped, repeats = update.tokens, False, self._repeats
        early: Finish | None = None  # before the engine ended it
        for count, token in enumerate(tokens, 1):
            if token in markers:
                stopped = consumer.mark(decoder.flush(), markers[token])
            else:
                stopped = feed(push(token))
            # Token by token: how many come in one update depends on the clock.
            if stopped or (repeats is not None and repeats(token)):
                early = "stop" if stopped else "repetition"
                tokens = tokens[:count]
                break
        self._tokens += tokens
        logprobs = None
        if self._logprobs is not None:
            pairs = zip(tokens, update.logprobs, strict=False)
            logprobs = [spelled(self._tokenizer, token, report) for token, report in pairs]
            self._logprobs += logprobs
        reason = early or update.finish
        if reason is None:
            return consumer.piece(tokens, logprobs, update.prefilled, None)
        if not stopped and consumer.end(decoder.flush()):
            early = reason = "stop"
        if early is not None:
            self.ticket.cancel(early)
        piece = consumer.piece(tokens, logprobs, update.prefilled, self._finished(reason))
        self.leave()
        return piece

    def end_thought(self) -> None:
        """Ends the thought of an answer, from any thread; nothing happens where there is none."""
        self.ticket.end_thought()

    def abandon(self) -> None:
        """Cancels the request: nothing more of it is read."""
        self.ticket.cancel()
        self.leave()

    def leave(self) -> None:
        """Tells the consumer, once, that nothing more is read."""
        if not self._left:
            self._left = True
            self._consumer.leave(self._tokens)

    def _finished(self, reason: Finish) -> Finished:
        # The engine may be some tokens ahead of a stop string, and its figures still move.
        usage = replace(self.ticket.usage, completion=len(self._tokens))
        timings = replace(self.ticket.timings)
        return Finished(reason, self._tokens, usage, timings, self._seed, self._logprobs)


def spelled(tokenizer: Tokenizer, token: int, report: TokenLogprobs) -> TokenLogprob:
    """A report of the engine, with the text of its tokens."""

    def spell(token: int) -> str:
        return tokenizer.token_bytes(token).decode("utf-8", "replace")

    likeliest = zip(report.top_tokens, report.top_logprobs, strict=True)
    top = tuple(Alternative(other, spell(other), logprob) for other, logprob in likeliest)
    return TokenLogprob(token, spell(token), report.logprob, top)
