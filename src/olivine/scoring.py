"""Requests that generate nothing: embeddings, and log-probabilities of a given text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, Literal, TypedDict, TypeVar

import numpy as np
import numpy.typing as npt

from olivine.backends import TokenLogprobs
from olivine.batching import gather
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


def embeddings(
    engine: Engine,
    prompts: Sequence[Sequence[int]],
    limit: int,
    *,
    pooling: Literal["mean", "last"] = "mean",
    normalize: bool = True,
    timeout: float | None = None,
    priority: int = 0,
    client: str = "",
) -> tuple[npt.NDArray[np.float32], Usage]:
    """The pooled hidden states of each prompt, [N, D], and the tokens used for all of them."""
    requests = [Request(prompt, Embed(pooling), None, timeout, priority, client) for prompt in prompts]
    found = gather(map(engine.submit, requests), lambda ticket: (_embedding(ticket), ticket.usage), limit)
    rows = np.zeros((0, engine.program.plan.hidden.width), np.float32)
    if found:
        rows = np.stack([row for row, _ in found])
    if normalize:
        rows = normalized(rows)
    return rows, Usage(sum(usage.prompt for _, usage in found), sum(usage.cached for _, usage in found))


def normalized(rows: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Rows of length 1."""
    lengths: npt.NDArray[np.float32] = np.linalg.norm(rows, axis=-1, keepdims=True)
    return rows / np.maximum(lengths, np.float32(1e-12))


def scores(
    engine: Engine,
    pairs: Sequence[tuple[list[int], list[int]]],
    limit: int,
    *,
    timeout: float | None = None,
    priority: int = 0,
    client: str = "",
) -> list[Score]:
    """How likely each pair's second part is after its first."""
    requests = [
        Request([*before, *after], ScoreJob(len(before)), None, timeout, priority, client)
        for before, after in pairs
    ]
    reports = gather(map(engine.submit, requests), lambda ticket: (_reports(ticket), ticket.usage), limit)
    return [_score(after, *report) for (_, after), report in zip(pairs, reports, strict=True)]


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
) -> list[Measured[npt.NDArray[np.float32]]]:
    """`embeddings` for servers."""

    def read(update: Update) -> npt.NDArray[np.float32]:
        assert update.embedding is not None
        return normalized(update.embedding) if normalize else update.embedding

    requests = [Request(prompt, Embed(pooling), timeout=timeout, priority=priority) for prompt in prompts]
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
) -> list[Measured[tuple[int, list[R]]]]:
    """The first token of each prompt, and a `report` of every other one."""

    def reader(prompt: list[int]) -> Callable[[Update], tuple[int, list[R]]]:
        first, *others = prompt
        return lambda update: (first, [report(*pair) for pair in zip(others, update.logprobs, strict=True)])

    requests = [
        Request(prompt, ScoreJob(1, alternatives), timeout=timeout, priority=priority) for prompt in prompts
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


def _in_time(ticket: Ticket) -> Iterator[Update]:
    """The updates of a request; a part of its result is of no use."""
    for update in ticket:
        _refuse_late(update)
        yield update


def _refuse_late(update: Update) -> None:
    if update.finish == "timeout":
        raise DeadlineError("the request was not through when its timeout was over")


def _embedding(ticket: Ticket) -> npt.NDArray[np.float32]:
    (found,) = [update.embedding for update in _in_time(ticket) if update.embedding is not None]
    return found


def _reports(ticket: Ticket) -> list[TokenLogprobs]:
    return [report for update in _in_time(ticket) for report in update.logprobs]


def _score(tokens: list[int], reports: list[TokenLogprobs], usage: Usage) -> Score:
    each = [report.logprob for report in reports]
    greedy = all(report.top[0][0] == token for report, token in zip(reports, tokens, strict=True))
    return Score(sum(each), tokens, each, greedy, replace(usage))
