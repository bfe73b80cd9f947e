"""A group of ranks as a program like any other for the engine, whose steps all ranks take."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path

from olivine.backends import (
    BACKENDS,
    Batch,
    Compiled,
    CompileOptions,
    Draw,
    Drawn,
    Result,
    Share,
    Weights,
    refuse_cache_type,
)
from olivine.backends.owner import Owner
from olivine.cluster.memory import shares
from olivine.cluster.rank import (
    Command,
    Job,
    Parallel,
    Way,
    divide,
    gpus_of,
    local_ranks,
    without_masks,
)
from olivine.cluster.ranks import Ranks
from olivine.cluster.rendezvous import Address, Meeting, digest_of, gather, listening
from olivine.cluster.torch_collectives import require_torch
from olivine.errors import ClosedError, RankError
from olivine.formats import open_checkpoint
from olivine.plan import Plan

__all__ = ["Group", "Parallel", "compile_group"]
# Seconds before each try to start a group again. One that worked for so long begins with the first again.
DELAYS = (0.0, 1.0, 5.0, 15.0, 30.0)
LASTED = 60.0
LOOPBACK = "127.0.0.1"
LAST_STEP = 10.0  # seconds that a group which is closed waits for a step


class Group:
    """The ranks of a model. If one dies or fails, the step fails and so does its KV cache: all processes are
    ended, and the group is started again while further steps wait for it."""

    one_kind = False

    def __init__(
        self, plan: Plan, start: Callable[[], Ranks], page_counts: Sequence[int], page_size: int, chunk: int
    ) -> None:
        self.plan, self.page_size, self.chunk = plan, page_size, chunk
        self.page_counts = tuple(page_counts)
        self.obstacle: str | None = None  # why no step can run now
        self.given_up = False  # … nor later
        self._start = start
        self._changed = threading.Condition()
        self._closed = False
        self._owner = Owner()
        self._loss: RankError | None = None
        self._tries = 0
        self._lock = threading.Lock()  # one step at a time
        self._ranks: Ranks | None = start()
        self._started = time.monotonic()
        self._watch(self._ranks)

    @property
    def pids(self) -> list[int]:
        """Of the processes of the other ranks."""
        return [] if self._ranks is None else self._ranks.pids

    @property
    def closed(self) -> bool:
        return self._closed

    def step(self, batch: Batch, *, logits: bool = True) -> Result:
        batch.check(self.plan, self.plan.vocabulary, self.page_counts, self.page_size)
        found = self._run(Command(batch, logits=logits))
        assert isinstance(found, Result)
        return found

    def close(self) -> None:
        """Ends the other ranks. A fork of this process has none, and a lock there may never be free."""
        if not self._owner.here:
            return
        with self._changed:
            self._closed = True
            ranks, self._ranks = self._ranks, None
            self._changed.notify_all()
        if ranks is None:
            return
        ranks.stop()
        if self._lock.acquire(timeout=LAST_STEP):  # else a machine hangs: this rank's memory is not freed
            try:
                ranks.end()
            finally:
                self._lock.release()

    interrupt = close  # a step that runs fails

    def loss(self) -> RankError | None:
        """Why the KV cache was lost while no step ran, since this was asked last."""
        with self._changed:
            found, self._loss = self._loss, None
        return found

    def _run(self, command: Command) -> Result | list[Drawn]:
        with self._lock:
            if (loss := self.loss()) is not None:  # the batch counts on what is no longer in the KV cache
                raise loss
            ranks = self._working()
            try:
                return ranks.run(command)
            except Exception as error:
                if self._closed:
                    raise ClosedError("the model was closed") from error
                raise self._failed(ranks, error) from error

    def wait(self, seconds: float) -> bool:
        """Whether there are ranks, for which this waits so long at most; or that they were closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._ranks or self._closed or self.given_up, seconds)
            return self._ranks is not None or self._closed

    def _working(self) -> Ranks:
        with self._changed:
            if self._closed:
                raise ClosedError("the model was closed")
            if self._ranks is None:
                raise RankError(str(self.obstacle))
            return self._ranks

    @property
    def _starts_again(self) -> bool:
        return self._tries < len(DELAYS)

    def _failed(self, ranks: Ranks, error: Exception) -> RankError:
        """Ends the ranks, and starts others in the background; what to tell."""
        why = ranks.reason(error)
        with self._changed:
            if self._closed:  # who closed it has ended the ranks
                raise ClosedError("the model was closed") from error
            self._ranks = None
            if time.monotonic() - self._started > LASTED:
                self._tries = 0
            self._tell(why)
            told = f"the group of ranks failed ({why}): try again" if self._starts_again else self.obstacle
        ranks.end()
        threading.Thread(target=self._restart, args=(why,), name="olivine-restart", daemon=True).start()
        return RankError(str(told))

    def _restart(self, why: str) -> None:
        while self._starts_again:
            delay = DELAYS[self._tries]
            with self._changed:
                self._tries += 1
                if self._changed.wait_for(lambda: self._closed, delay):
                    return
            try:
                ranks = self._start()
            except Exception as error:
                why = str(error)
                with self._changed:
                    self._tell(why)
                continue
            with self._changed:
                if not (closed := self._closed):
                    self._ranks, self.obstacle, self._started = ranks, None, time.monotonic()
                    self._changed.notify_all()
            if closed:
                ranks.end()
            else:
                self._watch(ranks)
            return
        with self._changed:
            self._tell(why)
            self.given_up = True
            self._changed.notify_all()

    def _watch(self, ranks: Ranks) -> None:
        """Ranks of which one ends are started again, also where no step runs."""
        group, watched = weakref.ref(self), weakref.ref(ranks)  # the watching thread does not keep them

        def lost(_: Future[None]) -> None:
            if (found := group()) is not None and (ranks := watched()) is not None:
                found._lost(ranks)

        ranks.ended.add_done_callback(lost)

    def _lost(self, ranks: Ranks) -> None:
        with self._lock:  # a step that runs fails, and starts them again itself
            if self._ranks is ranks:
                with suppress(ClosedError):
                    self._loss = self._failed(ranks, RankError("a rank ended"))

    def _tell(self, why: str) -> None:
        again = (
            "is being started again" if self._starts_again else "is not started again: load the model again"
        )
        self.obstacle = f"the group of ranks failed ({why}) and {again}"


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
    *,
    gloo: bool = False,
    meeting: Meeting | None = None,
) -> Compiled:
    """A plan on several processes, as `backend.compile` gives it on one. They are on this machine, or at
    `meeting` those of other machines join them.

    Ranks with a GPU each meet by NCCL, all others in shared memory, or by gloo: between machines, and where
    it is asked for."""
    module = import_module(BACKENDS[device])
    cache_type = options.cache_type or module.CACHE_TYPE
    refuse_cache_type(plan, cache_type)
    parts = divide(plan, weights, parallel)  # refuses before any process starts
    notes = tuple(dict.fromkeys(note for part in parts for note in part.notes))
    nodes = 1 if meeting is None else meeting.nodes
    here = local_ranks(parallel, nodes)
    way: Way = "gloo" if gloo or meeting is not None else "shm"
    gpus: tuple[int, ...] = ()
    if device == "cuda":
        count = require_torch().cuda.device_count()
        gpus = gpus_of(parallel, len(here), count)
        way = "nccl" if len(here) <= count and not gloo else way
    if way != "shm":
        require_torch()
    sizes = []
    for share in shares(plan, weights, parallel, nodes, device):
        spare = partial(_spare_bytes, share) if device == "cuda" else None
        sizes.append(options.pages(module.PAGE_SIZE, module.CHUNK, cache_type, spare, share))
    # No more than every device has room for.
    counts = [min(each) for each in zip(*(found for found, _ in sizes), strict=True)]
    size = max(taken for _, taken in sizes)
    job = Job(path, context, device, parallel, tuple(counts), cache_type, options.threads, way, gpus=gpus)

    far = [number for number in range(parallel.size) if number not in here]
    model = digest_of(open_checkpoint(path)) if meeting is not None else b""

    def waiting() -> None:
        if group is not None and group.closed:  # nobody waits for the ranks, and others may use the address
            raise ClosedError("the model was closed")
        if options.progress is not None and group is None:  # nobody follows how it is started again
            options.progress(0, 0)

    def start() -> Ranks:
        if way != "shm":
            came = [] if meeting is None else gather(meeting, len(far), model, waiting)
            others = dict(zip(far, came, strict=True))
            with listening(LOOPBACK if meeting is None else meeting.address.host) as listener:
                place = str(Address(*listener.getsockname()[:2]))
                return Ranks(plan, weights, replace(job, place=place), listener, others)
        from olivine.backends.cpu.shm import shared_file

        with shared_file(*parallel) as file:
            return Ranks(plan, weights, replace(job, place=str(file)))

    kind = DrawingGroup if module.DRAWS else Group
    group: Group | None = None
    group = kind(plan, start, counts, module.PAGE_SIZE, module.CHUNK)
    reads_files = device != "cuda"
    told = f"{device}, {parallel.size} ranks"
    return Compiled(group, told, size, cache_type, reads_files=reads_files, notes=notes)


def _spare_bytes(share: Share) -> int:
    """Bytes that a GPU has left for a KV cache beside its share of the weights."""
    from olivine.backends.cuda import free_bytes

    return max(0, free_bytes() - share.weights)
