"""Statistics of an engine."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import get_args

from olivine.engine.updates import Finish

WINDOW = 256  # steps whose times are remembered
REQUESTS = 64  # and requests


@dataclass(frozen=True)
class Pages:
    """Pages of one cache group. Free ones may still be in the prefix cache."""

    total: int
    free: int


@dataclass(frozen=True)
class StepTimes:
    """Seconds that each of the last `steps` steps took, of which one may generate several tokens."""

    steps: int
    mean: float
    p50: float
    p99: float


@dataclass(frozen=True)
class Stats:
    """An engine at one moment. Totals are since it was made."""

    running: int  # requests
    waiting: int
    pages: tuple[Pages, ...]  # one entry a cache group
    prompt_tokens: int  # of all requests that were begun
    generated_tokens: int
    prefix_asked: int  # tokens that were looked up in the prefix cache …
    prefix_hit: int  # … and that were found
    finished: Mapping[str, int]  # requests by finish reason, and "error"
    preempted: int  # times that a request had to give its pages to others
    steps: int
    step_times: StepTimes
    # Seconds since a step last ended (or work came) while there is work, or the engine has failed; else 0.
    stalled: float
    failed: bool = False  # it takes no more requests


class Counters:
    """Totals so far. Only the engine's thread writes here, and readers take no lock."""

    def __init__(self) -> None:
        self.prompt_tokens = self.generated_tokens = 0
        self.prefix_asked = self.prefix_hit = 0
        self.preempted = 0
        self.finished = dict.fromkeys((*get_args(Finish), "error"), 0)
        self.steps = 0
        self.progress = time.perf_counter()  # when a step last ended, or work came to an idle engine
        self._times = [0.0] * WINDOW  # a ring
        self._requests = [0.0] * REQUESTS  # seconds that the last ones ran, a ring
        self._ended = 0

    def step(self, seconds: float) -> None:
        """A step has ended, or failed."""
        self._times[self.steps % WINDOW] = seconds
        self.steps += 1
        self.progress = time.perf_counter()

    def request(self, seconds: float) -> None:
        """A request has ended that ran for so long."""
        self._requests[self._ended % REQUESTS] = seconds
        self._ended += 1

    def request_time(self) -> float:
        """How long a request runs: the median of the last ones, 0 before the first."""
        times = sorted(self._requests[: self._ended])
        return times[len(times) // 2] if times else 0.0

    def step_times(self) -> StepTimes:
        count = min(self.steps, WINDOW)
        times = sorted(self._times[:count])
        if not times:
            return StepTimes(0, 0.0, 0.0, 0.0)
        return StepTimes(count, sum(times) / count, times[count // 2], times[int(0.99 * count)])
