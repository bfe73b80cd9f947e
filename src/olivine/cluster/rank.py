"""One rank: its part of the plan, compiled, and the commands that it follows."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Literal, NamedTuple, Protocol, cast

from olivine import models
from olivine.backends import (
    Batch,
    ClosingProgram,
    Compiled,
    CompileOptions,
    Draw,
    Drawn,
    Result,
    Weights,
    backend,
)
from olivine.backends.base import Collectives, Int32
from olivine.backends.collectives import batch_of, weights_of
from olivine.cluster.ending import begin, end_with_driver
from olivine.errors import OlivineError, RequestError
from olivine.formats import open_checkpoint
from olivine.pages import release
from olivine.plan import Plan, Weight
from olivine.plan.split import Split, split
from olivine.plan.stages import stages

# Seconds that a rank waits for another. One that dies is noticed at once, by its connection; this is for one
# that hangs, and more than the slowest step takes.
TIMEOUT = 3600.0


Way = Literal["shm", "gloo", "nccl"]  # shared memory; torch.distributed between hosts; between GPUs


class Parallel(NamedTuple):
    """How a model is divided: ranks of a stage, and stages."""

    tensor: int = 1
    pipeline: int = 1

    @property
    def size(self) -> int:
        return self.tensor * self.pipeline

    @property
    def driver(self) -> int:
        """The rank of the process that was started: the first of the last stage, which has the results."""
        return (self.pipeline - 1) * self.tensor


@dataclass(frozen=True)
class Job:
    """What a rank needs to know to build its part: the same for all ranks of a group."""

    path: Path
    context: int  # that the plan is for
    device: str
    parallel: Parallel
    page_counts: tuple[int, ...]  # of the whole plan's cache groups
    cache_type: str
    threads: int | None
    way: Way  # how the ranks meet
    place: str = ""  # where they do: the file that they map, or host:port
    gpus: tuple[int, ...] = ()  # of each rank, where they run on GPUs


class GroupCollectives(Protocol):
    """Collectives between processes, of arrays or of tensors on a GPU."""

    def abort(self) -> None:
        """A rank has ended: whoever waits for it fails. May be called while another thread waits."""
        ...

    def close(self) -> None: ...


def collectives_of(
    job: Job, number: int, parent: int = 0, listener: socket.socket | None = None
) -> GroupCollectives:
    """A rank's way to the others. `parent`: the process whose end ends this rank. `listener`: the driver's,
    where torch's ranks meet."""
    stage, rank = divmod(number, job.parallel.tensor)
    if job.way == "shm":
        from olivine.backends.cpu.shm import ShmCollectives

        return ShmCollectives(Path(job.place), *job.parallel, rank, stage, parent)
    from olivine.cluster import torch_collectives

    kinds = {"gloo": torch_collectives.GlooCollectives, "nccl": torch_collectives.NcclCollectives}
    return kinds[job.way](job.place, *job.parallel, rank, stage, TIMEOUT, listener)


class Command(NamedTuple):
    """A step that all ranks take together. Without draws, only hidden states or logits are computed."""

    batch: Batch
    draws: list[Draw] | None = None
    tokens: int = 1
    logits: bool = True


class Rank:
    """A rank's program. Every rank runs every command, and the ranks of the last stage have its results."""

    def __init__(
        self, plan: Plan, weights: Weights, job: Job, number: int, collectives: GroupCollectives
    ) -> None:
        stage, rank = divmod(number, job.parallel.tensor)
        self._plan = plan
        self.split = divide(plan, weights, job.parallel)[stage]
        part = self.split.plans[rank]
        counts = {c.id: job.page_counts[i] for i, group in enumerate(plan.groups) for c in group.caches}

        def pages(*_: object, **__: object) -> tuple[list[int], int]:
            return [counts[group.caches[0].id] for group in part.groups], 0

        options = CompileOptions(
            pages, job.cache_type, job.threads, collectives=cast(Collectives, collectives)
        )
        self._compiled: Compiled = backend(job.device)(part, weights_of(self.split, rank, weights), options)
        for (
            cut
        ) in self.split.parts.values():  # columns were copied: what they were copied from is not read again
            if cut.axis != 0:
                for tensor in weights[cut.name]:
                    release(tensor.data)
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

    def close(self) -> None:
        """Frees the KV cache."""
        if isinstance(self._compiled.program, ClosingProgram):
            self._compiled.program.close()


def divide(plan: Plan, weights: Weights, parallel: Parallel) -> list[Split]:
    """The parts of a plan, by stage. Weights are cut between their blocks."""

    def block(weight: Weight) -> int:
        return max(tensor.dtype.block_size for tensor in weights[weight.name])

    def size(weight: Weight) -> int:
        return sum(tensor.nbytes for tensor in weights[weight.name])

    return [split(stage, parallel.tensor, block) for stage in stages(plan, parallel.pipeline, size)]


def local_ranks(parallel: Parallel, nodes: int) -> range:
    """The ranks of the driver's machine, of so many machines. Each has as many, with numbers in a row."""
    if parallel.size % nodes:
        raise RequestError(f"{parallel.size} ranks cannot be shared evenly by {nodes} machines")
    each = parallel.size // nodes
    first = parallel.driver // each * each
    return range(first, first + each)


def gpus_of(parallel: Parallel, local: int, count: int) -> tuple[int, ...]:
    """The GPU of each rank, of `count` on its machine, which has `local` ranks. The driver's is the first."""
    return tuple((number - parallel.driver) % local % count for number in range(parallel.size))


def child(job: Job, number: int, commands: Connection) -> None:
    """The main function of the process of a rank on the driver's machine."""
    begin()
    follow(job, number, commands)


def follow(job: Job, number: int, commands: Connection) -> None:
    """Loads a rank, and runs commands until the driver closes the pipe: it decides what is finished before
    the program ends."""
    ready = end_with_driver(commands)
    try:
        checkpoint = open_checkpoint(job.path)
        model = models.build(
            checkpoint.architecture,
            checkpoint.naming,
            checkpoint.metadata,
            checkpoint.tensors,
            context=job.context,
        )
        if job.gpus:
            import torch

            torch.cuda.set_device(job.gpus[number])
        commands.send(None)  # nothing is left that is likely to fail: the driver can wait for this rank
        collectives = collectives_of(job, number, os.getppid())
        member = Rank(model.plan, model.weights, job, number, collectives)
        ready.set()
        commands.send(None)  # ready
    except BaseException as error:
        with suppress(OSError):  # the driver is gone
            told = str(error) if isinstance(error, OlivineError) else f"{type(error).__name__}: {error}"
            commands.send(told)
        os._exit(1)
    while True:
        try:
            command = commands.recv()
        except (EOFError, OSError):
            return
        try:
            member.run(command)
        except BaseException as error:
            if not commands.poll():  # else the driver has ended
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
