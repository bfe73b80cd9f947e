"""A scheduled step as data: the chunk of each sequence in it, and what to draw from them."""

from __future__ import annotations

from collections import abc
from dataclasses import dataclass, field, replace

import numpy as np

from olivine.backends import Batch, Draw
from olivine.backends.base import Float32, Int32
from olivine.engine.media import MediaBlock
from olivine.engine.sequence import Sequence


@dataclass(slots=True, eq=False)
class Chunk:
    """Rows of one sequence in a step: its tokens [start, start + count), then drafts."""

    sequence: Sequence
    start: int
    count: int
    outputs: abc.Sequence[int]  # positions whose logits or hidden states are needed
    drafts: list[int]
    decode: bool  # its last token and drafts; otherwise prefill
    # Filled in once the chunk is sure to run.
    tokens: list[int] = field(init=False, repr=False)
    kinds: bytearray = field(init=False, repr=False)  # 1: a generated row, 0: a prompt row
    draws: list[Draw] = field(init=False, repr=False)
    media: list[MediaBlock] = field(init=False, repr=False)  # that the chunk has rows of

    @property
    def end(self) -> int:
        return self.start + self.count + len(self.drafts)

    @property
    def alive(self) -> bool:
        """Whether the sequence still runs: it may have ended or been preempted since the chunk was made."""
        return self.sequence.slot >= 0

    def fill(self) -> None:
        """Its rows, and the draws of its outputs."""
        sequence, start, end = self.sequence, self.start, self.start + self.count
        self.tokens, self.kinds, self.media = sequence.tokens[start:end], sequence.kinds[start:end], []
        if start < sequence.media_end:
            self.media = [each for each in sequence.media if each.start < end and start < each.end]
        if self.drafts:
            self.tokens += self.drafts
            self.kinds += b"\1" * len(self.drafts)
        self.draws = sequence.job.draws(self)


@dataclass
class Step:
    """A batch, and what to draw from it."""

    chunks: list[Chunk]
    batch: Batch
    draws: list[Draw]  # one an output; none for hidden states
    tokens: int = 1  # to draw for each sequence; more than one: a chain
    hidden: bool = False  # hidden states are needed instead of logits

    @classmethod
    def of(cls, chunks: list[Chunk], tables: tuple[Int32, ...], tokens: int, hidden: bool) -> Step:
        rows: list[int] = []
        outputs: list[int] = []
        draws: list[Draw] = []
        for each in chunks:
            first = len(rows) - each.start
            outputs += [first + position for position in each.outputs]
            rows += each.tokens
            draws += each.draws
        sequences = np.array([each.sequence.slot for each in chunks], np.int32)
        positions = np.array([each.start for each in chunks], np.int32)
        if len(rows) > len(chunks):  # more than one row each
            counts = np.array([len(each.tokens) for each in chunks], np.int32)
            ahead = np.cumsum(counts, dtype=np.int32) - counts
            sequences = np.repeat(sequences, counts)
            positions = np.repeat(positions - ahead, counts) + np.arange(len(rows), dtype=np.int32)
        batch = Batch(
            tokens=np.array(rows, np.int32),
            sequences=sequences,
            positions=positions,
            outputs=np.array(outputs, np.int32),
            tables=tables,
            generated=np.frombuffer(bytearray().join([each.kinds for each in chunks]), np.bool_),
        )
        if any(each.media for each in chunks):
            batch = with_media(batch, chunks)
        return cls(chunks, batch, draws, tokens, hidden)

    def split(self) -> list[Step]:
        """The same step, one sequence at a time."""
        return [Step.of([each], self.batch.tables, self.tokens, self.hidden) for each in self.chunks]


def with_media(batch: Batch, chunks: list[Chunk]) -> Batch:
    """The batch of these chunks with the embeddings of their soft tokens, and with what those see."""
    rows: list[Int32] = []
    embeddings: list[Float32] = []
    last = batch.positions.copy()
    ahead = 0
    for chunk in chunks:
        for block in chunk.media:
            start, end = max(chunk.start, block.start), min(chunk.end, block.end)
            at = np.arange(start, end, dtype=np.int32) + (ahead - chunk.start)
            rows.append(at)
            embeddings.append(block.embeddings[start - block.start : end - block.start])
            if block.bidirectional:
                last[at] = block.end - 1
        ahead += len(chunk.tokens)
    return replace(
        batch,
        tokens=np.maximum(batch.tokens, 0),  # which token stands there does not matter
        embedding_rows=np.concatenate(rows),
        embeddings=np.concatenate(embeddings),
        last=None if np.array_equal(last, batch.positions) else last,
    )
