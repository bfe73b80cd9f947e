"""Media from any thread or task: a few worker processes, started when they are needed."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from olivine.errors import ClosedError, MediaError, OlivineError
from olivine.media.features import Features, Kind, Prepared
from olivine.media.limits import Limits
from olivine.media.options import AudioOptions, ImageOptions, Options, VideoFrames
from olivine.media.process import Idle, WorkerProcess
from olivine.media.sources import source_of

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

_WORKERS = 2


class MediaProcessor:
    """Decodes and preprocesses media in worker processes with limits, so that a hostile file harms nothing.

    A process starts with the first request, serves those that follow, and ends when it had none for
    `limits.idle` seconds. Where all are busy, a request waits.
    """

    def __init__(self, limits: Limits | None = None, *, workers: int = _WORKERS) -> None:
        self.limits = limits or Limits()
        self._workers = workers
        self._idle: list[WorkerProcess] = []
        self._all: set[WorkerProcess] = set()
        self._places = threading.Semaphore(workers)
        self._lock = threading.Lock()
        self._closed = False
        self._executor: ThreadPoolExecutor | None = None
        self._owner = os.getpid()
        self._finalizer = weakref.finalize(self, _end_all, self._all, self._owner)

    def prepare(self, kind: Kind, given: Any, options: Options, *, paths: bool = True) -> Prepared:
        """A medium as the rows of a tower. `given` is a path, bytes, a data URL, base64, a PIL image or an
        array; without `paths` a text is never a file's name."""
        return self._gathered(kind, given, options, paths, Job())

    def stream(
        self, kind: Kind, given: Any, options: Options, *, paths: bool = True, job: Job | None = None
    ) -> Iterator[tuple[float, Features]]:
        """The parts of a medium as they are ready, each with the seconds at which it begins. A long sound is
        decoded as it is read, and takes no memory."""
        if os.getpid() != self._owner:  # locks may be held for ever here
            raise OlivineError("worker processes for media belong to the parent of this fork", code="forked")
        _check_options(kind, options)
        source = source_of(kind, given, paths=paths)
        source.check(self.limits)
        job = job or Job()
        with self._places:
            while True:
                worker = self._take()
                job.begin(worker)
                try:
                    yield from worker.ask(source, options)
                    return
                except Idle:
                    continue
                except MediaError:
                    if self._closed:
                        raise ClosedError("the model was closed") from None
                    raise
                finally:
                    job.finish()
                    self._give_back(worker)

    async def aprepare(self, kind: Kind, given: Any, options: Options, *, paths: bool = True) -> Prepared:
        """`prepare` in a task. If the task is cancelled, the process that decodes for it is ended."""
        import asyncio

        job = Job()
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(
                self._threads(), self._gathered, kind, given, options, paths, job
            )
        except asyncio.CancelledError:
            job.cancel()
            raise

    def close(self) -> None:
        """Ends all processes. Requests under way fail."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
            executor, self._executor = self._executor, None
        self._finalizer()
        for worker in idle:
            worker.end()
        if executor is not None:
            executor.shutdown(wait=False)

    def _threads(self) -> ThreadPoolExecutor:
        """Threads of its own: those that asyncio has for everybody are few, and media take long."""
        from concurrent.futures import ThreadPoolExecutor

        with self._lock:
            if self._closed:
                raise ClosedError("the model was closed")
            if self._executor is None:
                self._executor = ThreadPoolExecutor(self._workers, "olivine-media")
            return self._executor

    def __enter__(self) -> MediaProcessor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _gathered(self, kind: Kind, given: Any, options: Options, paths: bool, job: Job) -> Prepared:
        found = list(self.stream(kind, given, options, paths=paths, job=job))
        return Prepared(kind, tuple(part for _, part in found), tuple(seconds for seconds, _ in found))

    def _take(self) -> WorkerProcess:
        with self._lock:
            if self._closed:
                raise ClosedError("the model was closed")
            if self._idle:
                return self._idle.pop()
            worker = WorkerProcess(self.limits)
            self._all.add(worker)
            return worker

    def _give_back(self, worker: WorkerProcess) -> None:
        with self._lock:
            if worker.ready and not self._closed:
                self._idle.append(worker)
                return
            self._all.discard(worker)
        worker.end()


class Job:
    """A request that another thread may cancel."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._worker: WorkerProcess | None = None
        self._cancelled = False

    def begin(self, worker: WorkerProcess) -> None:
        with self._lock:
            self._worker = worker
            if self._cancelled:
                worker.kill()

    def finish(self) -> None:
        with self._lock:
            self._worker = None

    def cancel(self) -> None:
        with self._lock:
            self._cancelled = True
            if self._worker is not None:
                self._worker.kill()


def _check_options(kind: Kind, options: Options) -> None:
    expected: Any = {"image": ImageOptions, "audio": AudioOptions, "video": VideoFrames}[kind]
    if not isinstance(options, expected):
        raise TypeError(f"{type(options).__name__} is not for {kind}")


def _end_all(workers: set[WorkerProcess], owner: int) -> None:
    if os.getpid() != owner:
        return
    for worker in list(workers):
        worker.kill()
