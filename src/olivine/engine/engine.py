"""Generation over a program, in token ids: text, files and HTTP are other people's business."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from olivine.backends import Batch, ChainProgram, Program
from olivine.engine.pages import PageTables
from olivine.engine.sampling import Sampling, sample
from olivine.errors import RequestError

Float32 = npt.NDArray[np.float32]

# Prompt rows a step: long enough to be worth a step, short enough for Ctrl-C and progress to feel immediate.
PREFILL_CHUNK = 512


class Engine:
    """Runs one sequence at a time; callers from several threads wait for each other."""

    def __init__(self, program: Program, context: int) -> None:
        self.program = program
        self.context = context
        self._pages = PageTables(program.page_counts, program.page_size, 1, context)
        self._turn = threading.Lock()

    def generate(
        self,
        prompt: Sequence[int],
        sampling: Sampling,
        max_tokens: int,
        stop: Collection[int] = (),
        on_prefill: Callable[[int, int], None] | None = None,
    ) -> Iterator[int]:
        """The tokens that follow the prompt: up to a stop token (which is not given) or to `max_tokens`.

        `on_prefill` is told how many prompt tokens are done, of how many.
        """
        if not prompt:
            raise RequestError("the prompt is empty: give at least one token")
        if len(prompt) >= self.context:
            raise RequestError(
                f"the prompt has {len(prompt)} tokens and the context holds {self.context}: "
                "shorten the prompt or raise the context"
            )
        with self._turn:
            try:
                yield from self._run(list(prompt), sampling, max_tokens, stop, on_prefill)
            finally:
                self._pages.release(0)

    def _run(
        self,
        prompt: list[int],
        sampling: Sampling,
        max_tokens: int,
        stop: Collection[int],
        on_prefill: Callable[[int, int], None] | None,
    ) -> Iterator[int]:
        logits = np.zeros((0, 0), np.float32)
        for start in range(0, len(prompt), PREFILL_CHUNK):
            chunk = prompt[start : start + PREFILL_CHUNK]
            end = start + len(chunk)
            logits = self._step(chunk, start, last=end == len(prompt), generated=False)
            if on_prefill is not None:
                on_prefill(end, len(prompt))
        token = sample(logits[0], sampling, len(prompt), prompt)
        output: list[int] = []
        pace = 1  # tokens a chain: the first comes alone, so that it is seen at once
        while token not in stop:
            output.append(token)
            yield token
            at = len(prompt) + len(output) - 1  # where the last token stands
            left = min(max_tokens - len(output), self.context - at - 1)
            if left <= 0:
                return
            if not (isinstance(self.program, ChainProgram) and sampling.can_chain):
                logits = self._step([token], at, last=True, generated=True)
                token = sample(logits[0], sampling, at + 1, prompt, output)
                continue
            started = time.perf_counter()
            count = min(pace, left)
            self._pages.extend(0, at + count)
            chain = self.program.chain(
                self._batch([token], at, True, True), count, [sampling.choice], list(stop)
            )
            # About a twelfth of a second a chain: smooth to read, and Ctrl-C is heard between two of them.
            speed = max(1, len(chain.tokens[0])) / (time.perf_counter() - started)
            pace = max(1, min(2 * pace, int(speed / 12)))
            if chain.stopped[0]:
                yield from chain.tokens[0]
                return
            yield from chain.tokens[0][:-1]
            output += chain.tokens[0][:-1]
            token = chain.tokens[0][-1]

    def _step(self, tokens: list[int], start: int, *, last: bool, generated: bool) -> Float32:
        """Runs rows of the sequence; gives the logits of the last one if they are wanted."""
        self._pages.extend(0, start + len(tokens))
        return self.program.step(self._batch(tokens, start, last, generated)).logits

    def _batch(self, tokens: list[int], start: int, last: bool, generated: bool) -> Batch:
        n = len(tokens)
        return Batch(
            tokens=np.array(tokens, np.int32),
            sequences=np.zeros(n, np.int32),
            positions=np.arange(start, start + n, dtype=np.int32),
            outputs=np.array([n - 1] if last else [], np.int32),
            tables=self._pages.tables,
            generated=np.full(n, generated),
        )
