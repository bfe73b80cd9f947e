"""Triton's interpreter with a guard, which finds what on a GPU is an illegal memory access, or luck.

Within `guarded`
- every address that a kernel reads or writes lies in a tensor of its launch;
- no sum or product of int32 overflows;
- memory that `torch.empty` gives is filled with `poison`, so that nobody takes it for an index by chance;
- kernels keep to kernels/pdl.py: every program waits for the kernel before, writes nothing before that, and
  reads nothing that a kernel may still be writing.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np


class _Launches:
    """The launches so far, as a GPU may overlap them."""

    def __init__(self) -> None:
        self.names: list[str] = []
        # Of the launch that runs: the first byte of each, and the one after the last.
        self.tensors = np.zeros((0, 2), np.uint64)
        self._unfinished: list[np.ndarray] = []  # what each launch wrote that may run beside the next one
        self._writes: list[np.ndarray] = []
        self._waited = self._released_early = False
        self._released_stored = self._all_stored = False  # by this program, by all programs so far

    def begin(self, name: str, values: Iterable[Any]) -> None:
        self.names.append(name)
        self.tensors = _joined([np.array(list(_extents(values)), np.uint64).reshape(-1, 2)])
        self._writes, self._waited, self._released_early = [], True, False
        self._released_stored = self._all_stored = True

    def end(self) -> None:
        self.next_program()
        # A kernel that released after it had waited: all before it were done when the next one started.
        kept = self._unfinished if self._released_early else []
        self._unfinished = [*kept, *([] if self._all_stored else [_joined(self._writes)])]

    def next_program(self) -> None:
        assert self._waited, f"a program of {self.names[-1]} ends before the kernel before it"
        self._all_stored &= self._released_stored
        self._waited = self._released_stored = False

    def wait(self) -> None:
        self._waited = True

    def release(self, stored: bool = False) -> None:
        self._released_early |= not self._waited
        self._released_stored = stored

    def access(self, pointers: Any, mask: Any, writes: bool) -> None:
        size = max(1, pointers.get_element_ty().primitive_bitwidth // 8)
        shape = np.broadcast_shapes(pointers.data.shape, mask.data.shape)
        first = np.broadcast_to(pointers.data, shape)[np.broadcast_to(mask.data, shape).astype(bool)]
        outside = ~_inside(first, size, self.tensors)
        if outside.any():
            self._fail(f"{outside.sum()} addresses in no tensor", int(first[outside][0]), self.tensors)
        if writes:
            first = np.unique(first)
            self._writes.append(np.stack([first, first + np.uint64(size)], 1))
            self._released_stored = False
        if self._waited:
            return
        if writes:
            self._fail("a write before the wait", int(first[0]), self.tensors)
        for written in self._unfinished:
            early = _inside(first, 1, written) | _inside(first + np.uint64(size - 1), 1, written)
            if early.any():
                self._fail("what is read may still be written", int(first[early][0]), self.tensors)

    def _fail(self, what: str, address: int, tensors: np.ndarray) -> None:
        near = next((each for each in tensors[::-1] if each[0] <= address), (0, 0))
        told = f"{address - int(near[0])} bytes from the start of a tensor of {int(near[1]) - int(near[0])}"
        raise AssertionError(f"{self.names[-1]}, {_line()}: {what}; the first is {told}")


@contextmanager
def guarded(poison: int = 0x7F) -> Iterator[list[str]]:
    """Gives the names of the kernels that were launched.

    The poison is a byte: 0x7F makes the largest integers and floats, 0xFF makes -1 and NaN.
    """
    import pytest
    import torch
    from triton.runtime import interpreter

    from olivine.backends.cuda.kernels import pdl

    builder, executor = interpreter.InterpreterBuilder, interpreter.GridExecutor
    function = interpreter.InterpretedFunction
    call, load, store = executor.__call__, builder.create_masked_load, builder.create_masked_store
    atomic, binary, program = builder.create_atomic_rmw, builder.binary_op, builder.set_grid_idx
    inner, empty = function.__call__, torch.empty
    launches = _Launches()

    def guarded_call(self: Any, *values: Any, **named: Any) -> None:
        launches.begin(self.fn.__name__, [*values, *named.values()])
        call(self, *values, **named)
        launches.end()

    def guarded_program(self: Any, x: int, y: int, z: int) -> None:
        launches.next_program()
        program(self, x, y, z)

    def guarded_inner(self: Any, *values: Any, **named: Any) -> Any:
        if self is pdl.wait:
            launches.wait()
        elif self in (pdl.release, pdl.release_stored):
            launches.release(stored=self is pdl.release_stored)
            if self is pdl.release_stored:
                return None
        return inner(self, *values, **named)

    def guarded_load(self: Any, pointers: Any, mask: Any, *more: Any, **named: Any) -> Any:
        launches.access(pointers, mask, writes=False)
        return load(self, pointers, mask, *more, **named)

    def guarded_store(self: Any, pointers: Any, value: Any, mask: Any, *more: Any) -> Any:
        launches.access(pointers, mask, writes=True)
        return store(self, pointers, value, mask, *more)

    def guarded_atomic(self: Any, kind: Any, pointers: Any, value: Any, mask: Any, *more: Any) -> Any:
        launches.access(pointers, mask, writes=True)
        return atomic(self, kind, pointers, value, mask, *more)

    def guarded_binary(self: Any, left: Any, right: Any, op: Any) -> Any:
        found = binary(self, left, right, op)
        if op in (np.add, np.subtract, np.multiply) and found.data.dtype == np.int32:
            exact = op(left.data.astype(np.int64), right.data.astype(np.int64))
            assert np.array_equal(exact, found.data), f"{launches.names[-1]}, {_line()}: int32 overflows"
        return found

    def filled(*values: Any, **named: Any) -> Any:
        made = empty(*values, **named)
        made.untyped_storage().fill_(poison)
        return made

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(executor, "__call__", guarded_call)
        patch.setattr(function, "__call__", guarded_inner)
        patch.setattr(builder, "set_grid_idx", guarded_program)
        patch.setattr(builder, "create_masked_load", guarded_load)
        patch.setattr(builder, "create_masked_store", guarded_store)
        patch.setattr(builder, "create_atomic_rmw", guarded_atomic)
        patch.setattr(builder, "binary_op", guarded_binary)
        patch.setattr(torch, "empty", filled)
        yield launches.names


def _extents(values: Iterable[Any]) -> Iterator[tuple[int, int]]:
    """The first byte of each tensor, and that after its last."""
    for value in values:
        if isinstance(value, tuple):
            yield from _extents(value)
        elif hasattr(value, "data_ptr"):
            steps = zip(value.shape, value.stride(), strict=True)
            last = sum((size - 1) * step for size, step in steps) if value.numel() else -1
            yield value.data_ptr(), value.data_ptr() + (last + 1) * value.element_size()
        elif hasattr(value, "base"):  # a tensor descriptor
            yield from _extents([value.base])


def _joined(parts: list[np.ndarray]) -> np.ndarray:
    """Ranges in order; what overlaps or touches is one."""
    ranges = np.concatenate([np.zeros((0, 2), np.uint64), *parts])
    ranges = ranges[np.argsort(ranges[:, 0], kind="stable")]
    highest = np.maximum.accumulate(ranges[:, 1])
    starts = np.flatnonzero(np.append(True, ranges[1:, 0] > highest[:-1])[: len(ranges)])
    ends = np.append(starts[1:], len(ranges))[: len(starts)] - 1
    return np.stack([ranges[starts, 0], highest[ends]], 1)


def _inside(first: np.ndarray, size: int, ranges: np.ndarray) -> np.ndarray:
    """Which addresses have all their bytes in one of the ranges."""
    if not len(ranges):
        return np.zeros(first.shape, bool)
    at = np.searchsorted(ranges[:, 0], first, side="right").astype(np.int64) - 1
    return (at >= 0) & (first + np.uint64(size) <= ranges[at, 1])


def _line() -> str:
    """Where in a kernel: the interpreter runs it as Python."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename.replace("\\", "/")
        if "/triton/" not in name and name != __file__:
            return f"{name.rpartition('/')[2]}:{frame.f_lineno}"
        frame = frame.f_back
    return ""
