"""A scheduled step as data: the chunk of each sequence in it, and what to draw from them."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from olivine.backends import Batch, Draw
from olivine.backends.base import Int32
from olivine.engine.sequence import Sequence


@dataclass(slots=True)
class Chunk:
    """Rows of one sequence in a step: its tokens [start, start + count), then drafts."""

    sequence: Sequence
    start: int
    count: int
    outputs: list[int]  # positions whose logits or hidden states are needed
    drafts: list[int] = field(default_factory=list)
    decode: bool = False  # its last token and drafts; otherwise prefill
    # Filled in once the chunk is sure to run.
    tokens: list[int] = field(default_factory=list)
    kinds: list[int] = field(default_factory=list)  # 1: a generated row, 0: a prompt row
    draws: list[Draw] = field(default_factory=list)

    @property
    def end(self) -> int:
        return self.start + self.count + len(self.drafts)

    @property
    def alive(self) -> bool:
        """Whether the sequence still runs: it may have ended or been preempted since the chunk was made."""
        return self.sequence.slot >= 0

    def fill(self) -> None:
        """Its rows, and the draws of its outputs."""
        sequence, rows = self.sequence, slice(self.start, self.start + self.count)
        self.tokens = sequence.tokens[rows] + self.drafts
        self.kinds = [*sequence.kinds[rows], *(1 for _ in self.drafts)]
        self.draws = sequence.job.draws(self)


@dataclass
class Step:
    """A batch, what to draw from it, and how many tokens to go on."""

    chunks: list[Chunk]
    batch: Batch
    draws: list[Draw]  # one an output; none for hidden states
    tokens: int = 1  # of each sequence; more than one: a chain
    hidden: bool = False  # hidden states are needed instead of logits

    @classmethod
    def of(cls, chunks: list[Chunk], tables: tuple[Int32, ...], tokens: int, hidden: bool) -> Step:
        outputs: list[int] = []
        first = 0
        for each in chunks:
            outputs += [first + position - each.start for position in each.outputs]
            first += len(each.tokens)
        positions = [np.arange(each.start, each.end) for each in chunks]
        batch = Batch(
            tokens=np.array([token for each in chunks for token in each.tokens], np.int32),
            sequences=np.repeat(
                [each.sequence.slot for each in chunks], [len(each.tokens) for each in chunks]
            ).astype(np.int32),
            positions=np.concatenate(positions).astype(np.int32),
            outputs=np.array(outputs, np.int32),
            tables=tables,
            generated=np.array([kind for each in chunks for kind in each.kinds], bool),
        )
        return cls(chunks, batch, [draw for each in chunks for draw in each.draws], tokens, hidden)

    def split(self) -> list[Step]:
        """The same step, one sequence at a time."""
        return [Step.of([each], self.batch.tables, self.tokens, self.hidden) for each in self.chunks]
