"""Which rows run next: continuous batching, chunked prefill, preemption.

A step takes one row of every sequence that decodes, and fills up with prefill chunks of the others. While
some decode, the chunks are kept small enough for a step to be short. When all sequences decode, a step is a
chain of several tokens. What is computed for a request, and what becomes of it, is up to its job (`jobs/`).

All work for a single sequence is done in `_guard(sequence)`: what fails there ends that sequence alone.
"""

from __future__ import annotations

import copy
import os
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from operator import attrgetter

from olivine.backends import Drawn, Program, Result
from olivine.engine.guard import Guard
from olivine.engine.jobs import Outcome, Resources
from olivine.engine.kvcache import KvCache, common_prefix
from olivine.engine.media import whole_chunk
from olivine.engine.pace import Pace
from olivine.engine.queue import Queue
from olivine.engine.sequence import Sequence
from olivine.engine.speculative import Speculation
from olivine.engine.stats import Counters
from olivine.engine.step import Chunk, Step
from olivine.engine.updates import Finish, Update
from olivine.errors import OlivineError

LEAST_SHARE = 16  # rows: prefill chunks are not divided below this
MASK_THREADS = max(1, min(8, (os.cpu_count() or 1) // 2))
_RANK = attrgetter("rank")


class Scheduler:
    """The sequences of an engine, and the step they take next."""

    def __init__(self, program: Program, context: int, slots: int, *, chains: bool, speculate: bool) -> None:
        self.cache = KvCache(program, slots, context)
        self.counters = Counters()
        self.waiting = Queue()
        self.running: list[Sequence] = []  # in the order of their admission
        self.failure: BaseException | None = None  # why no further step may run
        self._slots = list(range(slots - 1, -1, -1))
        self._chains = chains
        self._hidden_turn = False
        speculation = Speculation() if speculate else None
        self._pace = Pace(program, speculation)
        self._executor = ThreadPoolExecutor(MASK_THREADS, "olivine-masks")  # its threads start when needed
        self._resources = Resources(context, self._executor, speculation)

    @property
    def idle(self) -> bool:
        return not self.waiting and not self.running

    def add(self, sequence: Sequence) -> None:
        """A sequence enters the queue."""
        with self._guard(sequence):
            self.waiting.add(sequence)
            outcome = sequence.job.start(sequence, self._resources)
            self._hash_blocks(sequence)
            self._report(sequence, outcome)

    def next(self) -> Step | None:
        """The next step, or None if there is nothing to run."""
        self.end_due()
        self._admit()
        decoding: list[Sequence] = []
        prefilling: list[Sequence] = []
        for each in self._take_turns():
            (decoding if each.decoding else prefilling).append(each)
        chunks = self._decode_chunks(decoding)
        if prefilling:
            chunks += self._prefill_chunks(prefilling, self._pace.prefill_rows(bool(decoding)))
        tokens = self._chain_length(chunks)
        chunks = self._fill(chunks)
        return Step.of(chunks, self.cache.tables, tokens, self._hidden_turn) if chunks else None

    def absorb(self, step: Step, results: list[Drawn] | Result, seconds: float) -> None:
        """Takes in what a step gave."""
        self._pace.adapt(step, seconds)
        rows = results.hidden if isinstance(results, Result) else results
        at = 0
        for chunk in step.chunks:
            sequence, end = chunk.sequence, at + len(chunk.outputs)
            with self._guard(sequence):
                before = sequence.computed
                outcome = sequence.job.absorb(chunk, rows[at:end])
                self._publish(sequence, before)
                self._report(sequence, outcome)
            at = end

    def finish(
        self, sequence: Sequence, reason: Finish | None = None, error: OlivineError | None = None
    ) -> None:
        """The sequence is over: its pages and its slot are free again. Only its first end counts."""
        if sequence.over:
            return
        sequence.over = True
        try:
            self._leave(sequence)
        except BaseException as failure:  # it is not known any more who has which page
            self.failure = failure
        self.counters.finished[reason or "error"] += 1
        if sequence.admitted:
            self.counters.request(time.perf_counter() - sequence.admitted)
        prefilled = min(sequence.computed, sequence.prompt_length)
        sequence.tell(Update(finish=reason, error=error, prefilled=prefilled))

    def end_due(self) -> None:
        """Those that were cancelled, and those whose time is over, end."""
        now = time.perf_counter()
        for each in (*self.running, *self.waiting):
            if reason := each.due(now):
                self.finish(each, reason)

    def fail(self, sequence: Sequence, error: OlivineError) -> None:
        """The sequence ends with an error."""
        self.finish(sequence, error=error)

    def fail_all(self, error: OlivineError) -> None:
        self._fail_each((*self.running, *self.waiting), error)

    def fail_running(self, error: OlivineError) -> None:
        """What the KV cache held is lost: the sequences that were computed end, and no page is reused."""
        self._fail_each(tuple(self.running), error)
        self.cache.forget()

    def fail_arrived(self, latest: float, error: OlivineError) -> None:
        """Those that arrived before this moment, or at it, end."""
        self._fail_each([each for each in (*self.running, *self.waiting) if each.arrived <= latest], error)

    def _fail_each(self, sequences: Iterable[Sequence], error: OlivineError) -> None:
        """Each with its own error: whoever raises one leaves a traceback in it, and what that refers to."""
        for sequence in sequences:
            own = copy.copy(error)
            own.__cause__ = error.__cause__
            self.fail(sequence, own)

    def close(self) -> None:
        """Ends the threads that compute masks."""
        self._executor.shutdown()

    def _guard(self, sequence: Sequence) -> Guard:
        """What fails in here ends the sequence, and no other one."""
        return Guard(self.fail, sequence)

    # ---- the queue

    def _admit(self) -> None:
        for sequence in list(self.waiting) if self._slots else ():
            with self._guard(sequence):
                if self.running and not self.cache.room_for(sequence.block_hashes, len(sequence.tokens) + 1):
                    return
                reusable = sequence.job.reusable(sequence)
                if self._worth_waiting(sequence, reusable):
                    continue
                self.waiting.admit(sequence)
                sequence.slot = self._slots.pop()
                sequence.computed = self.cache.begin(
                    sequence.slot, sequence.block_hashes, reusable, sequence.media
                )
                if not sequence.admitted:
                    self._count_prompt(sequence, reusable)
                self.running.append(sequence)
            if not self._slots:
                return

    def _worth_waiting(self, sequence: Sequence, reusable: int) -> bool:
        """Whether a running sequence is about to compute pages that this one could reuse."""
        size = self.cache.page_size
        hashes = sequence.block_hashes[: reusable // size]
        return any(
            other.computed < other.prompt_length
            and common_prefix(hashes, other.block_hashes) * size > other.computed
            for other in self.running
        )

    def _preempt(self) -> None:
        """Sends the last sequence by rank back to the queue; it will be computed again."""
        victim = max(self.running, key=_RANK)
        with self._guard(victim):
            self._leave(victim)
            victim.computed = 0
            victim.job.restart()
            self.waiting.add(victim)
            self.counters.preempted += 1

    def _leave(self, sequence: Sequence) -> None:
        """Takes the sequence out of wherever it is; its pages and its slot are free again."""
        if sequence in self.running:
            self.running.remove(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)
        if sequence.slot >= 0:
            self.cache.end(sequence.slot)
            self._slots.append(sequence.slot)
            sequence.slot = -1

    # ---- the next step

    def _take_turns(self) -> list[Sequence]:
        """Those that need hidden states and those that need logits have every other step."""
        hidden = [each for each in self.running if each.job.hidden]
        self._hidden_turn = bool(hidden) and not (self._hidden_turn and len(hidden) < len(self.running))
        if self._hidden_turn:
            return hidden
        return [each for each in self.running if not each.job.hidden] if hidden else self.running

    def _decode_chunks(self, sequences: list[Sequence]) -> list[Chunk]:
        """The last token of each sequence, and drafts of what may follow."""
        chunks = []
        for sequence in sequences:
            if sequence.slot < 0:  # preempted for one before it
                continue
            with self._guard(sequence):
                drafts, start = sequence.job.drafts(sequence, len(self.running)), sequence.computed
                outputs = range(start, start + 1 + len(drafts))
                chunk = Chunk(sequence, start, 1, outputs, drafts, decode=True)
                self._reserve(chunk)
                chunks.append(chunk)
        return chunks

    def _prefill_chunks(self, sequences: list[Sequence], rows: int) -> list[Chunk]:
        """Rows are shared out evenly, so that a short prompt is not kept waiting by a long one. A chunk that
        begins with a bidirectional block has the whole of it, and the step more than `rows` if need be."""
        sequences = [each for each in sequences if each.slot >= 0]  # others were preempted
        by_need = sorted(sequences, key=lambda each: each.pending)
        chunks: dict[int, Chunk] = {}
        for index, sequence in enumerate(by_need):
            with self._guard(sequence):
                share = max(LEAST_SHARE, rows // (len(by_need) - index))
                count = min(sequence.pending, share, rows, sequence.job.chunk_limit(sequence))
                if count > 0:
                    start = sequence.computed
                    end = whole_chunk(sequence.media, start, start + count)
                    count = end - start
                    outputs = sequence.job.outputs(sequence, start, end)
                    chunks[id(sequence)] = Chunk(sequence, start, count, outputs, [], decode=False)
                    rows -= count
        found = [chunks[id(each)] for each in sequences if id(each) in chunks]
        for chunk in found:
            with self._guard(chunk.sequence):
                self._reserve(chunk)
        return found

    def _reserve(self, chunk: Chunk) -> None:
        """Pages for a chunk. Where they run out, the last sequences by rank go back to the queue."""
        while chunk.alive and not self.cache.extend(chunk.sequence.slot, chunk.start, chunk.end):
            self._preempt()

    def _chain_length(self, chunks: list[Chunk]) -> int:
        """How many tokens to draw of each sequence. Reserves the pages for them."""
        if not self._chains or self.waiting or not all(each.decode and not each.drafts for each in chunks):
            return 1
        length = self._pace.chain_length
        for chunk in chunks:
            with self._guard(chunk.sequence):
                length = min(length, chunk.sequence.job.chain_limit(chunk.sequence, len(self.running)))
        for chunk in chunks if length > 1 else ():
            with self._guard(chunk.sequence):
                end = chunk.end + length - 1
                if chunk.alive and not self.cache.extend(chunk.sequence.slot, chunk.start, end):
                    return 1
        return length

    def _fill(self, chunks: list[Chunk]) -> list[Chunk]:
        """The chunks that are still to run, with their rows and draws."""
        filled = []
        for chunk in chunks:
            with self._guard(chunk.sequence):
                if chunk.alive:
                    chunk.fill()
                    filled.append(chunk)
        return filled

    # ---- its results

    def _publish(self, sequence: Sequence, before: int) -> None:
        """More of the sequence's tokens are in the cache than `before`: its full pages can be reused."""
        size = self.cache.page_size
        first, last = before // size, sequence.computed // size
        if first < last:
            self._hash_blocks(sequence)
            self.cache.publish(sequence.slot, sequence.block_hashes, range(first, last))

    def _hash_blocks(self, sequence: Sequence) -> None:
        self.cache.hash_blocks(sequence.tokens, sequence.kinds, sequence.block_hashes, sequence.media)

    def _report(self, sequence: Sequence, outcome: Outcome) -> None:
        update, finish = outcome
        if update is not None:
            if update.tokens:
                generated = sequence.usage.completion = sequence.generated_count
                self.counters.generated_tokens += len(update.tokens)
                if generated == len(update.tokens):
                    self._pace.restart()
            sequence.tell(update)
        if finish is not None:
            self.finish(sequence, finish)

    def _count_prompt(self, sequence: Sequence, reusable: int) -> None:
        sequence.admitted = time.perf_counter()
        sequence.timings.queue = sequence.admitted - sequence.arrived
        # Tokens that a grammar forces may follow the prompt already: they are no part of it.
        prompt = sequence.prompt_length
        sequence.usage.cached = min(sequence.computed, prompt)
        self.counters.prompt_tokens += prompt
        self.counters.prefix_asked += min(reusable, prompt)
        self.counters.prefix_hit += sequence.usage.cached
