"""The processes of a group: started together, driven as one, and ended together."""

from __future__ import annotations

import multiprocessing
import threading
from multiprocessing.connection import Connection, wait

from olivine.backends import Drawn, Result, Weights
from olivine.cluster.rank import Command, Job, Rank, collectives_of, follow
from olivine.errors import OlivineError
from olivine.plan import Plan

START = 300.0  # seconds that ranks may take to load


class Ranks:
    """All ranks of a job: this process is the first of the last stage, the others are its children."""

    def __init__(self, plan: Plan, weights: Weights, job: Job) -> None:
        self._pipes: list[Connection] = []
        self._processes: list[multiprocessing.process.BaseProcess] = []
        mine = job.parallel.driver
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
            self._collectives = collectives_of(job, mine)
            threading.Thread(target=self._watch, name="olivine-ranks", daemon=True).start()
            self._rank = Rank(plan, weights, job, mine, self._collectives)
            for pipe in self._pipes:
                self._wait_until_ready(pipe)
        except BaseException:
            self.end()
            raise

    @property
    def pids(self) -> list[int]:
        """Of the other processes."""
        return [process.pid for process in self._processes if process.pid is not None]

    def run(self, command: Command) -> Result | list[Drawn]:
        """Every rank runs the command. One that fails ends its process, and then this fails."""
        for pipe in self._pipes:
            pipe.send(command)
        return self._rank.run(command)

    def reason(self, error: Exception) -> str:
        """Why a command failed: who ended, or the error."""
        # The connection of a process ends a little before the process does.
        gone = wait([process.sentinel for process in self._processes], 5.0)
        ended = [process.name for process in self._processes if process.sentinel in gone]
        return f"{', '.join(ended)} ended" if ended else f"{type(error).__name__}: {error}"

    def end(self) -> None:
        """Ends the other ranks, and frees this one."""
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join(0.5)
            if process.is_alive():
                process.kill()
                process.join()
        if (collectives := getattr(self, "_collectives", None)) is not None:
            collectives.close()
            del self._collectives
        if (rank := getattr(self, "_rank", None)) is not None:
            rank.close()
            del self._rank

    def _watch(self) -> None:
        """When a process ends, nobody waits for it any more."""
        collectives = self._collectives
        wait([process.sentinel for process in self._processes])
        collectives.abort()

    def _wait_until_ready(self, pipe: Connection) -> None:
        if not pipe.poll(START):
            raise OlivineError(f"a rank was not ready after {START:.0f} seconds")
        try:
            failure = pipe.recv()
        except EOFError:
            failure = "its process ended"
        if failure is not None:
            raise OlivineError(f"a rank could not start: {failure}", code="rank_failed")
