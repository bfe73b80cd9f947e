"""The engine's own Python in a decode step: `python benches/engine.py --sequences 8`.

The program behind it gives tokens at once, so what is left is the scheduler, the jobs and the page tables.
Prints the CPU time of the thread: quartiles over many steps.
"""

from __future__ import annotations

import argparse
import statistics
import time
from types import SimpleNamespace
from typing import Any

from olivine.backends import Batch, Drawn, Sampling
from olivine.engine import Engine, Generate, Request
from olivine.engine.sequence import Sequence
from olivine.plan import CacheGroup

VOCABULARY, PROMPT = 1000, 100


class Instant:
    """A program that draws any token, at once. One of its two cache groups has a window."""

    page_size, chunk = 32, 512
    plan: Any = SimpleNamespace(
        groups=(CacheGroup(1, 1, None, ()), CacheGroup(1, 1, 512, ())),
        logits=SimpleNamespace(width=VOCABULARY),
        hidden=SimpleNamespace(width=8),
    )

    def __init__(self, pages: int) -> None:
        self.page_counts = (pages, pages)

    def generate(self, batch: Batch, draws: list[Any], n: int = 1) -> list[Drawn]:
        return [Drawn([7] * n) for _ in draws]


def measure(sequences: int, steps: int) -> list[float]:
    """Microseconds of each step."""
    context = PROMPT + steps + 8
    program: Any = Instant(sequences * (context // 32 + 1))
    engine = Engine(program, context, sequences=sequences, speculate=False)
    engine._scheduler._chains = False  # steps of one token
    job = Generate(Sampling(temperature=0.8, top_k=40), stop=(VOCABULARY - 1,), min_tokens=steps)
    for i in range(sequences):
        request = Request([i + 1] * PROMPT, job).checked(VOCABULARY, context)
        engine._scheduler.add(Sequence(request, lambda update: None))
    times = []
    for _ in range(steps):
        begun = time.thread_time()
        engine._step()
        times.append(1e6 * (time.thread_time() - begun))
    engine.close()
    return times[steps // 10 :]  # without the prompts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sequences", type=int, default=8)
    parser.add_argument("--steps", type=int, default=3000)
    given = parser.parse_args()
    low, median, high = statistics.quantiles(measure(given.sequences, given.steps), n=4)
    print(f"{given.sequences} sequences: {median:.0f} µs a step [{low:.0f}–{high:.0f}]")


if __name__ == "__main__":
    main()
