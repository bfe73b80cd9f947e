"""Which rows run next: continuous batching, chunks of long prompts, preemption.

A step takes one row of every sequence that is generating, and fills up with prompt rows of those that are not
that far yet. Nobody waits for a long prompt: while others generate, prompts come in chunks that keep a step
short. When only generating is left, a step is a chain of several tokens.

All work for a single run is done in `_only(run)`: whatever fails there ends that run and no other one.
"""

from __future__ import annotations

import os
import time
from bisect import insort
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from operator import attrgetter
from types import TracebackType

import numpy as np

from olivine.backends import BROKEN, CHUNK, NOTHING_LEGAL, Drawn, Program, Result
from olivine.engine.kvcache import KvCache
from olivine.engine.request import Finish, Run, Update
from olivine.engine.speculative import Speculation
from olivine.engine.stats import Counters
from olivine.engine.work import Part, Rows, Work
from olivine.errors import ModelError, OlivineError, RequestError

# Prompt rows a step, where each row's logits are wanted, which are large.
SCORED_CHUNK = 64
SHORTEST_CHUNK = 32
# Seconds. While others generate, a step with prompt rows should not take longer than this …
PATIENCE = 0.12
# … and a chain not longer than this: smooth to read, and news is heard between two of them.
CHAIN = 0.08
LONGEST_CHAIN = 64  # tokens, whose pages are taken ahead
MASK_THREADS = max(1, min(8, (os.cpu_count() or 1) // 2))
_RANK = attrgetter("rank")


class Guard:
    """A context manager that ends a run instead of raising. One is made for each run in each step: it is no
    generator, which would take four times as long."""

    __slots__ = ("_run", "_scheduler")

    def __init__(self, scheduler: Scheduler, run: Run) -> None:
        self._scheduler, self._run = scheduler, run

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if error is not None:  # of any kind: a panic in a grammar's library is no Exception
            self._scheduler.finish(self._run, error=olivine_error(error))
        return True


class Scheduler:
    """The sequences of an engine, and the step they take next."""

    def __init__(self, program: Program, context: int, slots: int, *, chains: bool, speculate: bool) -> None:
        self.context = context
        self.cache = KvCache(program, slots, context)
        self.counters = Counters()
        self.waiting: list[Run] = []  # who goes first comes first
        self.running: list[Run] = []  # in the order of their admission
        self._slots = list(range(slots - 1, -1, -1))
        self._chains = chains
        self._speculation = Speculation() if speculate else None
        self._program, self._chunk = program, min(CHUNK, program.chunk)
        self._pace = 1.0  # tokens a chain
        self._embed_turn = False
        self._masks = ThreadPoolExecutor(MASK_THREADS, "olivine-masks")  # its threads start when needed

    @property
    def idle(self) -> bool:
        return not self.waiting and not self.running

    def add(self, run: Run) -> None:
        with self._only(run):
            insort(self.waiting, run, key=_RANK)
            forced = self._forced(run)
            self.cache.names(run.tokens, run.kinds, run.names)
            if forced:
                self._count(run, len(forced))
                run.tell(Update(forced))
                if end := self._over(run):
                    self.finish(run, end)

    def next(self) -> Work | None:
        """The next step, or nothing if nobody has anything to run."""
        self._end_due()
        self._admit()
        embeds = [each for each in self.running if each.request.job == "embed"]
        others = [each for each in self.running if each.request.job != "embed"]
        self._embed_turn = bool(embeds) and (not others or not self._embed_turn)
        parts = self._plan(embeds if self._embed_turn else others)
        self._begin_masks(parts)
        count = 1 if self._embed_turn else self._chain_length(parts)
        rows = self._rows(parts)
        return Work.of(rows, self.cache.tables, count, self._embed_turn) if rows else None

    def absorb(self, work: Work, results: Sequence[Drawn] | Result, seconds: float) -> None:
        """Takes in what a step gave."""
        self._adapt(work, seconds)
        at = 0
        for part in work.parts:
            mine = slice(at, at + len(part.outputs))
            at = mine.stop
            with self._only(part.run):
                if isinstance(results, Result):
                    self._pool(part, results.hidden[mine])
                elif part.run.request.job == "score":
                    self._scored(part, results[mine])
                else:
                    self._drawn(part, results[mine])

    def finish(self, run: Run, reason: Finish | None = None, error: OlivineError | None = None) -> None:
        """The run is over: its pages and its slot are free again. Only its first end counts."""
        if run.over:
            return
        run.over = True
        self._leave(run)
        self.counters.finished[reason or "error"] += 1
        run.tell(Update(finish=reason, error=error, prefilled=min(run.done, run.prompt_length)))

    def fail_all(self, error: OlivineError) -> None:
        for run in (*self.running, *self.waiting):
            self.finish(run, error=error)

    def close(self) -> None:
        """Ends the threads that compute masks."""
        self._masks.shutdown()

    def _only(self, run: Run) -> Guard:
        """What fails in here is the run's own failure: it ends, and the others go on."""
        return Guard(self, run)

    # ---- what runs next

    def _end_due(self) -> None:
        now = time.perf_counter()
        for each in (*self.running, *self.waiting):
            if reason := each.due(now):
                self.finish(each, reason)

    def _admit(self) -> None:
        for run in list(self.waiting) if self._slots else ():
            with self._only(run):
                if self.running and not self.cache.room_for(run.names, len(run.tokens) + 1):
                    return
                if self._worth_waiting(run):
                    continue
                self.waiting.remove(run)
                run.slot = self._slots.pop()
                run.done = self.cache.begin(run.slot, run.names, self._reusable(run))
                if not run.admitted:
                    run.admitted = time.perf_counter()
                    run.timings.queue = run.admitted - run.arrived
                    run.usage.cached = run.done
                    self._count_prompt(run)
                self.running.append(run)
            if not self._slots:
                return

    def _reusable(self, run: Run) -> int:
        """Tokens that need not run if their pages are there: those before the first result."""
        if run.request.job == "score":
            return run.scored - 1
        return 0 if run.request.job == "embed" and run.request.pooling == "mean" else len(run.tokens) - 1

    def _worth_waiting(self, run: Run) -> bool:
        """Whether somebody is reading pages at this moment that the run could take over."""
        size = self.cache.page_size
        names = run.names[: self._reusable(run) // size]
        return any(
            other.done < other.prompt_length and _common(names, other.names) * size > other.done
            for other in self.running
        )

    def _plan(self, runs: list[Run]) -> list[Part]:
        """Rows for each run, with pages for them. Makes room by sending the last runs back to the queue."""
        decoding = [each for each in runs if each.decoding]
        reading = [each for each in runs if not each.decoding]
        parts = []
        for run in decoding:
            with self._only(run):
                drafts = self._drafts(run)
                outputs = list(range(run.done, run.done + 1 + len(drafts)))
                parts.append(Part(run, run.done, 1, drafts, outputs))
        parts += self._chunks(reading, self._chunk if decoding else self._program.chunk)
        for part in parts:
            with self._only(part.run):
                while part.alive and not self.cache.extend(part.run.slot, part.start, part.end):
                    self._preempt()
        return [part for part in parts if part.alive]

    def _begin_masks(self, parts: list[Part]) -> None:
        """What the constraints allow is computed while the step runs, and waited for when it draws."""
        for part in parts:
            if (constraint := part.run.request.constraint) is not None and part.outputs:
                with self._only(part.run):
                    part.mask = self._masks.submit(constraint.mask)

    def _forced(self, run: Run) -> list[int]:
        """Adds the tokens that the run's constraint leaves no choice about: they need no drawing. Where
        log-probabilities are wanted they are drawn all the same."""
        constraint = run.request.constraint
        if constraint is None or run.request.logprobs is not None:
            return []
        tokens = list(constraint.forced())[: max(0, self._left(run))]
        for token in tokens:
            run.add(token)
            constraint.accept(token)
        return tokens

    def _over(self, run: Run) -> Finish | None:
        """Whether the run has nothing more to generate, and why."""
        if run.request.constraint is not None and run.request.constraint.done:
            return "stop"
        return "length" if self._left(run) <= 0 else None

    def _chunks(self, runs: list[Run], rows: int) -> list[Part]:
        """Prompt rows: shared out evenly, so that a short prompt is not kept waiting by a long one."""
        left = rows
        by_need = sorted(runs, key=lambda each: each.pending)
        parts: dict[int, Part] = {}
        for index, run in enumerate(by_need):
            with self._only(run):
                share = min(run.pending, max(16, left // (len(by_need) - index)))
                if run.request.job != "generate":
                    share = min(share, self._silent(run) + SCORED_CHUNK)
                if (count := min(share, left)) > 0:
                    outputs = self._outputs(run, run.done, run.done + count)
                    parts[id(run)] = Part(run, run.done, count, outputs=outputs)
                    left -= count
        return [parts[id(each)] for each in runs if id(each) in parts]

    def _silent(self, run: Run) -> int:
        """Rows to come whose logits nobody wants, before the first whose logits are."""
        if run.request.job == "score":
            return max(0, run.scored - 1 - run.done)
        return run.pending if run.request.pooling == "last" else 0

    def _outputs(self, run: Run, start: int, end: int) -> list[int]:
        last = len(run.tokens)
        match run.request.job:
            case "score":  # row p predicts token p + 1
                return [p for p in range(max(start, run.scored - 1), end) if p + 1 < last]
            case "embed" if run.request.pooling == "mean":
                return list(range(start, end))
            case _:
                return [end - 1] if end == last else []

    def _preempt(self) -> None:
        """Sends the last run back to the queue; what it has will be computed again."""
        victim = max(self.running, key=_RANK)
        with self._only(victim):
            self._leave(victim)
            victim.done = 0
            victim.pooled = np.zeros(0)
            insort(self.waiting, victim, key=_RANK)
            self.counters.preempted += 1

    def _leave(self, run: Run) -> None:
        """Takes the run out of wherever it is; its pages and its slot are free again."""
        for place in (self.running, self.waiting):
            if run in place:
                place.remove(run)
        if run.slot >= 0:
            self.cache.end(run.slot)
            self._slots.append(run.slot)
            run.slot = -1

    def _drafts(self, run: Run) -> list[int]:
        if self._speculation is None or run.request.constraint is not None:
            return []
        left = self._left(run)
        return self._speculation.propose(run, len(self.running))[: max(0, left - 1)]

    def _left(self, run: Run) -> int:
        """Tokens that the run may still generate."""
        most = self.context - len(run.tokens)
        if run.request.max_tokens is not None:
            most = min(most, run.request.max_tokens - run.generated_count)
        return most

    def _chain_length(self, parts: list[Part]) -> int:
        """How many tokens to go on, which takes pages for them."""
        if (
            not self._chains
            or self.waiting
            or not all(part.run.decoding and not part.drafts for part in parts)
            or any(part.run.request.constraint is not None for part in parts)  # one mask a token
        ):
            return 1
        count = int(self._pace)
        for part in parts:
            with self._only(part.run):
                count = min(count, self._left(part.run))
                if self._speculation is not None:
                    count = min(count, self._speculation.patience(part.run))
        for part in parts if count > 1 else ():
            with self._only(part.run):
                if part.alive and not self.cache.extend(part.run.slot, part.start, part.end + count - 1):
                    return 1
        return count

    def _rows(self, parts: list[Part]) -> list[Rows]:
        rows = []
        for part in parts:
            with self._only(part.run):
                if part.alive:
                    rows.append(Rows.of(part, self._embed_turn))
        return rows

    # ---- what came of it

    def _advance(self, run: Run, done: int) -> None:
        """The cache holds the run's first `done` tokens now."""
        before, run.done = run.done, done
        self.cache.names(run.tokens, run.kinds, run.names)
        size = self.cache.page_size
        self.cache.publish(run.slot, run.names, range(before // size, done // size))

    def _drawn(self, part: Part, drawn: Sequence[Drawn]) -> None:
        run = part.run
        if not drawn:  # a chunk of a prompt that goes on
            self._advance(run, part.end)
            run.tell(Update(prefilled=min(run.done, run.prompt_length)))
            return
        update = Update(prefilled=run.prompt_length)
        ended: Finish | None = None
        for index, result in enumerate(drawn):
            self._require(part, result)
            for token in result.tokens:
                run.add(token)
                if run.request.constraint is not None:
                    run.request.constraint.accept(token)
            update.tokens += result.tokens
            update.logprobs += result.logprobs
            if result.stopped:
                ended = "stop"
                break
            if index < len(part.drafts) and result.tokens != [part.drafts[index]]:
                break
        if not run.first_token:
            run.first_token = time.perf_counter()
            run.timings.prefill = run.first_token - run.admitted
            self._pace = 1.0  # the first tokens come at once
        run.timings.decode = time.perf_counter() - run.first_token
        if part.drafts and self._speculation is not None:
            accepted = max(0, len(update.tokens) - 1)
            run.usage.drafted += len(part.drafts)
            run.usage.accepted += accepted
            self._speculation.learn(run, len(part.drafts), accepted)
        # The last token has no keys yet; that of a stop token was never added.
        cached = len(run.tokens) - (0 if ended == "stop" else 1)
        if ended is None:
            update.tokens += self._forced(run)
            ended = self._over(run)
        self._advance(run, cached)
        self._count(run, len(update.tokens))
        if update.tokens:
            run.tell(update)
        if ended:
            self.finish(run, ended)

    def _require(self, part: Part, result: Drawn) -> None:
        """Raises why there is no token, if there is none."""
        if result.error is None:
            return
        if part.mask is not None and (failure := part.mask.exception()) is not None:
            raise failure
        if result.error == BROKEN:
            raise ModelError(BROKEN, code="invalid_logits")
        raise RequestError(result.error, code="no_token_allowed" if result.error == NOTHING_LEGAL else None)

    def _scored(self, part: Part, drawn: Sequence[Drawn]) -> None:
        run = part.run
        for result in drawn:
            self._require(part, result)
            run.reports += result.logprobs
            run.scored += 1
        self._advance(run, part.end)
        run.tell(Update(prefilled=run.done))
        if run.done == len(run.tokens) or run.scored == len(run.tokens):
            run.tell(Update(logprobs=run.reports, prefilled=run.done))
            self.finish(run, "stop")

    def _pool(self, part: Part, hidden: np.ndarray) -> None:
        run = part.run
        self._advance(run, part.end)
        if hidden.size:
            total = hidden.astype(np.float64).sum(0)
            run.pooled = total if not run.pooled.size else run.pooled + total
        run.tell(Update(prefilled=run.done))
        if run.done == len(run.tokens):
            rows = len(run.tokens) if run.request.pooling == "mean" else 1
            run.tell(Update(embedding=(run.pooled / rows).astype(np.float32), prefilled=run.done))
            self.finish(run, "stop")

    def _count(self, run: Run, generated: int) -> None:
        run.usage.completion = run.generated_count
        self.counters.generated_tokens += generated

    def _count_prompt(self, run: Run) -> None:
        self.counters.prompt_tokens += run.prompt_length
        self.counters.prefix_asked += self._reusable(run)
        self.counters.prefix_hit += run.done

    def _adapt(self, work: Work, seconds: float) -> None:
        """Chunks and chains as long as they may be."""
        decoding = sum(part.run.decoding for part in work.parts)
        if decoding == len(work.parts):
            if self._speculation is not None:
                drafts = sum(len(part.drafts) for part in work.parts)
                self._speculation.timed(len(work.parts), drafts, seconds / work.tokens)
            wanted = max(1.0, CHAIN / max(seconds / work.tokens, 1e-6))
            self._pace = min(2 * self._pace, wanted, LONGEST_CHAIN)
        elif decoding:
            factor = 0.7 if seconds > PATIENCE else 1.4 if seconds < 0.7 * PATIENCE else 1.0
            self._chunk = int(min(self._program.chunk, max(SHORTEST_CHUNK, self._chunk * factor)) / 16) * 16


def olivine_error(error: BaseException) -> OlivineError:
    """The error as a caller hears of it. What is not one of ours is a defect of ours."""
    if isinstance(error, OlivineError):
        return error
    found = OlivineError(f"the engine failed: {type(error).__name__}: {error}")
    found.__cause__ = error  # with its traceback, for a report
    return found


def _common(a: list[bytes], b: list[bytes]) -> int:
    """How many entries two lists have in common from their beginning on."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
