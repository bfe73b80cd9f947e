"""The driver of a group of ranks: a program like any other for the engine, whose steps all ranks take."""

from __future__ import annotations

import multiprocessing
import socket
import threading
from collections.abc import Sequence
from importlib import import_module
from multiprocessing.connection import Connection, wait
from pathlib import Path

from olivine.backends import (
    BACKENDS,
    CHUNK,
    Batch,
    Compiled,
    CompileOptions,
    Draw,
    Drawn,
    Result,
    Weights,
    refuse_cache_type,
)
from olivine.cluster.rank import TIMEOUT, Command, Job, Parallel, Rank, divide, follow, without_masks
from olivine.cluster.torch_collectives import TorchCollectives, require_torch
from olivine.errors import ClosedError, OlivineError
from olivine.plan import Plan

__all__ = ["Group", "Parallel", "compile_group"]
START = 300.0  # seconds that ranks may take to load


class Group:
    """The ranks of a model, this process being the first of the last stage, and the others its children.

    A rank that dies or fails ends the group: the step raises, and so does every later one.
    """

    one_kind = False

    def __init__(self, plan: Plan, weights: Weights, job: Job, chunk: int, page_size: int) -> None:
        self.plan, self.page_size, self.chunk = plan, page_size, chunk
        self.page_counts = job.page_counts
        self._parallel = job.parallel
        self._lock = threading.Lock()
        self._broken: str | None = None
        self._pipes: list[Connection] = []
        self._processes: list[multiprocessing.process.BaseProcess] = []
        parts = divide(plan, weights, job.parallel)  # refuses before any process starts
        self.notes = tuple(dict.fromkeys(note for part in parts for note in part.notes))
        mine = (job.parallel.pipeline - 1) * job.parallel.tensor
        context = multiprocessing.get_context("spawn")
        try:
            for number in range(job.parallel.size):
                if number == mine:
                    continue
                here, there = context.Pipe()
                process = context.Process(
                    target=follow, args=(job, number, there), name=f"olivine rank {number}", daemon=True
                )
                process.start()
                there.close()
                self._pipes.append(here)
                self._processes.append(process)
            for pipe in self._pipes:
                self._wait_until_ready(pipe)
            stage, rank = divmod(mine, job.parallel.tensor)
            self._collectives = TorchCollectives(job.address, *job.parallel, rank, stage, TIMEOUT)
            self._rank = Rank(plan, weights, job, mine, self._collectives)
            for pipe in self._pipes:
                self._wait_until_ready(pipe)
        except BaseException:
            self.close()
            raise

    def step(self, batch: Batch, *, logits: bool = True) -> Result:
        batch.check(self.plan, self.plan.vocabulary, self.page_counts, self.page_size)
        found = self._run(Command(batch, logits=logits))
        assert isinstance(found, Result)
        return found

    def _run(self, command: Command) -> Result | list[Drawn]:
        with self._lock:
            if self._broken is not None:
                raise ClosedError(self._broken)
            try:
                for pipe in self._pipes:
                    pipe.send(command)
                return self._rank.run(command)
            except Exception as error:
                # The connection of a process ends a little before the process does.
                gone = wait([p.sentinel for p in self._processes], 5.0)
                ended = [p.name for p in self._processes if p.sentinel in gone]
                why = f"{', '.join(ended)} ended" if ended else f"{type(error).__name__}: {error}"
                self._broken = (
                    f"the group of {self._parallel.size} ranks failed ({why}): load the model again"
                )
                self._end()
                raise OlivineError(self._broken, code="rank_failed") from error

    def close(self) -> None:
        """Ends the other ranks."""
        with self._lock:
            self._broken = self._broken or "the model was closed"
            self._end()

    def _end(self) -> None:
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join(0.5)
            if process.is_alive():
                process.kill()
        if (collectives := getattr(self, "_collectives", None)) is not None:
            collectives.close()
            del self._collectives

    def _wait_until_ready(self, pipe: Connection) -> None:
        if not pipe.poll(START):
            raise OlivineError(f"a rank was not ready after {START:.0f} seconds")
        try:
            failure = pipe.recv()
        except EOFError:
            failure = "its process ended"
        if failure is not None:
            raise OlivineError(f"a rank could not start: {failure}", code="rank_failed")


class DrawingGroup(Group):
    """A group whose backend draws tokens. Every rank that has the logits draws the same."""

    def generate(self, batch: Batch, draws: Sequence[Draw], n: int = 1) -> list[Drawn]:
        batch.check(self.plan, self.plan.vocabulary, self.page_counts, self.page_size)
        found = self._run(Command(batch, without_masks(list(draws), self.plan.logits.width), n))
        assert isinstance(found, list)
        return found


def compile_group(
    plan: Plan,
    weights: Weights,
    options: CompileOptions,
    path: Path,
    context: int,
    device: str,
    parallel: Parallel,
) -> Compiled:
    """A plan on several processes of this machine, as `backend.compile` gives it on one."""
    require_torch()
    module = import_module(BACKENDS[device])
    if not hasattr(module, "CACHE_TYPE"):
        raise OlivineError(f"the ranks of a group run on the CPU, not yet on {device!r}")
    cache_type = options.cache_type or module.CACHE_TYPE
    refuse_cache_type(plan, cache_type)
    counts, size = options.pages(module.PAGE_SIZE, CHUNK, cache_type)
    threads = options.threads
    job = Job(path, context, device, parallel, free_address(), tuple(counts), cache_type, threads)
    kind = DrawingGroup if module.DRAWS else Group
    group = kind(plan, weights, job, CHUNK, module.PAGE_SIZE)
    return Compiled(group, f"{device}, {parallel.size} ranks", size, cache_type, notes=group.notes)


def free_address() -> str:
    """Where the ranks of this machine meet, host:port: a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"
