"""Thoughts that are ended: by their budget, or because somebody wants the answer now."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from olivine.engine import Engine, Generate, Request, Sampling, ThoughtTokens, Ticket, Update
from olivine.engine.thought import ThoughtMeter
from olivine.errors import RequestError
from oracles.pages import DrawingPagesProgram, PagesProgram

CONTEXT = 64
PROMPT = [3, 1, 4, 1, 5]
OPENS, CLOSES = 48, 49
CLOSING = (7, CLOSES, 8, 8)
# Neither marker comes by itself.
WARM = Sampling(temperature=1.0, seed=5, logit_bias=dict.fromkeys([OPENS, CLOSES], -100.0))
THOUGHT = ThoughtTokens(OPENS, CLOSES, CLOSING, open=True)
LENGTH = 24


def run(requests: list[Request], *, chains: bool = False, pages: int = 64, **options: Any) -> list[Ticket]:
    """The requests, submitted at once; their tickets have all updates."""
    program = (DrawingPagesProgram if chains else PagesProgram)(pages)
    engine = Engine(program, CONTEXT, **options)  # type: ignore[arg-type]
    with engine._inbox.changed:
        tickets = [engine.submit(request) for request in requests]
    for ticket in tickets:
        ticket.seen = list(ticket)  # type: ignore[attr-defined]
    assert engine.free_pages == program.page_counts
    engine.close()
    return tickets


def updates_of(ticket: Ticket) -> list[Update]:
    return ticket.seen  # type: ignore[attr-defined,no-any-return]


def tokens_of(ticket: Ticket) -> list[int]:
    return [token for update in updates_of(ticket) for token in update.tokens]


def generated(given: list[int], length: int, sampling: Sampling = WARM, **options: Any) -> list[int]:
    """What follows the prompt and tokens that were generated, without any thought."""
    marks = [False] * len(PROMPT) + [True] * len(given)
    job = Generate(sampling, length, **options)
    return tokens_of(run([Request([*PROMPT, *given], job, marks)], speculate=False)[0])


def closed_after(count: int, first: tuple[int, ...] = ()) -> list[int]:
    """What must come if the thought ends after so many tokens: the closing is as good as generated."""
    thought = [*first, *generated([*first], count)] if count else [*first]
    begun = [*thought, *CLOSING]
    return [*begun, *generated(begun, LENGTH - len(begun))]


def asked(budget: int | None, thought: ThoughtTokens = THOUGHT, **options: Any) -> Request:
    job = Generate(WARM, LENGTH, thought=replace(thought, budget=budget), **options)
    return Request(PROMPT, job)


@pytest.mark.parametrize("budget", [0, 1, 2, 9, LENGTH - len(CLOSING) - 1])
@pytest.mark.parametrize(
    "how",
    [
        {},
        {"speculate": False},
        {"chains": True},
        {"chains": True, "speculate": False},
        {"sequences": 2},
        {"pages": 16, "sequences": 4},  # not for all: some are preempted
        {"pages": 16, "sequences": 4, "chains": True},
    ],
    ids=str,
)
def test_a_thought_is_closed_when_its_budget_is_spent(budget: int, how: dict[str, Any]) -> None:
    others = [
        Request([9, 2, 6], Generate(WARM, 20)),
        Request([1, 2, 3] * 3, Generate(replace(WARM, logit_bias={1: 9.0, 2: 9.0, 3: 9.0}), 20)),
        asked(4),
    ]
    first, *rest = run([asked(budget), *others], **how)
    assert tokens_of(first) == closed_after(budget)
    assert tokens_of(rest[2]) == closed_after(4)
    assert first.usage.completion == LENGTH
    assert updates_of(first)[-1].finish == "length"


@pytest.mark.parametrize("chains", [False, True])
def test_a_thought_that_the_first_token_opens_is_closed_too(chains: bool) -> None:
    opening = replace(WARM, logit_bias={OPENS: 100.0, CLOSES: -100.0})
    thought = replace(THOUGHT, open=False, budget=3)
    (ticket,) = run([Request(PROMPT, Generate(opening, 12, thought=thought))], chains=chains)
    assert tokens_of(ticket)[:8] == [OPENS] * 4 + [*CLOSING]


def test_an_output_that_opens_no_thought_is_not_touched() -> None:
    thought = replace(THOUGHT, open=False)
    for budget in (0, 3, None):
        (ticket,) = run([asked(budget, thought)], chains=True)
        assert tokens_of(ticket) == generated([], LENGTH)


def test_a_thought_that_ends_by_itself_is_not_closed_again() -> None:
    free = generated([], LENGTH)
    own = free.index(free[6])
    thought = ThoughtTokens(OPENS, free[6], CLOSING, open=True)
    for budget in (own + 1, own + 2, LENGTH, None):
        for chains in (False, True):
            (ticket,) = run([asked(budget, thought)], chains=chains)
            assert tokens_of(ticket) == free


def test_forced_tokens_have_logprobs_where_they_are_asked_for() -> None:
    for chains in (False, True):
        (ticket,) = run([asked(5, logprobs=2)], chains=chains)
        assert tokens_of(ticket) == closed_after(5)
        reports = [report for update in updates_of(ticket) for report in update.logprobs]
        assert len(reports) == LENGTH and all(len(report.top_tokens) == 2 for report in reports)


def test_a_closing_that_does_not_fit_is_cut_where_the_output_ends() -> None:
    (ticket,) = run([replace(asked(3), job=replace(asked(3).job, max_tokens=5))])  # type: ignore[type-var]
    assert tokens_of(ticket) == closed_after(3)[:5]
    assert updates_of(ticket)[-1].finish == "length"


class Even:
    """A grammar of even tokens, behind a thought."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def mask(self) -> Any:
        import numpy as np

        return None if CLOSES not in self.seen else np.full(2, 0x55555555, np.int32)

    def accept(self, token: int) -> None:
        self.seen.append(token)

    def forced(self) -> list[int]:
        return [2, 4] if self.seen[-1:] == [CLOSES] else []

    done = False


