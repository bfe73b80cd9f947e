"""How many prompt rows a step takes and how long a chain is: as many as the clock allows."""

from __future__ import annotations

from olivine.backends import CHUNK, Program
from olivine.engine.speculative import Speculation
from olivine.engine.step import Step

LEAST_ROWS = 32
# Seconds. While others decode, a step with prompt rows should not take longer than this …
STEP = 0.12
# … and a chain not longer than this: smooth to read, and cancellations are heard between two of them.
CHAIN = 0.08
LONGEST_CHAIN = 64  # tokens, whose pages are taken ahead


class Pace:
    """Follows the times of the steps."""

    def __init__(self, program: Program, speculation: Speculation | None) -> None:
        self._program = program
        self._rows = min(CHUNK, program.chunk)
        self._chain = 1.0
        self._speculation = speculation

    def prefill_rows(self, decoding: bool) -> int:
        """Prompt rows for a step in which others decode, or in which none do."""
        return self._rows if decoding else self._program.chunk

    @property
    def chain_length(self) -> int:
        return int(self._chain)

    def restart(self) -> None:
        """The next chain is one token: the first tokens of a sequence come at once."""
        self._chain = 1.0

    def adapt(self, step: Step, seconds: float) -> None:
        """The step took so long."""
        decoding = sum(chunk.decode for chunk in step.chunks)
        if decoding == len(step.chunks):
            each = seconds / step.tokens
            if self._speculation is not None:
                drafts = sum(len(chunk.drafts) for chunk in step.chunks)
                self._speculation.timed(decoding, drafts, each)
            self._chain = min(2 * self._chain, max(1.0, CHAIN / max(each, 1e-6)), LONGEST_CHAIN)
        elif decoding:
            factor = 0.7 if seconds > STEP else 1.4 if seconds < 0.7 * STEP else 1.0
            self._rows = int(min(self._program.chunk, max(LEAST_ROWS, self._rows * factor)) / 16) * 16
