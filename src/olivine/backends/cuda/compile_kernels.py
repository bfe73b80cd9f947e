"""Kernels compiled side by side, each in a forked process: one that does not use the GPU, and has imported
Triton before."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor
from contextlib import suppress
from multiprocessing import get_context

from olivine.backends.cuda.foresee import Kernel

MOST = 16  # processes
# Those that take longest come first.
_SLOW = (
    "_prefill_attention", "_decode_attention", "_gemv", "_gemv_alone", "_gemv_pair", "_draw", "_threshold",
)  # fmt: skip
_kernels: list[Kernel] = []  # of the pool being forked: its processes are told an index


class Pool:
    """Compiles kernels in the background; `report` is called with how many are done, and their number."""

    def __init__(
        self, kernels: Iterable[Kernel], report: Callable[[int, int], None] | None = None, nice: int = 0
    ) -> None:
        _kernels[:] = sorted(kernels, key=lambda kernel: kernel.name not in _SLOW)
        self._report, self._done = report, 0
        count = max(1, min(MOST, _cores(), len(_kernels)))
        self._executor = ProcessPoolExecutor(count, get_context("fork"), os.nice, (nice,))
        self._tasks = [self._executor.submit(_compile, index) for index in range(-1, len(_kernels))]
        for task in self._tasks:
            task.add_done_callback(self._count)

    def _count(self, task: Future[None]) -> None:
        self._done += 1
        if self._report is not None and not isinstance(task.exception(), BrokenExecutor):
            self._report(self._done, len(self._tasks))

    def join(self) -> None:
        """Waits for all of them. One that cannot be compiled fails again where it is launched."""
        for task in self._tasks:
            try:
                task.result()
            except BrokenExecutor:
                raise
            except Exception:
                continue
        self._executor.shutdown()


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _compile(index: int) -> None:
    """Compiles a kernel and, in versions of Triton where that is C, what launches it; -1: Triton's driver."""
    from triton.backends.nvidia import driver

    if index < 0:
        driver.CudaUtils()
        return
    made = _kernels[index].compile()
    with suppress(Exception):
        driver.CudaLauncher(made.src, made.metadata)
