"""The interface between the scheduler and what a request asks for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from olivine.backends import BROKEN, NOTHING_LEGAL, Draw, Drawn
from olivine.checks import Check
from olivine.engine.updates import Finish, Update
from olivine.errors import ModelError, RequestError

if TYPE_CHECKING:
    from olivine.engine.sequence import Sequence
    from olivine.engine.speculative import Speculation
    from olivine.engine.step import Chunk

# Rows of a chunk that all need outputs: their logits are large.
OUTPUT_ROWS = 64

Results = TypeVar("Results")
AnyJob = TypeVar("AnyJob", bound="Job[Any]")

# What to tell the caller, if anything, and why the sequence ends here, if it does.
Outcome = tuple[Update | None, Finish | None]


@dataclass(frozen=True)
class Resources:
    """What the jobs of one engine share."""

    context: int  # tokens that a sequence can have
    executor: Executor  # runs what a job computes while a step runs
    speculation: Speculation | None


@dataclass
class Job(ABC, Generic[Results]):
    """What a request asks for: its options as fields, and its state while it runs in fields of `init=False`.

    `Results` is what a step gives for the job's output rows, and `hidden` chooses it: `list[Drawn]`, or
    hidden states [R, D]. A job can be submitted many times: each submission runs a copy that `checked` made.
    Apart from `checked`, everything here is called in the engine's thread. An exception ends the request, and
    no other one.
    """

    # Whether the outputs are hidden states. Such jobs run in steps of their own, which compute no logits.
    hidden: ClassVar[bool] = False
    # Tokens that the context must hold after the prompt.
    new_tokens: ClassVar[int] = 0

    def checks(self, vocabulary: int) -> dict[str, Check]:
        """A check for each option."""
        return {}

    def checked(self: AnyJob, prompt: list[int], vocabulary: int) -> AnyJob:
        """A copy with plain Python values in its fields and no state; raises a `RequestError` if an option is
        of a wrong type or out of range."""
        checks = self.checks(vocabulary).items()
        return replace(self, **{name: check(name, getattr(self, name)) for name, check in checks})

    def start(self, sequence: Sequence, resources: Resources) -> Outcome:
        """The sequence enters the queue."""
        return None, None

    def restart(self) -> None:
        """The sequence was preempted: its chunks run again from the beginning."""

    def reusable(self, sequence: Sequence) -> int:
        """Tokens that need not run if their pages are in the prefix cache: those before the first output."""
        return len(sequence.tokens) - 1

    def chunk_limit(self, sequence: Sequence) -> int:
        """How many rows the sequence's next prefill chunk may have."""
        return sequence.pending

    def outputs(self, sequence: Sequence, start: int, end: int) -> list[int]:
        """The positions in the prefill chunk [start, end) whose outputs are needed; by default that of the
        sequence's last token."""
        return [end - 1] if end == len(sequence.tokens) else []

    def drafts(self, sequence: Sequence, running: int) -> list[int]:
        """Tokens to verify in a decode step, where so many sequences are `running`."""
        return []

    def chain_limit(self, sequence: Sequence, running: int) -> int:
        """How many tokens one chain may draw from here."""
        return 1

    def draws(self, chunk: Chunk) -> list[Draw]:
        """One draw an output of the chunk; none for hidden states."""
        return []

    @abstractmethod
    def absorb(self, chunk: Chunk, results: Results) -> Outcome:
        """Takes in what a step gave for the chunk's outputs, and sets `computed` of its sequence."""


def require_token(result: Drawn) -> None:
    """Raises the reason if a draw gave no token."""
    if result.error is None:
        return
    if result.error == BROKEN:
        raise ModelError(BROKEN, code="invalid_logits")
    raise RequestError(result.error, code="no_token_allowed" if result.error == NOTHING_LEGAL else None)
