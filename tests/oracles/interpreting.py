"""Triton's interpreter, without work that it repeats, and with a GPU's rounding."""

from __future__ import annotations

from typing import Any

import numpy as np


def patch_language_once() -> None:
    """Triton's interpreter patches `triton.language` for each device function that a kernel calls, a quarter
    of a test's time. Once a launch is enough for all functions that see the same modules of it."""
    from triton.runtime import interpreter

    function = interpreter.InterpretedFunction
    run = function.run
    patched: set[frozenset[int]] = set()

    def run_patched(self: Any, *values: Any, **named: Any) -> Any:
        patched.clear()  # the launch before restored the language
        return run(self, *values, **named)

    def call(self: Any, *values: Any, **named: Any) -> Any:
        seen = self.__dict__.get("language_seen")
        if seen is None:
            languages = (interpreter.tl, interpreter.tl.core)
            seen = frozenset(id(each) for each in self.fn.__globals__.values() if each in languages)
            self.language_seen = seen
        if seen not in patched:
            interpreter._patch_lang(self.fn)
            patched.add(seen)
        return self.rewrite()(*values, **named)

    function.run, function.__call__ = run_patched, call


def round_to_bfloat16() -> None:
    """Float32 becomes the nearest bfloat16, ties to even, as on a GPU. The interpreter by itself cuts off the
    lower bits: errors of one sign, which add up in sums."""
    from triton.runtime import interpreter

    tl, cast = interpreter.tl, interpreter.InterpreterBuilder.cast_impl

    def rounded(self: Any, src: Any, dst_type: Any) -> Any:
        if src.dtype.scalar != tl.float32 or dst_type.scalar != tl.bfloat16:
            return cast(self, src, dst_type)
        return interpreter.TensorHandle(nearest_bfloat16(src.data), dst_type.scalar)

    interpreter.InterpreterBuilder.cast_impl = rounded


def nearest_bfloat16(x: np.ndarray) -> np.ndarray:
    """The upper halves of the floats' bits, rounded; what is not a number stays none."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> 16) & np.uint32(1))) >> 16
    return np.where(np.isnan(x), (bits >> 16) | np.uint32(0x40), rounded).astype(np.uint16)
