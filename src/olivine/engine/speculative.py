"""Speculation without a second model: what followed the last few tokens before may follow them again.

Guesses are verified in one step as generated rows, so what comes out is what would have come out without.
A step with guesses costs more than one without: both are timed, and where guessing does not pay it is left.
"""

from __future__ import annotations

from olivine.engine.request import Run

LONGEST, SHORTEST = 5, 3  # tokens that must recur
MOST = 6  # tokens guessed at once
# A run that guesses badly pauses for so many tokens, and twice as long each time.
PAUSE = 32


class _Memory:
    """Where each run of tokens was last followed by something."""

    def __init__(self) -> None:
        self.seen = 0  # tokens that are in `last`
        self.last: dict[tuple[int, ...], int] = {}
        self.hits = 1.0  # accepted guesses a step, a running mean
        self.resume = 0  # generated tokens before the next guess
        self.pause = PAUSE


class Speculation:
    """Guesses for the runs of one engine, and whether they pay."""

    def __init__(self) -> None:
        self._plain: dict[int, float] = {}  # seconds a step without guesses, by sequences
        self._row = 0.0  # seconds that one more row costs, a running mean

    def propose(self, run: Run, sequences: int) -> list[int]:
        """What may come next; nothing where it would not pay."""
        memory = self._memory(run)
        self._read(run, memory)
        if sequences > 2 or run.generated_count < memory.resume:
            return []
        for length in range(LONGEST, SHORTEST - 1, -1):
            at = memory.last.get(tuple(run.tokens[-length:]))
            if at is not None:
                guess = run.tokens[at : at + MOST]
                if self._pays(memory, sequences, len(guess)):
                    return guess
                self._rest(run, memory)
                return []
        return []

    def patience(self, run: Run) -> int:
        """The longest chain worth taking before the next look back."""
        memory = self._memory(run)
        return 64 if run.generated_count < memory.resume else 4

    def learn(self, run: Run, guessed: int, accepted: int) -> None:
        memory = self._memory(run)
        memory.hits += 0.25 * (accepted - memory.hits)
        if accepted:
            memory.pause = PAUSE
        elif memory.hits < 0.5:
            self._rest(run, memory)

    def timed(self, sequences: int, guesses: int, seconds: float) -> None:
        """A step of that many sequences and guesses took so long."""
        if not guesses:
            before = self._plain.get(sequences, seconds)
            self._plain[sequences] = before + 0.3 * (seconds - before)
        elif sequences in self._plain:
            row = max(0.0, seconds - self._plain[sequences]) / guesses
            self._row += 0.3 * (row - self._row)

    def _pays(self, memory: _Memory, sequences: int, guesses: int) -> bool:
        plain = self._plain.get(sequences, 0.0)
        return not plain or (plain + guesses * self._row) / (1 + memory.hits) < plain

    def _rest(self, run: Run, memory: _Memory) -> None:
        """No guesses for a while; then a fresh try."""
        memory.resume = run.generated_count + memory.pause
        memory.pause *= 2
        memory.hits = 1.0

    def _memory(self, run: Run) -> _Memory:
        if run.memory is None:
            run.memory = _Memory()
        memory = run.memory
        assert isinstance(memory, _Memory)
        return memory

    def _read(self, run: Run, memory: _Memory) -> None:
        """Remembers what followed each run of tokens, the newest occurrence last."""
        tokens = run.tokens
        for at in range(max(memory.seen, SHORTEST), len(tokens)):
            for length in range(SHORTEST, LONGEST + 1):
                if at >= length:
                    memory.last[tuple(tokens[at - length : at])] = at
        memory.seen = len(tokens)
