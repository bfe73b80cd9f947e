"""Converts tensors from one type to another in pieces, on many threads, with few pieces in memory."""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from olivine.backends.cpu import native
from olivine.convert.gguf_writer import TensorInfo
from olivine.dtypes import DType
from olivine.errors import ModelError, OlivineError, printable
from olivine.pages import release
from olivine.tensor import Bytes, Tensor

PIECE = 1 << 20  # elements that one thread converts at a time

Job = TypeVar("Job")


@dataclass(frozen=True)
class Output:
    """A tensor to write. `parts` is called to produce its rows, in order, when it is written."""

    info: TensorInfo
    parts: Callable[[], tuple[Tensor, ...]]

    @classmethod
    def of(cls, name: str, tensor: Tensor, dtype: DType) -> Output:
        """One tensor, unchanged."""
        return cls(TensorInfo(name, dtype, tensor.shape), lambda: (tensor,))

    def pieces(self) -> Iterator[Tensor]:
        for part in self.parts():
            step = max(1, PIECE // part.shape[-1])
            for start in range(0, part.row_count, step):
                yield part.rows(start, min(start + step, part.row_count))


def converted(outputs: Iterable[Output], threads: int) -> Iterator[tuple[Output, Bytes]]:
    """The outputs' bytes in their types, in order."""

    def jobs() -> Iterator[tuple[Output, Tensor]]:
        for output in outputs:
            for piece in output.pieces():
                yield output, piece

    def run(job: tuple[Output, Tensor]) -> Bytes:
        output, piece = job
        return in_type(piece, output.info.dtype)

    for (output, piece), data in in_order(jobs(), run, threads):
        yield output, data
        release(piece.data)


def in_order(jobs: Iterator[Job], run: Callable[[Job], Bytes], threads: int) -> Iterator[tuple[Job, Bytes]]:
    """The results of jobs, in order. At most two per thread are started ahead of the current one."""
    pool = ThreadPoolExecutor(threads)
    waiting: deque[tuple[Job, Future[Bytes]]] = deque()
    try:
        for job in jobs:
            waiting.append((job, pool.submit(run, job)))
            if len(waiting) > 2 * threads:
                first, future = waiting.popleft()
                yield first, future.result()
        while waiting:
            first, future = waiting.popleft()
            yield first, future.result()
    finally:
        pool.shutdown(cancel_futures=True)


def in_type(tensor: Tensor, dtype: DType) -> Bytes:
    """A tensor's bytes in a type: unchanged if it is the same."""
    if tensor.dtype == dtype:
        return tensor.data
    made = np.empty(dtype.nbytes(tensor.size), np.uint8)
    weight = native.weight_of(tensor)
    number = native.TYPES[dtype.name]
    try:
        native.check(native.lib().olv_convert(ctypes.byref(weight), number, made.ctypes.data))
    except OlivineError as error:
        told = f"{printable(tensor.name)} cannot become {dtype}: it {error}"
        raise ModelError(f"{told}; check the source, or choose another type") from error
    return made
