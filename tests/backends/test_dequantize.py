"""What stored bytes mean, bit for bit, against the format's own library."""

from __future__ import annotations

import zlib

import gguf
import numpy as np
import pytest

from olivine.backends.reference import dequantize
from olivine.dtypes import DTYPES, grouped_int8
from olivine.tensor import Tensor


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", DTYPES)
def test_every_type_is_bit_exact_on_random_bytes(name: str) -> None:
    dtype = DTYPES[name]
    rows, blocks = 96, 1024 // dtype.block_size
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    raw = rng.integers(0, 256, (rows, blocks * dtype.block_bytes), dtype=np.uint8)
    ours = dequantize(Tensor("x", dtype, (rows, 1024), raw.reshape(-1)))
    if name in ("F32", "F16"):
        theirs = raw.view(f"<f{dtype.block_bytes}").astype(np.float32)
    else:
        theirs = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[name])
    assert ours.dtype == np.float32 and ours.shape == (rows, 1024)
    np.testing.assert_array_equal(ours.view(np.uint32), np.ascontiguousarray(theirs).view(np.uint32))


@pytest.mark.parametrize("name", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_what_the_library_quantizes_comes_back_near(name: str) -> None:
    values = np.random.default_rng(0).standard_normal((8, 256)).astype(np.float32)
    raw = gguf.quants.quantize(values, gguf.GGMLQuantizationType[name])
    ours = dequantize(Tensor("x", DTYPES[name], values.shape, raw.reshape(-1)))
    assert np.abs(ours - values).max() < {"Q8_0": 0.02}.get(name, 0.4)


def test_unaligned_views_decode() -> None:
    values = np.arange(12, dtype=np.float32)
    for name in ("F32", "F16", "BF16"):
        raw = gguf.quants.quantize(values, gguf.GGMLQuantizationType[name]).view(np.uint8)
        shifted = np.concatenate([np.zeros(1, np.uint8), raw.reshape(-1)])[1:]
        np.testing.assert_array_equal(dequantize(Tensor("x", DTYPES[name], (12,), shifted)), values)


def test_grouped_int8_with_separate_unaligned_scales() -> None:
    codes = np.arange(-24, 24, dtype=np.int8)
    scales = np.array([0.5, 2.0, 0.0], np.float32)
    shifted = np.concatenate([np.zeros(3, np.uint8), scales.view(np.uint8)])[3:]
    tensor = Tensor("x", grouped_int8(16), (3, 16), codes.view(np.uint8), shifted)
    np.testing.assert_array_equal(dequantize(tensor), codes.reshape(3, 16) * scales[:, None])
    np.testing.assert_array_equal(dequantize(tensor.rows(1, 2)), codes.reshape(3, 16)[1:2] * 2.0)


def test_rows_are_views_of_whole_rows() -> None:
    raw = np.random.default_rng(0).integers(0, 256, 6 * 2 * 144, dtype=np.uint8)
    tensor = Tensor("x", DTYPES["Q4_K"], (2, 3, 512), raw)
    part = tensor.rows(1, 4)
    assert part.shape == (3, 512) and np.shares_memory(part.data, raw)
    np.testing.assert_array_equal(dequantize(part), dequantize(tensor).reshape(6, 512)[1:4])
    with pytest.raises(IndexError):
        tensor.rows(5, 7)
