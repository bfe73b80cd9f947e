"""Which rows run next: continuous batching, chunks of long prompts, preemption.

A step takes one row of every sequence that is generating, and fills up with prompt rows of those that are not
that far yet. Nobody waits for a long prompt: while others generate, prompts come in chunks that keep a step
short. When only generating is left, a step is a chain of several tokens.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np

from olivine.backends import BROKEN, CHUNK, NOTHING_LEGAL, Batch, Draw, Drawn, Program, Result
from olivine.backends.base import Int32
from olivine.engine.kvcache import KvCache
from olivine.engine.request import Finish, Run, Update
from olivine.engine.speculative import Speculation
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


@dataclass
class Part:
    """Rows of one sequence in a step: its tokens [start, start + count), then drafts."""

    run: Run
    start: int
    count: int
    drafts: list[int] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)  # positions whose logits are wanted
    mask: Callable[[], Int32 | None] | None = None  # what the run's constraint allows next

    @property
    def end(self) -> int:
        return self.start + self.count + len(self.drafts)


@dataclass
class Work:
    """A step: its rows, what to draw from them, and how many tokens to go on."""

    parts: list[Part]
    batch: Batch
    draws: list[Draw]  # none for embeddings
    tokens: int = 1
    embed: bool = False


class Scheduler:
    """The sequences of an engine, and the step they take next."""

    def __init__(self, program: Program, context: int, slots: int, *, chains: bool, speculate: bool) -> None:
        self.context = context
        self.cache = KvCache(program, slots, context)
        self.waiting: deque[Run] = deque()
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
        self.waiting.append(run)
        try:
            forced = self._forced(run)
        except OlivineError as error:
            self.finish(run, error=error)
            return
        self.cache.names(run.tokens, run.kinds, run.names)
        if forced:
            run.usage.completion = run.generated_count
            run.tell(Update(forced))
            if end := self._over(run):
                self.finish(run, end)

    def next(self) -> Work | None:
        """The next step, or nothing if nobody has anything to run."""
        for run in [run for run in (*self.running, *self.waiting) if run.cancelled]:
            self.finish(run, "cancelled")
        self._admit()
        embeds = [run for run in self.running if run.request.job == "embed"]
        others = [run for run in self.running if run.request.job != "embed"]
        self._embed_turn = bool(embeds) and (not others or not self._embed_turn)
        parts = self._plan(embeds if self._embed_turn else others)
        if not parts:
            return None
        self._begin_masks(parts)
        count = 1 if self._embed_turn else self._chain_length(parts)
        return self._work(parts, count, self._embed_turn)

    def absorb(self, work: Work, results: Sequence[Drawn] | Result, seconds: float) -> None:
        """Takes in what a step gave."""
        self._adapt(work, seconds)
        at = 0
        for part in work.parts:
            run, wanted = part.run, len(part.outputs)
            if isinstance(results, Result):
                self._pool(part, results.hidden[at : at + wanted])
            elif run.request.job == "score":
                self._scored(part, results[at : at + wanted])
            else:
                self._drawn(part, results[at : at + wanted])
            at += wanted

    def finish(self, run: Run, reason: Finish | None = None, error: OlivineError | None = None) -> None:
        """The run is over: its pages and its slot are free again."""
        if run in self.running:
            self._leave(run)
        else:
            self.waiting.remove(run)
        run.tell(Update(finish=reason, error=error, prefilled=min(run.done, run.prompt_length)))

    def fail_all(self, error: OlivineError) -> None:
        for run in (*self.running, *self.waiting):
            self.finish(run, error=error)

    def close(self) -> None:
        """Ends the threads that compute masks."""
        self._masks.shutdown()

    # ---- what runs next

    def _admit(self) -> None:
        for run in list(self.waiting):
            if not self._slots or (self.running and not self.cache.room_for(run.names, len(run.tokens) + 1)):
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
            self.running.append(run)

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
        """Rows for each run, with pages for them. Makes room by sending the newest runs back to the queue."""
        decoding = [run for run in runs if run.decoding]
        reading = [run for run in runs if not run.decoding]
        parts = []
        for run in decoding:
            drafts = self._drafts(run)
            parts.append(Part(run, run.done, 1, drafts, list(range(run.done, run.done + 1 + len(drafts)))))
        parts += self._chunks(reading, self._chunk if decoding else self._program.chunk)
        planned: list[Part] = []
        for part in parts:
            while part.run in self.running and not self.cache.extend(part.run.slot, part.start, part.end):
                self._preempt(planned)
            if part.run in self.running:
                planned.append(part)
        return planned

    def _begin_masks(self, parts: list[Part]) -> None:
        """What the constraints allow is computed while the step runs, and waited for when it draws."""
        for part in parts:
            constraint = part.run.request.constraint
            if constraint is not None and part.outputs:
                part.mask = self._masks.submit(constraint.mask).result

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

    def _chunks(self, runs: list[Run], rows: int) -> Iterator[Part]:
        """Prompt rows: shared out evenly, so that a short prompt is not kept waiting by a long one."""
        left = rows
        by_need = sorted(runs, key=lambda run: run.pending)
        shares = {}
        for index, run in enumerate(by_need):
            share = min(run.pending, max(16, left // (len(by_need) - index)))
            if run.request.job != "generate":
                share = min(share, self._silent(run) + SCORED_CHUNK)
            shares[id(run)] = min(share, max(left, 0))
            left -= shares[id(run)]
        for run in runs:
            if count := shares[id(run)]:
                end = run.done + count
                yield Part(run, run.done, count, outputs=self._outputs(run, run.done, end))

    def _silent(self, run: Run) -> int:
        """Rows to come whose logits nobody wants, before the first whose logits are."""
        if run.request.job == "score":
            return max(0, run.scored - 1 - run.done)
        return run.pending if run.request.pooling == "last" else 0

    def _outputs(self, run: Run, start: int, end: int) -> list[int]:
        last = len(run.tokens)
        match run.request.job:
            case "score":  # row p foretells token p + 1
                return [p for p in range(max(start, run.scored - 1), end) if p + 1 < last]
            case "embed" if run.request.pooling == "mean":
                return list(range(start, end))
            case _:
                return [end - 1] if end == last else []

    def _preempt(self, planned: list[Part]) -> None:
        """Sends the newest run back to the head of the queue; what it has will be computed again."""
        victim = self.running[-1]
        planned[:] = [part for part in planned if part.run is not victim]
        self._leave(victim)
        victim.done = 0
        victim.pooled = np.zeros(0)
        self.waiting.appendleft(victim)

    def _leave(self, run: Run) -> None:
        self.running.remove(run)
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
        count = int(min(self._pace, *(self._left(part.run) for part in parts)))
        if self._speculation is not None:
            count = min(count, *(self._speculation.patience(part.run) for part in parts))
        if count > 1 and all(
            self.cache.extend(part.run.slot, part.start, part.end + count - 1) for part in parts
        ):
            return count
        return 1

    def _work(self, parts: list[Part], tokens: int, embed: bool) -> Work:
        rows: list[int] = []
        kinds: list[int] = []
        outputs: list[int] = []
        draws: list[Draw] = []
        for part in parts:
            run = part.run
            outputs += [len(rows) + position - part.start for position in part.outputs]
            if not embed:
                draws += [self._draw(part, position) for position in part.outputs]
            rows += run.tokens[part.start : part.start + part.count] + part.drafts
            kinds += list(run.kinds[part.start : part.start + part.count]) + [1] * len(part.drafts)
        lengths = [part.end - part.start for part in parts]
        batch = Batch(
            tokens=np.array(rows, np.int32),
            sequences=np.repeat([part.run.slot for part in parts], lengths).astype(np.int32),
            positions=np.concatenate([np.arange(part.start, part.end) for part in parts]).astype(np.int32),
            outputs=np.array(outputs, np.int32),
            tables=self.cache.tables,
            generated=np.array(kinds, bool),
        )
        return Work(parts, batch, draws, tokens, embed)

    def _draw(self, part: Part, position: int) -> Draw:
        run, request = part.run, part.run.request
        if request.job == "score":
            return Draw(request.sampling, logprobs=1, forced=run.tokens[position + 1])
        drafts = part.drafts[: position - (part.start + part.count - 1)] if part.drafts else []
        return Draw(
            request.sampling,
            prompt=request.prompt,
            output=run.output + drafts,
            mask=part.mask,
            stop=request.stop,
            at_least=max(0, request.min_tokens - run.generated_count - len(drafts)),
            logprobs=request.logprobs,
        )

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
        error: OlivineError | None = None
        for index, result in enumerate(drawn):
            if result.error is not None:
                error = _error(result.error)
                break
            for token in result.tokens:
                run.add(token)
            error = self._accept(run, result.tokens)
            update.tokens += result.tokens
            update.logprobs += result.logprobs
            if error is not None:
                break
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
        if error is None and ended is None:
            try:
                update.tokens += self._forced(run)
                ended = self._over(run)
            except OlivineError as failure:
                error = failure
        run.usage.completion = run.generated_count
        if error is None:
            self._advance(run, cached)
        if update.tokens:
            run.tell(update)
        if ended or error:
            self.finish(run, ended, error)

    def _accept(self, run: Run, tokens: Sequence[int]) -> OlivineError | None:
        """Tells the run's constraint what came."""
        if run.request.constraint is not None:
            try:
                for token in tokens:
                    run.request.constraint.accept(token)
            except OlivineError as error:
                return error
        return None

    def _scored(self, part: Part, drawn: Sequence[Drawn]) -> None:
        run = part.run
        for result in drawn:
            if result.error is not None:
                self.finish(run, error=_error(result.error))
                return
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


def _error(text: str) -> OlivineError:
    """Why a draw gave no token, as the caller hears of it."""
    if text == BROKEN:
        return ModelError(text, code="invalid_logits")
    return RequestError(text, code="no_token_allowed" if text == NOTHING_LEGAL else None)


def _common(a: list[bytes], b: list[bytes]) -> int:
    """How many entries two lists have in common from their beginning on."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
