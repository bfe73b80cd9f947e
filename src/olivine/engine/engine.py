"""The engine: a thread that runs steps for as long as anybody waits for tokens.

Callers in any thread submit requests and read their updates; they never touch the program or the cache.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

from olivine.backends import DrawingProgram, Drawn, Program, Result
from olivine.engine import sampling
from olivine.engine.checks import request_check
from olivine.engine.request import Request, Run, Ticket, Update
from olivine.engine.scheduler import Scheduler, Work
from olivine.errors import BusyError, ClosedError, OlivineError

SEQUENCES = 8  # that run at the same time
QUEUE = 1024  # requests that may wait


class Engine:
    """Runs many sequences at once over one program."""

    def __init__(
        self,
        program: Program,
        context: int,
        *,
        sequences: int = SEQUENCES,
        queue: int = QUEUE,
        speculate: bool = True,
    ) -> None:
        self.program = program
        self.context = context
        self._queue = queue
        self._check = request_check(program.plan.logits.width, context)
        self._scheduler = Scheduler(
            program, context, sequences, chains=isinstance(program, DrawingProgram), speculate=speculate
        )
        self._arrivals: deque[Run] = deque()
        self._news = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False

    def submit(self, request: Request, tell: Callable[[Update], None] | None = None) -> Ticket:
        """Hands a request in. Its updates go to the ticket, or to `tell`, called from the engine's thread."""
        request = self._check(request)
        ticket = Ticket(lambda: self._cancel(run))
        run = Run(request, tell or ticket.put)
        ticket.usage, ticket.timings = run.usage, run.timings
        with self._news:
            if self._closed:
                raise ClosedError("this engine is closed")
            if len(self._arrivals) + len(self._scheduler.waiting) >= self._queue:
                raise BusyError(f"{self._queue} requests are waiting already: try again later")
            if self._thread is None:
                self._thread = threading.Thread(target=self._loop, name="olivine-engine", daemon=True)
                self._thread.start()
            self._arrivals.append(run)
            self._news.notify()
        return ticket

    def close(self) -> None:
        """Ends every request and the thread. Closing twice is fine."""
        with self._news:
            self._closed = True
            self._news.notify()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    @property
    def free_pages(self) -> tuple[int, ...]:
        """Pages of each cache group that no request uses."""
        return self._scheduler.cache.free_pages()

    def _cancel(self, run: Run) -> None:
        run.cancelled = True
        with self._news:
            self._news.notify()

    def _loop(self) -> None:
        scheduler = self._scheduler
        while True:
            with self._news:
                while not self._arrivals and scheduler.idle and not self._closed:
                    self._news.wait()
                while self._arrivals:
                    scheduler.add(self._arrivals.popleft())
                if self._closed:
                    scheduler.fail_all(ClosedError("the model was closed"))
                    scheduler.close()
                    return
            self._step()  # whose results must not outlive it while the thread waits

    def _step(self) -> None:
        work = None
        try:
            work = self._scheduler.next()
            if work is not None:
                started = time.perf_counter()
                results = self._run(work)
                self._scheduler.absorb(work, results, time.perf_counter() - started)
        except OlivineError as error:
            self._fail(work, error)
        except Exception as error:  # a defect of ours: those it hits hear of it, the engine goes on
            self._fail(work, OlivineError(f"the engine failed: {type(error).__name__}: {error}"))

    def _run(self, work: Work) -> list[Drawn] | Result:
        if work.embed:
            return self.program.step(work.batch, logits=False)
        if isinstance(self.program, DrawingProgram):
            return self.program.generate(work.batch, work.draws, work.tokens)
        logits = self.program.step(work.batch).logits
        positions = work.batch.positions[work.batch.outputs]
        rows = zip(logits, work.draws, positions, strict=True)
        return [sampling.draw(row, draw, int(position) + 1) for row, draw, position in rows]

    def _fail(self, work: Work | None, error: OlivineError) -> None:
        """Ends the requests that a failed step was for; all of them if it is not known which."""
        if work is None:
            self._scheduler.fail_all(error)
            return
        for part in work.parts:
            if part.run in self._scheduler.running:
                self._scheduler.finish(part.run, error=error)
