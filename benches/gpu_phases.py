"""One kernel for a whole step, or a launch for each part: what a barrier of all programs costs, and a launch.

    PYTHONPATH=src python benches/gpu_phases.py

200 phases, of which each begins when all programs have finished the one before: in one kernel, whose programs
count in memory that they have come so far, and wait for the others; or as launches in a CUDA graph, which
start early and then wait (kernels/pdl.py). They do nothing else, or a little work: each program reads 1,024
floats, of which each program writes eight, and sums them up. What they wrote is checked.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable

import torch
import triton
import triton.language as tl

from olivine.backends.cuda.kernels.pdl import LAUNCH, release, wait

# All programs of a kernel with barriers must run at once: these are at most two a multiprocessor of an H200.
PROGRAMS = (32, 132, 264)
PHASES, ROUNDS = 200, 21
READ, WRITTEN = tl.constexpr(1024), tl.constexpr(8)


@triton.jit
def _work(source, target, PROGRAMS: tl.constexpr):
    """Writes one more than the mean of what was written: after n phases, n is everywhere."""
    share: tl.constexpr = 1 / min(READ, PROGRAMS * WRITTEN)  # a power of two, so that the mean is exact
    total = tl.sum(tl.load(source + tl.arange(0, READ), cache_modifier=".cg"))  # L1 may have what was there
    place = tl.program_id(0) * WRITTEN + tl.arange(0, WRITTEN)
    tl.store(target + place, tl.full([WRITTEN], 1, tl.float32) + total * share)


@triton.jit
def _barrier(counter, count):
    """Waits until so many have come."""
    tl.debug_barrier()  # every thread of this program has stored
    tl.atomic_add(counter, 1)
    while tl.load(counter, volatile=True) < count:
        pass
    tl.debug_barrier()


@triton.jit
def _all_phases(a, b, counter, phases, PROGRAMS: tl.constexpr, WORK: tl.constexpr):
    for phase in range(phases // 2):
        if WORK:
            _work(a, b, PROGRAMS)
        _barrier(counter, (2 * phase + 1) * PROGRAMS)
        if WORK:
            _work(b, a, PROGRAMS)
        _barrier(counter, (2 * phase + 2) * PROGRAMS)


@triton.jit
def _one_phase(a, b, PROGRAMS: tl.constexpr, WORK: tl.constexpr):
    release()
    wait()
    if WORK:
        _work(a, b, PROGRAMS)


class Phases:
    """So many programs with what they read and write: two buffers, of which each phase reads one."""

    def __init__(self, programs: int, work: bool, device: str = "cuda", phases: int = PHASES) -> None:
        self._programs, self._work, self._phases = programs, work, phases
        self._written = programs * WRITTEN.value
        size = max(self._written, READ.value)
        self._a, self._b = (torch.zeros(size, device=device) for _ in range(2))
        self._counter = torch.zeros(1, dtype=torch.int32, device=device)

    def by_counters(self) -> None:
        _all_phases[(self._programs,)](
            self._a, self._b, self._counter, self._phases, self._programs, self._work
        )

    def by_launches(self) -> None:
        a, b = self._a, self._b
        for _ in range(self._phases):
            _one_phase[(self._programs,)](a, b, self._programs, self._work, **LAUNCH)
            a, b = b, a

    def reset(self) -> None:
        for each in (self._a, self._b, self._counter):
            each.zero_()

    def check(self) -> None:
        """Raises where a phase read what was not written yet."""
        expected = float(self._phases if self._work else 0)
        found = self._a[: self._written].unique().tolist()
        if found != [expected]:
            raise AssertionError(f"{found} in place of {expected}")


def graph_of(phases: Phases, run: Callable[[], None]) -> torch.cuda.CUDAGraph:
    phases.reset()
    run()  # is compiled
    phases.check()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph


def microseconds(phases: Phases, graph: torch.cuda.CUDAGraph) -> float:
    """Of one phase."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    phases.reset()
    torch.cuda.synchronize()
    start.record()
    graph.replay()
    end.record()
    torch.cuda.synchronize()
    phases.check()
    return 1e3 * start.elapsed_time(end) / PHASES


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="of all in turn (default: %(default)s)")
    given = parser.parse_args()
    ways = ("counters", "launches")
    print("µs a phase, medians" + "".join(f"{way + extra:>22}" for extra in ("", ", work") for way in ways))
    for programs in PROGRAMS:
        measured = []
        for phases in (Phases(programs, work) for work in (False, True)):
            measured += [(phases, graph_of(phases, run)) for run in (phases.by_counters, phases.by_launches)]
        found = [[microseconds(*each) for each in measured] for _ in range(given.rounds)]
        medians = [statistics.median(column) for column in zip(*found, strict=True)]
        print(f"{programs:>4} programs      " + "".join(f"{median:>22.2f}" for median in medians), flush=True)


if __name__ == "__main__":
    main()