def test_a_grammar_begins_behind_the_closing() -> None:
    grammar, thought = Even(), replace(THOUGHT, closing=(7, CLOSES))
    (ticket,) = run([asked(3, thought, constraint=grammar)])
    tokens = tokens_of(ticket)
    assert tokens[:7] == [*generated([], 3), 7, CLOSES, 2, 4]
    assert all(token % 2 == 0 for token in tokens[5:]) and len(tokens) == LENGTH
    assert grammar.seen == tokens


# ---- answer now


class Counting(PagesProgram):
    """A program that calls `at[n]` in its n-th step."""

    def __init__(self, at: dict[int, Any]) -> None:
        super().__init__(64)
        self.at, self.steps = at, 0

    def step(self, batch: Any, *, logits: bool = True) -> Any:
        self.steps += 1
        self.at.get(self.steps, lambda: None)()
        return super().step(batch, logits=logits)


@pytest.mark.parametrize("step", [1, 2, 6])
def test_a_thought_ends_after_the_step_in_which_its_end_is_asked_for(step: int) -> None:
    program = Counting({step: lambda: tickets[0].end_thought()})
    engine = Engine(program, CONTEXT, speculate=False)  # type: ignore[arg-type]
    with engine._inbox.changed:
        tickets = [engine.submit(asked(None)), engine.submit(asked(None))]
    for ticket in tickets:
        ticket.seen = list(ticket)  # type: ignore[attr-defined]
    assert tokens_of(tickets[0]) == closed_after(step)
    assert tokens_of(tickets[1]) == generated([], LENGTH)
    tickets[0].end_thought()  # it is over: nothing happens
    engine.close()


def test_the_end_of_a_thought_that_waits_comes_at_once_and_none_is_ended_twice() -> None:
    engine = Engine(Counting({}), CONTEXT, speculate=False)  # type: ignore[arg-type]
    with engine._inbox.changed:
        ticket = engine.submit(asked(None))
        ticket.end_thought()
        ticket.end_thought()
    ticket.seen = list(ticket)  # type: ignore[attr-defined]
    assert tokens_of(ticket) == closed_after(0)
    engine.close()


def test_without_a_thought_nothing_can_be_ended() -> None:
    program = Counting({2: lambda: ticket.end_thought()})
    engine = Engine(program, CONTEXT, speculate=False)  # type: ignore[arg-type]
    with engine._inbox.changed:
        ticket = engine.submit(Request(PROMPT, Generate(WARM, LENGTH)))
    ticket.seen = list(ticket)  # type: ignore[attr-defined]
    assert tokens_of(ticket) == generated([], LENGTH)
    engine.close()


# ---- the meter, and what is refused


def test_a_meter_says_how_many_tokens_may_be_drawn() -> None:
    meter = ThoughtMeter(replace(THOUGHT, open=False, budget=3))
    assert meter.room == 1 and meter.closing(asked=True) == ()
    meter.feed([OPENS])
    assert meter.room == 3
    meter.feed([1, 2])
    assert meter.room == 1 and meter.closing(asked=False) == ()
    meter.feed([3])
    assert meter.closing(asked=False) == CLOSING
    assert meter.closing(asked=True) == () and meter.room > 1000


@pytest.mark.parametrize("bad", [{"opens": 50}, {"closes": -1}, {"closing": (50,)}])
def test_tokens_that_are_none_are_refused(bad: dict[str, Any]) -> None:
    engine = Engine(PagesProgram(16), CONTEXT)  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="the tokens of a thought must lie in"):
        engine.submit(asked(1, replace(THOUGHT, **bad)))
    engine.close()
