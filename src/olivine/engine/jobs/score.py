"""Scores: log-probabilities of tokens that are given."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from olivine.backends import Draw, Drawn, Sampling, TokenLogprobs
from olivine.checks import INT32, Check, integer
from olivine.engine.jobs.base import OUTPUT_ROWS, Job, Outcome, require_token
from olivine.engine.media import SOFT
from olivine.engine.updates import Update
from olivine.errors import RequestError

if TYPE_CHECKING:
    from olivine.engine.sequence import Sequence
    from olivine.engine.step import Chunk

_PLAIN = Sampling()  # the logits as they are


@dataclass
class Score(Job[list[Drawn]]):
    """The log-probabilities of the prompt's own tokens."""

    first: int = 1  # the first token whose log-probability is wanted
    alternatives: int = 1  # the likeliest tokens in the place of each
    _reports: list[TokenLogprobs] = field(init=False, repr=False, compare=False, default_factory=list)

    def checks(self, vocabulary: int) -> dict[str, Check]:
        return {"first": integer("0 or more", 0, INT32), "alternatives": integer("1 or more", 1, INT32)}

    def checked(self, prompt: list[int], vocabulary: int) -> Score:
        score = super().checked(prompt, vocabulary)
        if not 1 <= score.first < len(prompt):
            raise RequestError("scoring needs at least one token before the first one that is scored")
        if SOFT in prompt[score.first :]:
            raise RequestError(
                "soft tokens of images and sounds have no log-probabilities: score only tokens after them"
            )
        return score

    def reusable(self, sequence: Sequence) -> int:
        return self._row

    def chunk_limit(self, sequence: Sequence) -> int:
        return max(0, self._row - sequence.computed) + OUTPUT_ROWS

    def outputs(self, sequence: Sequence, start: int, end: int) -> list[int]:
        return list(range(max(start, self._row), min(end, len(sequence.tokens) - 1)))

    def draws(self, chunk: Chunk) -> list[Draw]:
        tokens = chunk.sequence.tokens
        most = self.alternatives
        return [Draw(_PLAIN, logprobs=most, forced=tokens[position + 1]) for position in chunk.outputs]

    def absorb(self, chunk: Chunk, results: list[Drawn]) -> Outcome:
        sequence = chunk.sequence
        for result in results:
            require_token(result)
            self._reports += result.logprobs
        sequence.computed = chunk.end
        if self.first + len(self._reports) < len(sequence.tokens):
            return Update(prefilled=sequence.computed), None
        return Update(logprobs=self._reports, prefilled=sequence.computed), "stop"

    @property
    def _row(self) -> int:
        """The position whose logits the next score is of: row p predicts token p + 1."""
        return self.first + len(self._reports) - 1
