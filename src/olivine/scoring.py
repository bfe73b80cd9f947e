"""Requests that generate nothing: embeddings, and log-probabilities of a given text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypedDict

import numpy as np
import numpy.typing as npt

from olivine.backends import TokenLogprobs
from olivine.batching import gather
from olivine.engine import Embed, Engine, Request, Ticket, Update, Usage
from olivine.engine import Score as ScoreJob
from olivine.errors import DeadlineError


class EmbedKwargs(TypedDict, total=False):
    """The keywords of `LLM.embed`, for type checkers and editors."""

    pooling: Literal["mean", "last"]
    normalize: bool
    timeout: float | None
    priority: int


class ScoreKwargs(TypedDict, total=False):
    """The keywords of `LLM.score`, for type checkers and editors."""

    timeout: float | None
    priority: int


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
) -> tuple[npt.NDArray[np.float32], Usage]:
    """The pooled hidden states of each prompt, [N, D], and the tokens used for all of them."""
    requests = [Request(prompt, Embed(pooling), timeout=timeout, priority=priority) for prompt in prompts]
    found = gather(map(engine.submit, requests), lambda ticket: (_embedding(ticket), ticket.usage), limit)
    rows = np.zeros((0, engine.program.plan.hidden.width), np.float32)
    if found:
        rows = np.stack([row for row, _ in found])
    if normalize:
        rows = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
    return rows, Usage(sum(usage.prompt for _, usage in found), sum(usage.cached for _, usage in found))


def scores(
    engine: Engine,
    pairs: Sequence[tuple[list[int], list[int]]],
    limit: int,
    *,
    timeout: float | None = None,
    priority: int = 0,
) -> list[Score]:
    """How likely each pair's second part is after its first."""
    requests = [
        Request([*before, *after], ScoreJob(len(before)), timeout=timeout, priority=priority)
        for before, after in pairs
    ]
    reports = gather(map(engine.submit, requests), lambda ticket: (_reports(ticket), ticket.usage), limit)
    return [_score(after, *report) for (_, after), report in zip(pairs, reports, strict=True)]


def _in_time(ticket: Ticket) -> Iterator[Update]:
    """The updates of a request; a part of its result is of no use."""
    for update in ticket:
        if update.finish == "timeout":
            raise DeadlineError("the request was not through when its timeout was over")
        yield update


def _embedding(ticket: Ticket) -> npt.NDArray[np.float32]:
    (found,) = [update.embedding for update in _in_time(ticket) if update.embedding is not None]
    return found


def _reports(ticket: Ticket) -> list[TokenLogprobs]:
    return [report for update in _in_time(ticket) for report in update.logprobs]


def _score(tokens: list[int], reports: list[TokenLogprobs], usage: Usage) -> Score:
    each = [report.logprob for report in reports]
    greedy = all(report.top[0][0] == token for report, token in zip(reports, tokens, strict=True))
    return Score(sum(each), tokens, each, greedy, replace(usage))
