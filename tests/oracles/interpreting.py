"""Triton's interpreter, without work that it repeats, and with a GPU's rounding."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np


def prepare() -> None:
    """Once a process, before kernels run."""
    patch_language_once()
    skip_unused_checks()
    remember_types()
    match_operands_once()
    round_to_bfloat16()


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


def skip_unused_checks() -> None:
    """Half of the interpreter's time goes into whether integers overflow, and it drops the answer: assertions
    of kernels hold only with the option `debug`, which it does not set."""
    from triton.runtime import interpreter

    builder = interpreter.interpreter_builder
    if not builder.options.debug:
        builder.options = replace(builder.options, sanitize_overflow=False)


def remember_types() -> None:
    """What the interpreter derives from the type of each value (shapes, sizes, names), it derives once."""
    from triton.runtime import interpreter

    core = interpreter.tl.core
    tensor, block = core.tensor.__init__, core.block_type.__init__
    tensors: dict[str, dict[str, Any]] = {}
    blocks: dict[tuple[Any, ...], dict[str, Any]] = {}

    def make_tensor(self: Any, handle: Any, type: Any) -> None:
        known = tensors.get(type.name)
        if known is None:
            tensor(self, handle, type)
            tensors[type.name] = vars(self).copy()
        else:
            vars(self).update(known, handle=handle, type=type, dtype=type.scalar)

    def make_block(self: Any, element_ty: Any, shape: Any) -> None:
        key = (element_ty.name, *(getattr(each, "value", each) for each in shape))
        known = blocks.get(key)
        if known is None:
            block(self, element_ty, shape)
            blocks[key] = vars(self).copy()
        else:
            vars(self).update(known, element_ty=element_ty)

    core.tensor.__init__, core.block_type.__init__ = make_tensor, make_block
    numpy_type = interpreter._get_np_dtype
    numpy_types: dict[str, Any] = {}

    def remembered(dtype: Any) -> Any:
        found = numpy_types.get(dtype.name)
        if found is None:
            found = numpy_types[dtype.name] = numpy_type(dtype)
        return found

    interpreter._get_np_dtype = remembered


def match_operands_once() -> None:
    """How the operands of an operation get one type and one shape follows from their types, and is derived
    once for each pair of them."""
    from triton.runtime import interpreter

    core, semantic = interpreter.tl.core, type(interpreter.interpreter_semantic)
    derived, match, broadcast = (
        semantic.computation_type_impl, semantic.binary_op_type_checking_impl, semantic.broadcast_impl_value,
    )  # fmt: skip
    results: dict[tuple[Any, ...], Any] = {}
    shapes: dict[tuple[str, str], tuple[Any, Any]] = {}  # the types after it; none: as before

    def computation_type(self: Any, a: Any, a_is_scalar: bool, b: Any, b_is_scalar: bool, div: bool) -> Any:
        key = (a.name, a_is_scalar, b.name, b_is_scalar, div)
        found = results.get(key)
        if found is None:
            found = results[key] = derived(self, a, a_is_scalar, b, b_is_scalar, div)
        return found

    def matched(
        self: Any, lhs: Any, rhs: Any, lhs_ptr: bool = False, rhs_ptr: bool = False,
        arithmetic_check: bool = True, div_or_mod: bool = False,
    ) -> Any:  # fmt: skip
        """Two tensors of these types keep them, and a number takes that of the tensor, in every operation."""
        left, right = kind_of(lhs), kind_of(rhs)
        if left is not None and left == right:
            return broadcasted(self, lhs, rhs)
        if arithmetic_check and takes(left, rhs):
            return broadcasted(self, lhs, self.scalar_constant(rhs, dtype=lhs.dtype))
        if arithmetic_check and takes(right, lhs):
            return broadcasted(self, self.scalar_constant(lhs, dtype=rhs.dtype), rhs)
        return match(self, lhs, rhs, lhs_ptr, rhs_ptr, arithmetic_check, div_or_mod)

    def kind_of(value: Any) -> str | None:
        name = value.dtype.name if type(value) is core.tensor else None
        return name if name in ("fp32", "int32", "int64") else None

    def takes(kind: str | None, value: Any) -> bool:
        if kind == "fp32":
            return type(value) is float or type(value) is int
        return kind is not None and type(value) is int and -(2**31) <= value < 2**31

    def broadcasted(self: Any, lhs: Any, rhs: Any) -> Any:
        key = (lhs.type.name, rhs.type.name)
        known = shapes.get(key)
        if known is not None:
            return shaped(self, lhs, known[0]), shaped(self, rhs, known[1])
        found = broadcast(self, lhs, rhs)
        ranks = {len(each.type.shape) for each in (lhs, rhs) if each.type.is_block()}
        if len(ranks) < 2:  # one of fewer dimensions gets them in several steps
            shapes[key] = (
                None if found[0] is lhs else found[0].type,
                None if found[1] is rhs else found[1].type,
            )
        return found

    def shaped(self: Any, value: Any, wanted: Any) -> Any:
        if wanted is None:
            return value
        builder = self.builder
        if value.type.is_block():
            return self.tensor(builder.create_broadcast(value.handle, wanted.shape), wanted)
        return self.tensor(builder.create_splat(wanted, value.handle), wanted)

    semantic.computation_type_impl = computation_type
    semantic.binary_op_type_checking_impl = matched
    semantic.broadcast_impl_value = broadcasted


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
