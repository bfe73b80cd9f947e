"""Generation over a program, in token ids: text, files and HTTP are other people's business."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Sequence

import numpy as np

from olivine.backends import Batch, Program
from olivine.engine.pages import PageTables
from olivine.engine.sampling import Sampling, sample
from olivine.errors import RequestError

# Prompt rows a step: long enough to be worth a step, short enough for Ctrl-C and progress to feel immediate.
PREFILL_CHUNK = 128


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
        output: list[int] = []
        done = 0
        rows = prompt
        while len(output) < max_tokens:
            while done < len(prompt) + len(output):
                chunk = rows[:PREFILL_CHUNK]
                rows = rows[PREFILL_CHUNK:]
                logits = self._step(chunk, done, last=not rows, generated=bool(output))
                done += len(chunk)
                if on_prefill is not None and not output:
                    on_prefill(done, len(prompt))
            token = sample(logits[0], sampling, done, prompt, output)
            if token in stop:
                return
            output.append(token)
            yield token
            if done + 1 >= self.context:
                return
            rows = [token]

    def _step(self, tokens: list[int], start: int, *, last: bool, generated: bool) -> np.ndarray:
        """Runs rows of the sequence; gives the logits of the last one if they are wanted."""
        n = len(tokens)
        self._pages.extend(0, start + n)
        batch = Batch(
            tokens=np.array(tokens, np.int32),
            sequences=np.zeros(n, np.int32),
            positions=np.arange(start, start + n, dtype=np.int32),
            outputs=np.array([n - 1] if last else [], np.int32),
            tables=self._pages.tables,
            generated=np.full(n, generated),
        )
        return self.program.step(batch).logits
