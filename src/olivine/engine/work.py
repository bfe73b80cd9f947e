"""A step as data: the rows of each sequence in it, and what to draw from them."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np

from olivine.backends import Batch, Draw
from olivine.backends.base import Int32
from olivine.engine.request import Run


@dataclass
class Part:
    """Rows of one sequence in a step: its tokens [start, start + count), then drafts."""

    run: Run
    start: int
    count: int
    drafts: list[int] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)  # positions whose logits are wanted
    mask: Future[Int32 | None] | None = None  # what the run's constraint allows next

    @property
    def end(self) -> int:
        return self.start + self.count + len(self.drafts)

    @property
    def alive(self) -> bool:
        """Whether the run is still in the step: it may have ended or been preempted since it was planned."""
        return self.run.slot >= 0


@dataclass
class Rows:
    """A part, spelled out."""

    part: Part
    tokens: list[int]
    kinds: list[int]  # 1: computed as a generated row
    draws: list[Draw]

    @classmethod
    def of(cls, part: Part, embed: bool) -> Rows:
        run, tokens = part.run, slice(part.start, part.start + part.count)
        return cls(
            part,
            run.tokens[tokens] + part.drafts,
            list(run.kinds[tokens]) + [1] * len(part.drafts),
            [] if embed else [_draw(part, position) for position in part.outputs],
        )


@dataclass
class Work:
    """A step: its rows, what to draw from them, and how many tokens to go on."""

    rows: list[Rows]
    batch: Batch
    draws: list[Draw]  # none for embeddings
    tokens: int = 1
    embed: bool = False

    @classmethod
    def of(cls, rows: list[Rows], tables: tuple[Int32, ...], tokens: int, embed: bool) -> Work:
        outputs: list[int] = []
        first = 0
        for each in rows:
            outputs += [first + position - each.part.start for position in each.part.outputs]
            first += len(each.tokens)
        positions = [np.arange(each.part.start, each.part.end) for each in rows]
        batch = Batch(
            tokens=np.array([token for each in rows for token in each.tokens], np.int32),
            sequences=np.repeat(
                [each.part.run.slot for each in rows], [len(each.tokens) for each in rows]
            ).astype(np.int32),
            positions=np.concatenate(positions).astype(np.int32),
            outputs=np.array(outputs, np.int32),
            tables=tables,
            generated=np.array([kind for each in rows for kind in each.kinds], bool),
        )
        return cls(rows, batch, [draw for each in rows for draw in each.draws], tokens, embed)

    @property
    def parts(self) -> list[Part]:
        return [each.part for each in self.rows]

    def apart(self) -> list[Work]:
        """The same step, one sequence at a time."""
        return [Work.of([each], self.batch.tables, self.tokens, self.embed) for each in self.rows]


def _draw(part: Part, position: int) -> Draw:
    run, request = part.run, part.run.request
    if request.job == "score":
        return Draw(request.sampling, logprobs=1, forced=run.tokens[position + 1])
    drafts = part.drafts[: position - (part.start + part.count - 1)] if part.drafts else []
    return Draw(
        request.sampling,
        prompt=request.prompt,
        output=run.output + drafts,
        mask=None if part.mask is None else part.mask.result,
        stop=request.stop,
        at_least=max(0, request.min_tokens - run.generated_count - len(drafts)),
        logprobs=request.logprobs,
    )
