"""One rank: its part of the plan, compiled, and the commands that it follows."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

from olivine import models
from olivine.backends import Batch, Compiled, CompileOptions, Draw, Drawn, Result, Weights, backend
from olivine.backends.base import Collectives, Int32
from olivine.backends.collectives import batch_of, weights_of
from olivine.errors import RequestError
from olivine.formats import open_checkpoint
from olivine.plan import Plan, Weight
from olivine.plan.split import Split, split
from olivine.plan.stages import stages

# Seconds that a rank waits for another. One that dies is noticed at once, by its connection; this is for one
# that hangs, and more than the slowest step takes.
TIMEOUT = 3600.0


class Parallel(NamedTuple):
    """How a model is divided: ranks of a stage, and stages."""

    tensor: int = 1
    pipeline: int = 1

    @property
    def size(self) -> int:
        return self.tensor * self.pipeline


@dataclass(frozen=True)
class Job:
    """What a rank needs to know to build its part: the same for all ranks of a group."""

    path: Path
    context: int  # that the plan is for
    device: str
    parallel: Parallel
    address: str  # where the ranks meet
    page_counts: tuple[int, ...]  # of the whole plan's cache groups
    cache_type: str
    threads: int | None


class Command(NamedTuple):
    """A step that all ranks take together. Without draws, only hidden states or logits are computed."""

    batch: Batch
    draws: list[Draw] | None = None
    tokens: int = 1
    logits: bool = True


class Rank:
    """A rank's program. Every rank runs every command, and the ranks of the last stage have its results."""

    def __init__(self, plan: Plan, weights: Weights, job: Job, number: int, collectives: Collectives) -> None:
        stage, rank = divmod(number, job.parallel.tensor)
        self._plan = plan
        self.split = divide(plan, weights, job.parallel)[stage]
        part = self.split.plans[rank]
        counts = {c.id: job.page_counts[i] for i, group in enumerate(plan.groups) for c in group.caches}

        def pages(
            page_size: int, chunk: int, cache_type: str, spare: Callable[[], int] | None = None
        ) -> tuple[list[int], int]:
            return [counts[group.caches[0].id] for group in part.groups], 0

        options = CompileOptions(pages, job.cache_type, job.threads, collectives=collectives)
        self._compiled: Compiled = backend(job.device)(part, weights_of(self.split, rank, weights), options)
        self._draws = stage == job.parallel.pipeline - 1
        # Only where one stage has both the logits and the embedding can it go on by itself.
        self._chains = job.parallel.pipeline == 1

    def run(self, command: Command) -> Result | list[Drawn]:
        program = self._compiled.program
        batch = batch_of(command.batch, self._plan, program.plan)
        generate: Callable[..., list[Drawn]] | None = getattr(program, "generate", None)
        if command.draws is None or not self._draws or generate is None:
            return program.step(batch, logits=command.logits)
        return generate(batch, command.draws, command.tokens if self._chains else 1)


def divide(plan: Plan, weights: Weights, parallel: Parallel) -> list[Split]:
    """The parts of a plan, by stage. Weights are cut between their blocks."""

    def block(weight: Weight) -> int:
        return max(tensor.dtype.block_size for tensor in weights[weight.name])

    def size(weight: Weight) -> int:
        return sum(tensor.nbytes for tensor in weights[weight.name])

    return [split(stage, parallel.tensor, block) for stage in stages(plan, parallel.pipeline, size)]


def follow(job: Job, number: int, commands: Connection) -> None:
    """The main function of a rank's process: runs commands until the driver closes the pipe."""
    from olivine.cluster.torch_collectives import TorchCollectives, require_torch

    # Ctrl-C in a terminal reaches all of its processes: the driver decides, and closes the pipe if it ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    stage, rank = divmod(number, job.parallel.tensor)
    try:
        checkpoint = open_checkpoint(job.path)
        model = models.build(
            checkpoint.architecture,
            checkpoint.naming,
            checkpoint.metadata,
            checkpoint.tensors,
            context=job.context,
        )
        require_torch()
        commands.send(None)  # nothing is left that is likely to fail: the driver can wait for this rank
        collectives = TorchCollectives(job.address, *job.parallel, rank, stage, TIMEOUT)
        member = Rank(model.plan, model.weights, job, number, collectives)
        commands.send(None)  # ready
    except BaseException as error:
        with suppress(OSError):  # the driver is gone
            commands.send(f"{type(error).__name__}: {error}")
        os._exit(1)
    try:
        while True:
            member.run(commands.recv())
    except EOFError:
        pass
    except BaseException as error:
        print(f"rank {number}: {type(error).__name__}: {error}", file=sys.stderr)
        os._exit(1)  # at once, so that the others notice


def without_masks(draws: list[Draw], vocabulary: int) -> list[Draw]:
    """The draws with their masks computed: a grammar is the driver's alone."""
    return [draw if draw.mask is None else replace(draw, mask=Mask(draw, vocabulary)) for draw in draws]


class Mask:
    """A mask that is known, or why there is none; other processes can have it."""

    def __init__(self, draw: Draw, vocabulary: int) -> None:
        self._words: Int32 | None = None
        self._error: str | None = None
        try:
            self._words = draw.legal(vocabulary)
        except RequestError as error:
            self._error = str(error)

    def __call__(self) -> Int32 | None:
        if self._error is not None:
            raise RequestError(self._error)
        return self._words
