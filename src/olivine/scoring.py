"""Requests that generate nothing: embeddings, and log-probabilities of a given text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, Literal, TypedDict, TypeVar

import numpy as np
import numpy.typing as npt

from olivine.backends import TokenLogprobs
from olivine.batching import agather, gather, updates_of
from olivine.checks import flag
from olivine.engine import Embed, Engine, Request, Ticket, Update, Usage
from olivine.engine import Score as ScoreJob
from olivine.errors import DeadlineError
from olivine.streaming import Tell

R = TypeVar("R")


class EmbedKwargs(TypedDict, total=False):
    """The keywords of `LLM.embed`, for type checkers and editors."""

    pooling: Literal["mean", "last"]
    normalize: bool
    timeout: float | None
    priority: int
    client: str


class ScoreKwargs(TypedDict, total=False):
    """The keywords of `LLM.score`, for type checkers and editors."""

    timeout: float | None
    priority: int
    client: str


@dataclass(frozen=True)
class Score:
    """Log-likelihood of a text after another. `greedy`: whether every token was the likeliest."""

    logprob: float
    tokens: list[int]
    logprobs: list[float]
    greedy: bool
    usage: Usage = field(default_factory=Usage)

    def __repr__(self) -> str:
        return f"Score({self.logprob:.4f}, tokens={len(self.tokens)}, greedy={self.greedy})"


Found = list[tuple[list[Update], Usage]]  # what the requests gave, in their order


@dataclass(frozen=True)
class Work(Generic[R]):
    """Requests, and what to make of their updates."""

    requests: list[Request]
    result: Callable[[Found], R]

    def run(self, engine: Engine, limit: int) -> R:
        """At most `limit` of the requests are under way at the same time."""
        tickets = map(engine.submit, self.requests)
        return self.result(gather(tickets, lambda ticket: (_in_time(list(ticket)), ticket.usage), limit))

    async def arun(self, engine: Engine, limit: int) -> R:
        """`run` for asyncio."""
        return self.result(await agather((_through(engine, each) for each in self.requests), limit))


def embeddings(
    width: int,
    prompts: Sequence[Sequence[int]],
    *,
    pooling: Literal["mean", "last"] = "mean",
    normalize: bool = True,
    timeout: float | None = None,
    priority: int = 0,
    client: str = "",
) -> Work[tuple[npt.NDArray[np.float32], Usage]]:
    """The pooled hidden states of each prompt, [N, width], and the tokens used for all of them."""
    normalize = flag("normalize", normalize)

    def result(found: Found) -> tuple[npt.NDArray[np.float32], Usage]:
        rows = np.zeros((0, width), np.float32)
        if found:
            rows = np.stack([_embedding(updates) for updates, _ in found])
        if normalize:
            rows = normalized(rows)
        return rows, Usage(sum(usage.prompt for _, usage in found), sum(usage.cached for _, usage in found))

    return Work(
        [Request(prompt, Embed(pooling), None, timeout, priority, client) for prompt in prompts], result
    )


def normalized(rows: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Rows of length 1."""
    lengths: npt.NDArray[np.float32] = np.linalg.norm(rows, axis=-1, keepdims=True)
    return rows / np.maximum(lengths, np.float32(1e-12))


def scores(
    pairs: Sequence[tuple[list[int], list[int]]],
    *,
    timeout: float | None = None,
    priority: int = 0,
    client: str = "",
) -> Work[list[Score]]:
    """How likely each pair's second part is after its first."""

    def result(found: Found) -> list[Score]:
        return [
            _score(after, [report for update in updates for report in update.logprobs], usage)
            for (_, after), (updates, usage) in zip(pairs, found, strict=True)
        ]

    requests = [
        Request([*before, *after], ScoreJob(len(before)), None, timeout, priority, client)
        for before, after in pairs
    ]
    return Work(requests, result)


class Measured(Generic[R]):
    """A request that generates nothing, for servers: a `streaming.Source`, whose result comes with the tokens
    used."""

    def __init__(self, ticket: Ticket, read: Callable[[Update], R]) -> None:
        self.ticket = ticket
        self.result: tuple[R, Usage] | None = None
        self._read = read

    def feed(self, update: Update) -> None:
        _refuse_late(update)
        if update.embedding is not None or update.logprobs:  # all of it is in one update
            self.result = self._read(update), self.ticket.usage

    def abandon(self) -> None:
        self.ticket.cancel()


def submit_embeddings(
    engine: Engine,
    prompts: Sequence[list[int]],
    listeners: Sequence[Tell],
    *,
    pooling: Literal["mean", "last"] = "mean",
    normalize: bool = False,
    timeout: float | None = None,
    priority: int = 0,
    client: str = "",
) -> list[Measured[npt.NDArray[np.float32]]]:
    """`embeddings` for servers."""
    normalize = flag("normalize", normalize)

    def read(update: Update) -> npt.NDArray[np.float32]:
        assert update.embedding is not None
        return normalized(update.embedding) if normalize else update.embedding

    requests = [Request(prompt, Embed(pooling), None, timeout, priority, client) for prompt in prompts]
    return _submitted(engine, zip(requests, listeners, [read] * len(prompts), strict=True))


def submit_logprobs(
    engine: Engine,
    prompts: Sequence[list[int]],
    listeners: Sequence[Tell],
    alternatives: int,
    report: Callable[[int, TokenLogprobs], R],
    *,
    timeout: float | None = None,
    priority: int = 0,
    client: str = "",
) -> list[Measured[tuple[int, list[R]]]]:
    """The first token of each prompt, and a `report` of every other one."""

    def reader(prompt: list[int]) -> Callable[[Update], tuple[int, list[R]]]:
        def read(
            update: Update,
        ) -> tuple[int, list[R]]:  # not before there is an update: a prompt may be empty
            pairs = zip(prompt[1:], update.logprobs, strict=True)
            return prompt[0], [report(*pair) for pair in pairs]

        return read

    requests = [
        Request(prompt, ScoreJob(1, alternatives), None, timeout, priority, client) for prompt in prompts
    ]
    return _submitted(engine, zip(requests, listeners, map(reader, prompts), strict=True))


def _submitted(
    engine: Engine, requests: Iterable[tuple[Request, Tell, Callable[[Update], R]]]
) -> list[Measured[R]]:
    """Submits requests, of which all succeed, or none runs."""
    found: list[Measured[R]] = []
    try:
        for request, tell, read in requests:
            found.append(Measured(engine.submit(request, tell), read))
    except BaseException:
        for each in found:
            each.abandon()
        raise
    return found


async def _through(engine: Engine, request: Request) -> tuple[list[Update], Usage]:
    updates, usage = await updates_of(engine, request)
    return _in_time(updates), usage


def _in_time(updates: list[Update]) -> list[Update]:
    """The updates of a request that is through; a part of its result is of no use."""
    last = updates[-1]
    if last.error is not None:
        raise last.error
    _refuse_late(last)
    return updates


def _refuse_late(update: Update) -> None:
    if update.finish == "timeout":
        raise DeadlineError("the request was not through when its timeout was over")


def _embedding(updates: list[Update]) -> npt.NDArray[np.float32]:
    (found,) = [update.embedding for update in updates if update.embedding is not None]
    return found


def _score(tokens: list[int], reports: list[TokenLogprobs], usage: Usage) -> Score:
    each = [report.logprob for report in reports]
    greedy = all(report.top_tokens[0] == token for report, token in zip(reports, tokens, strict=True))
    return Score(sum(each), tokens, each, greedy, replace(usage))
