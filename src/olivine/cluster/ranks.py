"""The processes of a group: started together, driven as one, and ended together."""

from __future__ import annotations

import multiprocessing
import socket
import threading
import weakref
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from concurrent.futures import wait as futures_wait
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import NamedTuple

from olivine.backends import Drawn, Result, Weights
from olivine.backends.owner import Owner
from olivine.cluster.ending import start
from olivine.cluster.keepalive import shut
from olivine.cluster.rank import Command, GroupCollectives, Job, Rank, child, collectives_of
from olivine.errors import OlivineError
from olivine.plan import Plan

LOOK = 0.1  # seconds between two looks at ranks that meet
START = 300.0  # seconds that ranks may take to load


class Member(NamedTuple):
    """Another rank."""

    number: int
    commands: Connection
    process: BaseProcess | None = None  # where it is a child of this one

    @property
    def name(self) -> str:
        return f"olivine rank {self.number}" + ("" if self.process else ", on another machine,")


class Ranks:
    """All ranks of a job: this process is the first of the last stage. The others are its children, or
    processes on other machines, whose connections are given (rendezvous.py)."""

    def __init__(
        self,
        plan: Plan,
        weights: Weights,
        job: Job,
        listener: socket.socket | None = None,
        others: Mapping[int, Connection] | None = None,
    ) -> None:
        self._members = [Member(number, commands) for number, commands in (others or {}).items()]
        self._children: list[BaseProcess] = []
        self._kill = weakref.finalize(self, _kill, Owner(), self._children)
        self.ended: Future[None] = Future()  # is done when another rank has ended
        far = [each.commands for each in self._members]
        mine = job.parallel.driver
        try:
            for each in self._members:
                each.commands.send((job, each.number))
            for number in range(job.parallel.size):
                if number != mine and number not in (others or {}):
                    commands, process = _child(job, number)
                    self._children.append(process)
                    self._members.append(Member(number, commands, process))
            for each in self._members:
                self._wait_until_ready(each)
            self._collectives, ready = self._meet(job, mine, listener)
            self._watch([each.process.sentinel for each in self._members if each.process])
            self._rank = Rank(plan, weights, job, mine, self._collectives)
            for each in self._members:
                if each not in ready:
                    self._wait_until_ready(each)
            self._watch(far)  # from now on they say nothing: what can be read is their end
        except BaseException:
            self.end()
            raise

    @property
    def pids(self) -> list[int]:
        """Of the other processes on this machine."""
        found = [each.process.pid for each in self._members if each.process]
        return [pid for pid in found if pid is not None]

    def run(self, command: Command) -> Result | list[Drawn]:
        """Every rank runs the command. One that fails ends its process, and then this fails."""
        for each in self._members:
            each.commands.send(command)
        return self._rank.run(command)

    def reason(self, error: Exception) -> str:
        """Why a command failed: who ended, or the error."""
        # The connections between ranks end a little before the processes do.
        gone = wait([each.commands for each in self._members], 5.0)
        ended = [each.name for each in self._members if each.commands in gone]
        return f"{', '.join(ended)} ended" if ended else f"{type(error).__name__}: {error}"

    def end(self) -> None:
        """Ends the other ranks, and frees this one: no step may run."""
        self.stop()
        if (rank := getattr(self, "_rank", None)) is not None:
            rank.close()
            del self._rank

    def stop(self) -> None:
        """Ends the other ranks, also one that hangs: a step that waits for them fails."""
        for each in self._members:
            if each.process is None:
                shut(each.commands)  # it is waited for, and closing alone would not end that
            each.commands.close()
        for process in self._children:
            process.join(0.5)
        self._kill()
        if (collectives := getattr(self, "_collectives", None)) is not None:
            collectives.close()
            del self._collectives

    def _meet(
        self, job: Job, mine: int, listener: socket.socket | None
    ) -> tuple[GroupCollectives, list[Member]]:
        """This rank's way to the others, and those of them that are ready already. They meet in a thread:
        torch would wait for minutes for one that has ended, and nothing can interrupt it."""
        found: Future[GroupCollectives] = Future()

        def meet() -> None:
            try:
                found.set_result(collectives_of(job, mine, listener=listener))
            except BaseException as error:
                found.set_exception(error)

        threading.Thread(target=meet, name="olivine-meeting", daemon=True).start()
        ready: list[Member] = []
        while not futures_wait([found], LOOK).done:
            for each in self._members:
                if each not in ready and each.commands.poll():
                    self._wait_until_ready(each)
                    ready.append(each)
        return found.result(), ready

    def _watch(self, ends: Sequence[Connection | int]) -> None:
        """When one of them ends, nobody waits for it any more."""
        # Not `self`: it may be freed while this waits.
        collectives, ended, kill = self._collectives, self.ended, self._kill

        def watch() -> None:
            with suppress(OSError):  # this process closed it
                wait(ends)
            collectives.abort()
            if kill.alive:  # else they were ended
                with suppress(InvalidStateError):  # another one was the first
                    ended.set_result(None)

        if ends:
            threading.Thread(target=watch, name="olivine-ranks", daemon=True).start()

    def _wait_until_ready(self, member: Member) -> None:
        if not member.commands.poll(START):
            raise OlivineError(f"{member.name} was not ready after {START:.0f} seconds")
        try:
            failure = member.commands.recv()
        except (EOFError, OSError):
            failure = f"{member.name} ended"
        if failure is not None:
            raise OlivineError(f"a rank could not start: {failure}", code="rank_failed")


def _child(job: Job, number: int) -> tuple[Connection, BaseProcess]:
    """A rank in a process of its own on this machine."""
    here, there = multiprocessing.Pipe()
    process = start(child, job, number, there, name=f"olivine rank {number}")
    # multiprocessing would end it when a fork of this process exits, too.
    multiprocessing.process._children.discard(process)  # type: ignore[attr-defined]
    there.close()
    return here, process


def _kill(owner: Owner, processes: Sequence[BaseProcess]) -> None:
    """Ends what is left of a group that was closed, is garbage, or whose process exits."""
    if not owner.here:
        return  # a fork of the process that has these children
    for process in processes:
        process.kill()
        process.join()
