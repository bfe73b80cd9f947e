"""Triton's interpreter as the other tests use it: faster, and its roundings are a GPU's."""

from __future__ import annotations

import os

import numpy as np
import pytest

pytest.importorskip("triton")
if os.environ["TRITON_INTERPRET"] != "1":
    pytest.skip("these tests run in Triton's interpreter", allow_module_level=True)

import torch
import triton
import triton.language as tl


@triton.jit
def _copy(source, target, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    tl.store(target + at, tl.load(source + at).to(tl.bfloat16))


def test_float32_becomes_the_nearest_bfloat16() -> None:
    """Random bits (infinities, numbers that are none and the smallest ones among them), and ties to even."""
    bits = np.random.default_rng(5).integers(0, 1 << 32, 4096 - 8, dtype=np.uint32)
    ties = np.array([0x3F808000, 0x3F818000, 0x7F7FFFFF, 0x7F800000, 0x7F800001, 0xFF800000, 0, 1], np.uint32)
    given = torch.from_numpy(np.concatenate([bits, ties]).view(np.float32))
    found = torch.zeros(4096, dtype=torch.bfloat16)
    _copy[(1,)](given, found, SIZE=4096)
    torch.testing.assert_close(found, given.bfloat16(), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("shape", [[4, 2], [2, 4], [8]])
def test_values_of_one_shape_keep_their_own_types(shape: list[int]) -> None:
    """What is remembered of a type belongs to no other one."""
    pointers = [tl.pointer_type(tl.float32, const=const) for const in (False, True)]
    for element in 2 * [tl.int32, tl.float32, *pointers, tl.pointer_type(tl.int8)]:
        kind = tl.block_type(element, [tl.constexpr(size) for size in shape])
        value = tl.tensor(object(), kind)
        assert (value.type, value.dtype, kind.element_ty) == (kind, element, element)
        assert [size.value for size in value.shape] == list(kind.shape) == shape
        assert value.numel.value == kind.numel == 8
        assert str(element) in kind.name
        assert tl.tensor(object(), element).dtype == element
