"""Random weights made directly in their storage types, at the speed of memory.

A weight of a matrix with k inputs has variance 1/k, so activations keep their size through any number of
layers and logits spread like a model's. The codes are random bits; only scales and minima are chosen.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import numpy.typing as npt
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import IQ4_NL, MXFP4

from olivine.convert.stream import in_order

Bytes = npt.NDArray[np.uint8]
Maker = Callable[[np.random.Generator, int, float], Bytes]

POOL_BYTES = 16 << 20
THREADS = min(16, os.cpu_count() or 1)


class RandomWeights:
    """The bytes of random tensors. While those of one are used, threads make those of the next ones."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._floats: dict[tuple[GGMLQuantizationType, int], Bytes] = {}
        self._making_floats = threading.Lock()

    def tensors(
        self, wanted: Iterable[tuple[GGMLQuantizationType, tuple[int, ...]]]
    ) -> Iterator[Iterator[Bytes]]:
        """The bytes of each, in pieces of at most a pool, which large tensors repeat."""
        jobs = (
            (dtype, shape, np.random.default_rng([self._seed, index]))
            for index, (dtype, shape) in enumerate(wanted)
        )
        for (dtype, shape, rng), pool in in_order(jobs, self._pool, THREADS):
            yield _pieces(pool, int(rng.integers(len(pool))), nbytes(dtype, shape))

    def _pool(self, job: tuple[GGMLQuantizationType, tuple[int, ...], np.random.Generator]) -> Bytes:
        """Blocks as rows of bytes. Their number is odd, or rows of the tensor would repeat too soon.

        Blocks are quick to make, and tensors must not share them: rows that two matrices have in common would
        answer each other far too strongly. Floats are slow to make, and to begin elsewhere sets them apart.
        """
        dtype, shape, rng = job
        inputs, (block, block_bytes) = shape[-1], GGML_QUANT_SIZES[dtype]
        if block > 1:
            count = min(POOL_BYTES, nbytes(dtype, shape)) // block_bytes | 1
            return _MAKERS[dtype](rng, count, inputs**-0.5)
        key = (dtype, inputs)
        with self._making_floats:
            if key not in self._floats:
                rng = np.random.default_rng([self._seed, *key])
                self._floats[key] = _MAKERS[dtype](rng, POOL_BYTES // block_bytes | 1, inputs**-0.5)
            return self._floats[key]


def _pieces(pool: Bytes, first: int, left: int) -> Iterator[Bytes]:
    """So many bytes of the pool again and again, from its `first` block on."""
    flat, start = pool.reshape(-1), first * pool.shape[1]
    while left:
        piece = flat[start : start + left]
        yield piece
        left, start = left - len(piece), 0


def nbytes(dtype: GGMLQuantizationType, shape: tuple[int, ...]) -> int:
    size, block_bytes = GGML_QUANT_SIZES[dtype]
    assert shape[-1] % size == 0, f"rows of {shape[-1]} are not whole blocks of {dtype.name}"
    return math.prod(shape) // size * block_bytes


def codes_int8(rng: np.random.Generator, count: int) -> Bytes:
    """int8 codes from -127 to 127: no quantizer makes -128."""
    codes = _random_bytes(rng, count)
    codes[codes == 0x80] = 0
    return codes


def _random_bytes(rng: np.random.Generator, count: int) -> Bytes:
    """As `rng.bytes`, in a third of the time, and without keeping other threads from running."""
    return rng.integers(0, 1 << 64, -(-count // 8), np.uint64).view(np.uint8)[:count]


# The root mean square of the random codes of each type, by which a scale is divided.
_RMS_INT8 = math.sqrt((255**2 - 1) / 12)
_RMS_4BIT = math.sqrt((16**2 - 1) / 12)
_RMS_5BIT = math.sqrt((32**2 - 1) / 12)
_RMS_6BIT = math.sqrt((64**2 - 1) / 12)
_RMS_IQ4 = math.sqrt(sum(value * value for value in IQ4_NL.kvalues) / 16)
_RMS_FP4 = math.sqrt(sum(value * value for value in MXFP4.kvalues) / 16)
_RMS_SIGNED_SUBSCALE = math.sqrt(sum(i * i for i in range(-32, 32)) / 64)
_RMS_SUBSCALE = math.sqrt(sum(i * i for i in range(64)) / 64)


def _random(rng: np.random.Generator, dtype: GGMLQuantizationType, count: int) -> Bytes:
    width = GGML_QUANT_SIZES[dtype][1]
    return _random_bytes(rng, count * width).reshape(count, width)


def _scales(rng: np.random.Generator, count: int, size: float, *, signed: bool = False) -> npt.NDArray:
    """Scales around `size`, not all equal; of both signs where the type's codes are not symmetric."""
    scales = size * rng.uniform(0.75, 1.25, count).astype(np.float32)
    return scales * rng.choice(np.array([-1, 1], np.float32), count) if signed else scales


def _put_f16(blocks: Bytes, offset: int, values: npt.NDArray) -> None:
    blocks[:, offset : offset + 2] = values.astype("<f2").view(np.uint8).reshape(-1, 2)


def _f32(rng: np.random.Generator, count: int, sigma: float) -> Bytes:
    return (sigma * rng.standard_normal(count, np.float32)).view(np.uint8).reshape(-1, 4)


def _f16(rng: np.random.Generator, count: int, sigma: float) -> Bytes:
    return _f32(rng, count, sigma).view("<f4").astype("<f2").view(np.uint8).reshape(-1, 2)


def _bf16(rng: np.random.Generator, count: int, sigma: float) -> Bytes:
    return np.ascontiguousarray(_f32(rng, count, sigma)[:, 2:])  # truncated: random is random


def _q8_0(rng: np.random.Generator, count: int, sigma: float) -> Bytes:
    blocks = np.empty((count, 34), np.uint8)
    blocks[:, 2:] = codes_int8(rng, count * 32).reshape(count, 32)
    _put_f16(blocks, 0, _scales(rng, count, sigma / _RMS_INT8))
    return blocks


def _q4_0(rng: np.random.Generator, count: int, sigma: float) -> Bytes:
    blocks = _random(rng, GGMLQuantizationType.Q4_0, count)
    _put_f16(blocks, 0, _scales(rng, count, sigma / _RMS_4BIT, signed=True))
    return blocks


def _q5_0(rng: np.random.Generator, count: int, sigma: float) -> Bytes:
    blocks = _random(rng, GGMLQuantizationType.Q5_0, count)
    _put_f16(blocks, 0, _scales(rng, count, sigma / _RMS_5BIT, signed=True))
    return blocks


def _q4_1(rng: np.random.Generator, count: int, sigma: float) -> Bytes:
    blocks = _random(rng, GGMLQuantizationType.Q4_1, count)
    d = _scales(rng, count, sigma / _RMS_4BIT)
    _put_f16(blocks, 0, d)
    _put_f16(blocks, 2, -7.5 * d)
    return blocks


def _q5_1(rng: np.random.Generator, count: int, sigma: float) -> Bytes:
    blocks = _random(rng, GGMLQuantizationType.Q5_1, count)
    d = _scales(rng, count, sigma / _RMS_5BIT)
    _put_f16(blocks, 0, d)
    _put_f16(blocks, 2, -15.5 * d)
    return blocks


def _with_minima(rng: np.random.Generator, blocks: Bytes, sigma: float, rms: float, middle: float) -> Bytes:
    """Q4_K and Q5_K: the same six bits as scale and as minimum of a sub-block, so that its mean is zero."""
    d = _scales(rng, len(blocks), sigma / rms / _RMS_SUBSCALE)
    _put_f16(blocks, 0, d)
    _put_f16(blocks, 2, middle * d)
    blocks[:, 8:12] = blocks[:, 4:8]
    blocks[:, 12:16] = blocks[:, 12:16] % 16 * 17
    return blocks


def _q4_k(rng: np.random.Generator, count: int, sigma: float) -> Bytes:
    return _with_minima(rng, _random(rng, GGMLQuantizationType.Q4_K, count), sigma, _RMS_4BIT, 7.5)


def _q5_k(rng: np.random.Generator, count: int, sigma: float) -> Bytes:
    return _with_minima(rng, _random(rng, GGMLQuantizationType.Q5_K, count), sigma, _RMS_5BIT, 15.5)


def _q6_k(rng: np.random.Generator, count: int, sigma: float) -> Bytes:
    blocks = _random(rng, GGMLQuantizationType.Q6_K, count)
    blocks[:, 192:208] = codes_int8(rng, count * 16).reshape(count, 16)
    _put_f16(blocks, 208, _scales(rng, count, sigma / _RMS_6BIT / _RMS_INT8))
    return blocks


def _q2_k(rng: np.random.Generator, count: int, sigma: float) -> Bytes:
    """The same four bits as scale and as minimum of a sub-block, so that its mean is zero."""
    blocks = _random(rng, GGMLQuantizationType.Q2_K, count)
    blocks[:, :16] = blocks[:, :16] % 16 * 17
    d = _scales(
        rng, count, sigma / math.sqrt((4**2 - 1) / 12) / math.sqrt(sum(i * i for i in range(16)) / 16)
    )
    _put_f16(blocks, 80, d)
    _put_f16(blocks, 82, 1.5 * d)
    return blocks


def _q3_k(rng: np.random.Generator, count: int, sigma: float) -> Bytes:
    blocks = _random(rng, GGMLQuantizationType.Q3_K, count)
    rms = math.sqrt(sum(i * i for i in range(-4, 4)) / 8)
    _put_f16(blocks, 108, _scales(rng, count, sigma / rms / _RMS_SIGNED_SUBSCALE))
    return blocks


def _iq4_nl(rng: np.random.Generator, count: int, sigma: float) -> Bytes:
    blocks = _random(rng, GGMLQuantizationType.IQ4_NL, count)
    _put_f16(blocks, 0, _scales(rng, count, sigma / _RMS_IQ4, signed=True))
    return blocks


def _iq4_xs(rng: np.random.Generator, count: int, sigma: float) -> Bytes:
    blocks = _random(rng, GGMLQuantizationType.IQ4_XS, count)
    _put_f16(blocks, 0, _scales(rng, count, sigma / _RMS_IQ4 / _RMS_SIGNED_SUBSCALE))
    return blocks


def _mxfp4(rng: np.random.Generator, count: int, sigma: float) -> Bytes:
    """A scale is a power of two: one of the two around the size wanted, whose square it is on average."""
    blocks = _random(rng, GGMLQuantizationType.MXFP4, count)
    size = math.log2(sigma / _RMS_FP4)
    above = (4 ** (size - math.floor(size)) - 1) / 3
    blocks[:, 0] = math.floor(size) + 128 + (rng.random(count) < above)
    return blocks


_MAKERS: dict[GGMLQuantizationType, Maker] = {
    GGMLQuantizationType.F32: _f32,
    GGMLQuantizationType.F16: _f16,
    GGMLQuantizationType.BF16: _bf16,
    GGMLQuantizationType.Q8_0: _q8_0,
    GGMLQuantizationType.Q4_0: _q4_0,
    GGMLQuantizationType.Q4_1: _q4_1,
    GGMLQuantizationType.Q5_0: _q5_0,
    GGMLQuantizationType.Q5_1: _q5_1,
    GGMLQuantizationType.Q4_K: _q4_k,
    GGMLQuantizationType.Q5_K: _q5_k,
    GGMLQuantizationType.Q6_K: _q6_k,
    GGMLQuantizationType.Q2_K: _q2_k,
    GGMLQuantizationType.Q3_K: _q3_k,
    GGMLQuantizationType.IQ4_NL: _iq4_nl,
    GGMLQuantizationType.IQ4_XS: _iq4_xs,
    GGMLQuantizationType.MXFP4: _mxfp4,
}
