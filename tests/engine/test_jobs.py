"""Jobs: a class is all that a new one takes, and a submission leaves nothing in the caller's."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest

from olivine.backends import Batch, Draw, Drawn, Result, Sampling
from olivine.checks import Check, integers
from olivine.engine import Embed, Engine, Generate, Job, Request, Score, Update
from olivine.engine.checks import token_ids
from olivine.engine.jobs.base import Outcome, require_token
from olivine.engine.step import Chunk
from olivine.errors import RequestError
from oracles.pages import DrawingPagesProgram, PagesProgram


@dataclass
class Choose(Job[list[Drawn]]):
    """Which of a few tokens is the likeliest after the prompt, as a reranker asks for yes or no."""

    among: Sequence[int] = ()
    _best: list[tuple[float, int]] = field(init=False, default_factory=list)

    def checks(self, vocabulary: int) -> dict[str, Check]:
        return {"among": integers}

    def checked(self, prompt: list[int], vocabulary: int) -> Choose:
        job = super().checked(prompt, vocabulary)
        token_ids("the tokens to choose from", job.among, "among", vocabulary)
        return job

    def draws(self, chunk: Chunk) -> list[Draw]:
        return [Draw(Sampling(), logprobs=50, forced=0) for _ in chunk.outputs]

    def absorb(self, chunk: Chunk, results: list[Drawn]) -> Outcome:
        chunk.sequence.computed = chunk.end
        for result in results:
            require_token(result)
            (report,) = result.logprobs
            likeliest = zip(report.top_logprobs, report.top_tokens, strict=True)
            self._best += [(logprob, token) for logprob, token in likeliest if token in self.among]
        if chunk.sequence.pending:
            return Update(prefilled=chunk.end), None
        return Update(tokens=[max(self._best)[1]]), "stop"


@pytest.mark.parametrize("chains", [False, True])
def test_a_further_job_is_one_class(chains: bool) -> None:
    """Beside others, in chunks, over pages that do not suffice for all."""
    program = (DrawingPagesProgram if chains else PagesProgram)(14)
    engine = Engine(program, 48, sequences=4)  # type: ignore[arg-type]
    prompt = [7] * 9 + list(range(30))  # three chunks
    (report,) = [
        report
        for update in engine.submit(Request(prompt, Generate(max_tokens=1, logprobs=50)))
        for report in update.logprobs
    ]
    likeliest = next(token for token in report.top_tokens if token in (3, 4, 5))
    with engine._inbox.changed:
        chosen = engine.submit(Request(prompt, Choose([3, 4, 5])))
        others = [
            engine.submit(Request([8] * 9, job)) for job in (Generate(max_tokens=30), Score(3), Embed())
        ]
    assert [token for update in chosen for token in update.tokens] == [likeliest]
    assert [list(ticket)[-1].finish for ticket in others] == ["length", "stop", "stop"]
    with pytest.raises(RequestError, match="the tokens to choose from must lie in"):
        engine.submit(Request(prompt, Choose([50])))
    with pytest.raises(RequestError, match="among must be a list of token ids"):
        engine.submit(Request(prompt, Choose("ab")))  # type: ignore[arg-type]
    assert engine.free_pages == program.page_counts
    engine.close()


@pytest.mark.parametrize("job", [Generate(max_tokens=3), Score(2), Embed("mean"), Embed("last")], ids=repr)
def test_one_job_can_be_submitted_many_times(job: Job[object]) -> None:
    engine = Engine(PagesProgram(64), 48, sequences=4, speculate=False)  # type: ignore[arg-type]
    before = dict(vars(job))
    tickets = [engine.submit(Request([1, 2, 3, 4, 5], job)) for _ in range(3)]
    first, *rest = [
        [(update.tokens, update.logprobs, str(update.embedding)) for update in ticket] for ticket in tickets
    ]
    assert rest == [first, first]
    assert vars(job) == before
    engine.close()


class Meeting:
    """A program and a constraint, each of which waits for the other to be under way."""

    done = False

    def __init__(self) -> None:
        self.program = PagesProgram(16)
        self.stepping, self.masking = threading.Event(), threading.Event()
        self.met = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self.program, name)

    def step(self, batch: Batch, *, logits: bool = True) -> Result:
        self.stepping.set()
        assert self.masking.wait(30)
        self.masking.clear()
        return self.program.step(batch, logits=logits)

    def mask(self) -> np.ndarray:
        self.masking.set()
        assert self.stepping.wait(30)
        self.stepping.clear()
        self.met += 1
        return np.array([1 << 5, 0], np.int32)

    def accept(self, token: int) -> None:
        assert token == 5

    def forced(self) -> list[int]:
        return []


def test_masks_are_computed_while_the_step_runs() -> None:
    others = set(threading.enumerate())  # engines of other tests may have such threads too
    meeting = Meeting()
    engine = Engine(meeting, 40)  # type: ignore[arg-type]
    ticket = engine.submit(Request([1, 2, 3], Generate(max_tokens=6, constraint=meeting)))
    assert [token for update in ticket for token in update.tokens] == [5] * 6
    assert meeting.met == 6
    engine.close()
    new = set(threading.enumerate()) - others
    assert not [thread.name for thread in new if thread.name.startswith("olivine-masks")]
