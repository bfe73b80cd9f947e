"""Generation: tokens that follow the prompt, drawn one by one, in chains, or drafted and verified."""

from __future__ import annotations

import time
from array import array
from collections import abc
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from olivine import checks
from olivine.backends import Draw, Drawn, Sampling, TokenLogprobs
from olivine.backends.base import Int32
from olivine.checks import Check, integer, optional
from olivine.engine.checks import MAX_TOKENS, MIN_TOKENS, token_ids
from olivine.engine.constraint import Constraint
from olivine.engine.jobs.base import Job, Outcome, Resources, require_token
from olivine.engine.speculative import History
from olivine.engine.thought import ThoughtMeter, ThoughtTokens
from olivine.engine.updates import Finish, Update

if TYPE_CHECKING:
    from olivine.engine.sequence import Sequence
    from olivine.engine.step import Chunk


@dataclass
class Generate(Job[list[Drawn]]):
    """Tokens that follow the prompt."""

    new_tokens: ClassVar[int] = 1

    sampling: Sampling = field(default_factory=Sampling)
    max_tokens: int | None = None  # None: as many as the context holds
    min_tokens: int = 0
    stop: abc.Sequence[int] = ()
    logprobs: int | None = None  # alternatives to report with each token; None: no log-probabilities
    constraint: Constraint | None = None  # what may be generated; it belongs to one submission alone
    thought: ThoughtTokens | None = None  # that the output may begin with, and that can be ended
    _resources: Resources = field(init=False, repr=False, compare=False)
    _history: History = field(init=False, repr=False, compare=False, default_factory=History)
    _mask: Future[Int32 | None] | None = field(
        init=False, repr=False, compare=False, default=None
    )  # of the next draw
    _meter: ThoughtMeter | None = field(init=False, repr=False, compare=False, default=None)
    _closing: list[int] = field(
        init=False, repr=False, compare=False, default_factory=list
    )  # tokens that are to be drawn, whatever the logits

    def checks(self, vocabulary: int) -> dict[str, Check]:
        return {
            "sampling": checks.of_type(Sampling, "a Sampling"),
            "max_tokens": MAX_TOKENS,
            "min_tokens": MIN_TOKENS,
            "stop": checks.integers,
            "logprobs": optional(integer(f"between 0 and {vocabulary}", 0, vocabulary)),
            "thought": optional(checks.of_type(ThoughtTokens, "a ThoughtTokens")),
        }

    def checked(self, prompt: list[int], vocabulary: int) -> Generate:
        job = super().checked(prompt, vocabulary)
        token_ids("stop tokens", job.stop, "stop_tokens", vocabulary)
        # Every draw reads them, and those of a list would be converted each time.
        job.stop = array("i", dict.fromkeys(job.stop))
        token_ids("the tokens of logit_bias", job.sampling.logit_bias, "logit_bias", vocabulary)
        if (thought := job.thought) is not None:
            tokens = (thought.opens, thought.closes, *thought.closing)
            token_ids("the tokens of a thought", tokens, "thought", vocabulary)
        return job

    def start(self, sequence: Sequence, resources: Resources) -> Outcome:
        self._resources = resources
        self._meter = None if self.thought is None else ThoughtMeter(self.thought)
        forced = self._force(sequence)
        return (Update(forced), self._end(sequence)) if forced else (None, None)

    def drafts(self, sequence: Sequence, running: int) -> list[int]:
        speculation = self._resources.speculation
        if speculation is None or self.constraint is not None or self._closing:
            return []
        drafts = speculation.propose(sequence, self._history, running)
        return drafts[: max(0, self._room(sequence) - 1)] if drafts else drafts

    def chain_limit(self, sequence: Sequence, running: int) -> int:
        if self.constraint is not None or self._closing:  # each token needs a mask of its own, or is given
            return 1
        room, speculation = self._room(sequence), self._resources.speculation
        if speculation is None:
            return room
        return min(room, speculation.chain_limit(sequence, self._history, running))

    def draws(self, chunk: Chunk) -> list[Draw]:
        if not chunk.outputs:
            return []
        sequence, constraint = chunk.sequence, self.constraint
        if constraint is not None:
            # Computed while the step runs, and waited for when it draws.
            self._mask = self._resources.executor.submit(constraint.mask)
        mask = None if self._mask is None else self._mask.result
        # Only penalties read them, and long ones take a while to copy, or to be sent to other processes.
        penalizes = self.sampling.penalizes
        prompt, output = (sequence.prompt_text, sequence.output) if penalizes else ((), [])
        least = self.min_tokens - sequence.generated_count
        forced = self._closing[0] if self._closing else None
        draws = []
        for drafted in range(len(chunk.outputs)):
            before = output + chunk.drafts[:drafted] if drafted else output
            at_least = max(0, least - drafted)
            draws.append(
                Draw(self.sampling, prompt, before, mask, self.stop, at_least, self.logprobs, forced)
            )
        return draws

    def absorb(self, chunk: Chunk, results: list[Drawn]) -> Outcome:
        sequence = chunk.sequence
        if not results:  # a chunk of a prompt that goes on
            sequence.computed = chunk.end
            return Update(prefilled=min(sequence.computed, sequence.prompt_length)), None
        update, finish = self._accept(chunk, results)
        sequence.time_tokens(time.perf_counter())
        if chunk.drafts:
            self._count_drafts(chunk, accepted=max(0, len(update.tokens) - 1))
        # The last token has no keys yet; a stop token was never added.
        sequence.computed = len(sequence.tokens) - (finish is None)
        if finish is None:
            update.tokens += self._force(sequence)
            finish = self._end(sequence)
        return (update if update.tokens else None), finish

    def _accept(self, chunk: Chunk, results: list[Drawn]) -> tuple[Update, Finish | None]:
        """Adds the tokens that were drawn, as far as the drafts that they were drawn after are right."""
        sequence, constraint = chunk.sequence, self.constraint
        tokens: list[int] = []
        logprobs: list[TokenLogprobs] = []
        finish: Finish | None = None
        for index, result in enumerate(results):
            if result.error is not None:
                self._raise(result)
            sequence.add(result.tokens)
            if constraint is not None:
                for token in result.tokens:
                    constraint.accept(token)
            tokens += result.tokens
            logprobs += result.logprobs
            if result.stopped:
                finish = "stop"
                break
            if index < len(chunk.drafts) and result.tokens != [chunk.drafts[index]]:
                break
        if self._closing:
            del self._closing[0]
        elif self._meter is not None:
            self._meter.feed(tokens)
        return Update(tokens, logprobs, sequence.prompt_length), finish

    def _raise(self, result: Drawn) -> None:
        """A constraint that failed is the reason of a draw that did."""
        if self._mask is not None and (failure := self._mask.exception()) is not None:
            raise failure
        require_token(result)

    def _count_drafts(self, chunk: Chunk, accepted: int) -> None:
        sequence, speculation = chunk.sequence, self._resources.speculation
        sequence.usage.drafted += len(chunk.drafts)
        sequence.usage.accepted += accepted
        if speculation is not None:
            speculation.learn(sequence, self._history, accepted)

    def _force(self, sequence: Sequence) -> list[int]:
        """Adds the tokens about which there is no choice: the end of a thought, and what the constraint
        says. They need no drawing. Where log-probabilities are wanted they are drawn all the same."""
        closing = () if self._meter is None else self._meter.closing(sequence.thought_ended)
        if self.logprobs is not None:
            self._closing += closing
            return []
        tokens = self._add(sequence, closing) if closing else []
        if self.constraint is not None:
            tokens += self._add(sequence, self.constraint.forced())
        return tokens

    def _add(self, sequence: Sequence, forced: abc.Sequence[int]) -> list[int]:
        tokens = list(forced)[: max(0, self._left(sequence))]
        sequence.add(tokens)
        if self.constraint is not None:
            for token in tokens:
                self.constraint.accept(token)
        return tokens

    def _end(self, sequence: Sequence) -> Finish | None:
        """Whether there is nothing more to generate, and why."""
        if self.constraint is not None and self.constraint.done:
            return "stop"
        return "length" if self._left(sequence) <= 0 else None

    def _room(self, sequence: Sequence) -> int:
        """Tokens that may be drawn before there may be something to force."""
        left = self._left(sequence)
        return left if self._meter is None else min(left, self._meter.room)

    def _left(self, sequence: Sequence) -> int:
        """Tokens that may still be generated."""
        left = self._resources.context - len(sequence.tokens)
        if self.max_tokens is not None:
            left = min(left, self.max_tokens - sequence.generated_count)
        return left
