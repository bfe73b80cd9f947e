"""Speculation without a draft model: what followed the last few tokens before may follow them again.

Drafts are verified in one step as generated rows, so what comes out is what would have come out without.
A step with drafts takes longer than one without: both are timed, and drafts that do not pay are not made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from olivine.engine.media import SOFT

if TYPE_CHECKING:
    from olivine.engine.sequence import Sequence

LONGEST, SHORTEST = 5, 3  # tokens of the n-grams that must recur
MOST_DRAFTS = 6  # tokens drafted at once
MOST_SEQUENCES = 2  # with more of them in a step, nothing is drafted
# A sequence whose drafts are rejected pauses for so many tokens, and twice as long each time.
PAUSE = 32
# The longest chain between two looks for drafts: tokens, and more where they take less than these seconds,
# because between two chains a GPU waits for the host.
CHAIN, CHAIN_SECONDS = 4, 0.01
NO_LIMIT = 1 << 31


class History:
    """The n-grams of one sequence: where each was last followed by something; and how its drafts fared."""

    def __init__(self) -> None:
        self.seen = 0  # tokens that are in `last`
        self.last: dict[tuple[int, ...], int] = {}
        self.accepted = 1.0  # drafts a step, a running mean
        self.resume = 0  # generated tokens before the next draft
        self.pause = PAUSE

    def read(self, tokens: list[int]) -> None:
        """Notes what followed each n-gram, the newest occurrence last."""
        for at in range(max(self.seen, SHORTEST), len(tokens)):
            for length in range(SHORTEST, LONGEST + 1):
                if at >= length:
                    self.last[tuple(tokens[at - length : at])] = at
        self.seen = len(tokens)

    def find(self, tokens: list[int]) -> list[int]:
        """What followed the last tokens before; the longest n-gram counts."""
        for length in range(LONGEST, SHORTEST - 1, -1):
            at = self.last.get(tuple(tokens[-length:]))
            if at is not None:
                drafts = tokens[at : at + MOST_DRAFTS]
                return drafts[: drafts.index(SOFT)] if SOFT in drafts else drafts
        return []

    def rest(self, generated: int) -> None:
        """No drafts for a while; then a fresh try."""
        self.resume = generated + self.pause
        self.pause *= 2
        self.accepted = 1.0


class Speculation:
    """Drafts for the sequences of one engine, and whether they pay."""

    def __init__(self) -> None:
        self._plain: dict[int, float] = {}  # seconds a step without drafts, by sequences
        self._row = 0.0  # seconds that one more row costs, a running mean

    def propose(self, sequence: Sequence, history: History, running: int) -> list[int]:
        """What may come next; nothing where it would not pay."""
        if running > MOST_SEQUENCES or sequence.generated_count < history.resume:
            return []
        history.read(sequence.tokens)
        drafts = history.find(sequence.tokens)
        if drafts and not self._pays(history, running, len(drafts)):
            history.rest(sequence.generated_count)
            return []
        return drafts

    def chain_limit(self, sequence: Sequence, history: History, running: int) -> int:
        """The longest chain worth taking before the next look for drafts."""
        none = running > MOST_SEQUENCES or sequence.generated_count < history.resume
        plain = self._plain.get(running, 0.0)
        return NO_LIMIT if none else max(CHAIN, int(CHAIN_SECONDS / plain) if plain else 0)

    def learn(self, sequence: Sequence, history: History, accepted: int) -> None:
        """So many of a step's drafts were accepted."""
        history.accepted += 0.25 * (accepted - history.accepted)
        if accepted:
            history.pause = PAUSE
        elif history.accepted < 0.5:
            history.rest(sequence.generated_count)

    def timed(self, sequences: int, drafts: int, seconds: float) -> None:
        """A step of that many sequences and drafts took so long."""
        if not drafts:
            before = self._plain.get(sequences, seconds)
            self._plain[sequences] = before + 0.3 * (seconds - before)
        elif sequences in self._plain:
            row = max(0.0, seconds - self._plain[sequences]) / drafts
            self._row += 0.3 * (row - self._row)

    def _pays(self, history: History, sequences: int, drafts: int) -> bool:
        plain = self._plain.get(sequences, 0.0)
        return not plain or (plain + drafts * self._row) / (1 + history.accepted) < plain
