"""The engine: a thread that runs steps while there are requests.

Callers in any thread submit requests and read their updates; they never touch the program or the cache.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import replace

from olivine.backends import DrawingProgram, Drawn, InterruptedProgram, Program, Result
from olivine.backends.owner import Owner
from olivine.engine import sampling
from olivine.engine.guard import olivine_error
from olivine.engine.media import longest_block
from olivine.engine.request import Request, Ticket
from olivine.engine.scheduler import Scheduler
from olivine.engine.sequence import Sequence
from olivine.engine.stats import Pages, Stats
from olivine.engine.step import Step
from olivine.engine.updates import Finish, Update
from olivine.errors import BusyError, ClosedError, OlivineError, RankError

SEQUENCES = 8  # that run at the same time
QUEUE = 1024  # requests that may wait
HANGING = 5.0  # seconds for which a closed engine waits for other processes
PATIENCE = 20.0  # seconds that a request waits for processes that are started again
MOMENT = 0.05  # seconds of that, after which it is seen which requests came, were cancelled or are due
LAST_STEP = 1.0  # seconds that the end of the interpreter waits for a step


class Inbox:
    """New requests for the engine's thread, which waits here while there is nothing to run.

    It refers to the engine only by what has arrived: an engine without references is freed, and ends the
    thread that waits here.
    """

    def __init__(self) -> None:
        self.arrivals: deque[tuple[Engine, Sequence]] = deque()
        self.changed = threading.Condition()  # reentrant: an engine may end wherever garbage is collected
        self.thread: threading.Thread | None = None
        self.closed = False
        self.owner = Owner()

    def close(self, timeout: float | None = 0.0) -> None:
        """Ends the thread after its step, and waits for that."""
        if not self.owner.here:
            return  # in a forked child there is no such thread, and the lock may never be free
        with self.changed:
            self.closed = True
            self.changed.notify()
        if self.thread is not None and self.thread is not threading.current_thread():
            self.thread.join(timeout)

    def end(self) -> None:
        """The engine is gone, or the interpreter ends while it is there: threads must not outlive that."""
        self.close(LAST_STEP)


class Engine:
    """Runs many sequences at once over one program."""

    def __init__(
        self,
        program: Program,
        context: int,
        *,
        sequences: int = SEQUENCES,
        queue: int = QUEUE,
        queue_per_client: int | None = None,
        speculate: bool = True,
        check: Callable[[], None] | None = None,
    ) -> None:
        """`check` is called before each step, and raises an `OlivineError` where none may run any more."""
        self.program = program
        self.context = context
        self._queue = queue
        self._queue_per_client = queue_per_client
        self._sequences = sequences
        self._check_step = check
        self._processes = program if isinstance(program, InterruptedProgram) else None
        self._waits_since: float | None = None  # for processes that are started again
        self._vocabulary = program.plan.logits.width
        self._scheduler = Scheduler(
            program, context, sequences, chains=isinstance(program, DrawingProgram), speculate=speculate
        )
        self._inbox = Inbox()
        self._reset = False  # the prefix cache is to be emptied before the next step
        # What ended the thread before its time. Not the inbox's: its traceback refers to the engine.
        self._failure: BaseException | None = None
        weakref.finalize(self, self._inbox.end)

    def submit(self, request: Request, tell: Callable[[Update], None] | None = None) -> Ticket:
        """Submits a request. Its updates go to the ticket, or to `tell`, called from the engine's thread."""
        inbox = self._inbox
        inbox.owner.check()
        request = request.checked(self._vocabulary, self.context, self.program.plan.hidden.width)
        if self.program.one_kind:
            request = replace(request, generated=None)
        self._scheduler.cache.refuse_long_block(longest_block(request.media), len(request.prompt))
        # The sequence holds its ticket; if the ticket held it too, both would wait for the cycle collector.
        ticket = Ticket(lambda reason: self._cancel(reference(), reason), lambda: _end_thought(reference()))
        sequence = Sequence(request, tell or ticket.put)
        reference = weakref.ref(sequence)
        ticket.usage, ticket.timings = sequence.usage, sequence.timings
        with inbox.changed:
            if inbox.closed:
                raise ClosedError("this engine is closed")
            if self._failure is not None:
                raise _engine_failed(self._failure)
            self._refuse_more(request.client)
            if inbox.thread is None:
                inbox.thread = threading.Thread(
                    target=_loop, args=(inbox,), name="olivine-engine", daemon=True
                )
                inbox.thread.start()
            if not inbox.arrivals and self._scheduler.idle:
                self._scheduler.counters.progress = sequence.arrived
            inbox.arrivals.append((self, sequence))
            inbox.changed.notify()
        return ticket

    def reset_prefix_cache(self) -> None:
        """Later requests find nothing of what was computed before. Those that run are not disturbed."""
        self._inbox.owner.check()
        with self._inbox.changed:
            self._reset = True

    def close(self) -> None:
        """Ends every request and the thread. Closing twice is fine."""
        if self._processes is not None:
            self._inbox.close(HANGING)
            if self._inbox.thread is not None and self._inbox.thread.is_alive():
                self._processes.interrupt()
                self._inbox.close(HANGING)
        else:
            self._inbox.close(None)
        if self._inbox.owner.here:
            self._scheduler.close()

    def check_process(self) -> None:
        """Raises in a forked child: the engine's thread is not there."""
        self._inbox.owner.check()

    def stats(self) -> Stats:
        """What the engine is doing and has done. Never waits, not even for a step: the figures may be of
        slightly different moments."""
        scheduler, counters = self._scheduler, self._scheduler.counters
        pages = zip(self.program.page_counts, self.free_pages, strict=True)
        waiting = len(self._inbox.arrivals) + len(scheduler.waiting)
        running = len(scheduler.running)
        unfinished = running or waiting or self._failure is not None
        return Stats(
            running=running,
            waiting=waiting,
            pages=tuple(Pages(total, free) for total, free in pages),
            prompt_tokens=counters.prompt_tokens,
            generated_tokens=counters.generated_tokens,
            prefix_asked=counters.prefix_asked,
            prefix_hit=counters.prefix_hit,
            finished=dict(counters.finished),
            preempted=counters.preempted,
            steps=counters.steps,
            step_times=counters.step_times(),
            stalled=max(0.0, time.perf_counter() - counters.progress) if unfinished else 0.0,
            failed=self._failure is not None,
        )

    @property
    def free_pages(self) -> tuple[int, ...]:
        """Pages of each cache group that no request uses."""
        return self._scheduler.cache.free_pages()

    def _refuse_more(self, client: str) -> None:
        """Raises where the queue is full, or a client's part of it. The inbox is locked."""
        arrivals, queue = self._inbox.arrivals, self._scheduler.waiting
        if (waiting := len(arrivals) + len(queue)) >= self._queue:
            raise BusyError(
                f"{self._queue} requests are waiting already: try again later",
                retry_after=self._time_for(waiting),
            )
        if self._queue_per_client is None:
            return
        waiting = queue.of(client) + sum(each.request.client == client for _, each in arrivals)
        if waiting >= self._queue_per_client:
            raise BusyError(
                f"{self._queue_per_client} requests of this client are waiting already: try again later",
                retry_after=self._time_for(waiting),
            )

    def _time_for(self, requests: int) -> float:
        """Seconds until so many requests that wait have run, as far as one can tell."""
        seconds = self._scheduler.counters.request_time() * requests / self._sequences
        return min(60.0, max(1.0, seconds))

    def _cancel(self, sequence: Sequence | None, reason: Finish) -> None:
        if sequence is not None and self._inbox.owner.here:
            sequence.cancel(reason)
            with self._inbox.changed:
                self._inbox.changed.notify()

    def _run_until_idle(self) -> None:
        """Runs steps until nothing is left to run."""
        scheduler, inbox = self._scheduler, self._inbox
        while True:
            with inbox.changed:
                if self._reset:
                    self._reset = False
                    scheduler.cache.forget()
                while inbox.arrivals:
                    scheduler.add(inbox.arrivals.popleft()[1])
                if inbox.closed:
                    scheduler.fail_all(ClosedError("the model was closed"))
            if scheduler.failure is not None:
                raise scheduler.failure
            if scheduler.idle:
                return
            self._step()  # whose results must not outlive it while the thread waits

    def _step(self) -> None:
        step = None
        try:
            if self._check_step is not None:
                self._check_step()
            if self._processes is not None:
                if (loss := self._processes.loss()) is not None:
                    self._scheduler.fail_running(loss)
                if not self._can_run(self._processes):
                    return
            step = self._scheduler.next()
            if step is not None:
                self._run(step)
        except BaseException as error:  # a defect of ours: it ends the step's requests, not the engine
            self._fail(step, olivine_error(error))

    def _can_run(self, processes: InterruptedProgram) -> bool:
        """Whether a step can run now. Where processes are started again, this waits a moment for them, and
        ends requests that were cancelled, are due or have waited for long enough."""
        if processes.wait(0 if self._waits_since is None else MOMENT):
            self._waits_since = None
            return True
        now = time.perf_counter()
        self._waits_since = self._waits_since or now
        self._scheduler.end_due()
        latest = now if processes.given_up else now - PATIENCE
        obstacle = processes.obstacle
        if self._waits_since <= latest and obstacle is not None:  # else they are just there
            self._scheduler.fail_arrived(latest, RankError(obstacle))
        return False

    def _run(self, step: Step) -> None:
        """Runs a step. One that fails is run again, sequence by sequence, to find those that make it fail."""
        started = time.perf_counter()
        try:
            results = self._results(step)
        except RankError as error:  # the KV cache is lost
            self._scheduler.fail_running(error)
            return
        except BaseException as error:
            if len(step.chunks) == 1:
                self._fail(step, olivine_error(error))
            else:
                for each in step.split():
                    self._run(each)
            return
        finally:
            self._scheduler.counters.step(time.perf_counter() - started)
        self._scheduler.absorb(step, results, time.perf_counter() - started)

    def _results(self, step: Step) -> list[Drawn] | Result:
        if step.hidden:
            return self.program.step(step.batch, logits=False)
        # Not isinstance: a protocol's takes a tenth of a step's Python.
        if (generate := getattr(self.program, "generate", None)) is not None:
            return generate(step.batch, step.draws, step.tokens)
        logits = self.program.step(step.batch).logits
        positions = step.batch.positions[step.batch.outputs]
        rows = zip(logits, step.draws, positions, strict=True)
        return [sampling.draw(row, draw, int(position) + 1) for row, draw, position in rows]

    def _fail(self, step: Step | None, error: OlivineError) -> None:
        """Ends the requests that a failed step was for; all of them if it is not known which."""
        if step is None:
            self._scheduler.fail_all(error)
            return
        for chunk in step.chunks:
            self._scheduler.finish(chunk.sequence, error=error)

    def _give_up(self, cause: BaseException) -> None:
        """Ending a request failed, so pages may be lost or used twice: all requests end with that, and no
        further ones are taken."""
        scheduler, inbox = self._scheduler, self._inbox
        with inbox.changed:
            self._failure = cause
            arrivals = [sequence for _, sequence in inbox.arrivals]
            inbox.arrivals.clear()
        unfinished = [each for each in (*scheduler.running, *scheduler.waiting, *arrivals) if not each.over]
        scheduler.running.clear()
        scheduler.waiting.clear()
        for sequence in unfinished:
            sequence.over = True
            sequence.tell(Update(error=_engine_failed(cause)))


def _end_thought(sequence: Sequence | None) -> None:
    if sequence is not None:
        sequence.end_thought()


def _engine_failed(cause: BaseException) -> OlivineError:
    error = OlivineError(
        f"the engine takes no more requests, because it failed to end one ({type(cause).__name__}: {cause}): "
        "close the model and load it again",
        code="engine_failed",
    )
    error.__cause__ = cause
    return error


def _loop(inbox: Inbox) -> None:
    """The engine's thread. It holds the engine only while that has something to run."""
    while True:
        with inbox.changed:
            while not inbox.arrivals and not inbox.closed:
                inbox.changed.wait()
            if not inbox.arrivals:
                return
            engine = inbox.arrivals[0][0]
        try:
            engine._run_until_idle()
        except BaseException as error:
            engine._give_up(error)
            return
        finally:
            del engine
