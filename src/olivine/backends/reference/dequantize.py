"""Dequantization of every storage type to float32: the definition that other backends are tested against.

Bit-exact with the GGUF reference implementation: the order of operations is part of the definition.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from olivine.backends.reference import grids
from olivine.dtypes import DTYPES
from olivine.tensor import Tensor

Float32 = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]
Blocks = npt.NDArray[np.uint8]  # [n, bytes of a block]

_IQ4 = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], dtype=np.float32)
_FP4 = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], dtype=np.float32)


def dequantize(tensor: Tensor) -> Float32:
    """The tensor's values, in its shape."""
    dtype = tensor.dtype
    if dtype.scale_bytes:
        assert tensor.scales is not None
        values = _grouped_int8(tensor.data, tensor.scales, dtype.block_size)
    elif dtype.name in _PLAIN:
        values = _PLAIN[dtype.name](tensor.data)
    else:
        # Random or hostile scales may be inf or NaN: no reason for a warning.
        with np.errstate(over="ignore", invalid="ignore"):
            values = _BLOCKS[dtype.name](tensor.data.reshape(-1, dtype.block_bytes))
    return values.reshape(tensor.shape)


def _half(blocks: Blocks, at: int) -> Float32:
    """The float16 at byte `at` of every block, as a column."""
    return np.ascontiguousarray(blocks[:, at : at + 2]).view("<f2").astype(np.float32)


def _nibble_halves(codes: Blocks) -> Blocks:
    """16 bytes hold 32 codes: first the low nibbles of all bytes, then the high ones."""
    return np.concatenate([codes & 15, codes >> 4], axis=-1)


def _high_bits(blocks: Blocks, at: int) -> Blocks:
    """32 bits at byte `at`: bit e is the fifth bit of element e."""
    return np.unpackbits(blocks[:, at : at + 4], axis=-1, bitorder="little") << np.uint8(4)


def _q4_0(b: Blocks) -> Float32:
    return _half(b, 0) * (_nibble_halves(b[:, 2:]).astype(np.float32) - 8)


def _q4_1(b: Blocks) -> Float32:
    return _half(b, 0) * _nibble_halves(b[:, 4:]).astype(np.float32) + _half(b, 2)


def _q5_0(b: Blocks) -> Float32:
    codes = _nibble_halves(b[:, 6:]) | _high_bits(b, 2)
    return _half(b, 0) * (codes.astype(np.float32) - 16)


def _q5_1(b: Blocks) -> Float32:
    codes = _nibble_halves(b[:, 8:]) | _high_bits(b, 4)
    return _half(b, 0) * codes.astype(np.float32) + _half(b, 2)


def _q8_0(b: Blocks) -> Float32:
    return _half(b, 0) * b[:, 2:].view(np.int8).astype(np.float32)


def _iq4_nl(b: Blocks) -> Float32:
    return _half(b, 0) * _IQ4[_nibble_halves(b[:, 2:])]


def _mxfp4(b: Blocks) -> Float32:
    # 2^(e - 128): half of the E8M0 scale, because the FP4 table is doubled. Subnormal for e = 0 and 1.
    e = b[:, :1].astype(np.uint32)
    bits = np.where(e < 2, np.uint32(0x00200000) << np.minimum(e, 1), (np.maximum(e, 1) - 1) << 23)
    return bits.astype(np.uint32).view(np.float32) * _FP4[_nibble_halves(b[:, 1:])]


def _nvfp4(b: Blocks) -> Float32:
    # Four groups of 16, each with a scale in E4M3, which is halved because the FP4 table is doubled. Its sign
    # is not used, and 127 is 0.
    e, m = b[:, :4] >> 3 & 15, (b[:, :4] & 7).astype(np.float32)
    scale = np.where(e == 0, m * np.float32(2**-10), np.ldexp(1 + m / 8, e.astype(np.int32) - 8))
    scale = np.where(b[:, :4] == 127, 0, scale).astype(np.float32)
    return (scale[:, :, None] * _FP4[_nibble_halves(b[:, 4:].reshape(-1, 4, 8))]).reshape(-1, 64)


# Super-blocks of 256. Element e = 128·h + 32·r + l; a scale serves 16 (g = e >> 4) or 32 (j = e >> 5).


def _two_bits(codes: Blocks) -> Blocks:
    """64 bytes hold 256 two-bit codes: element (h, r, l) is bits 2r of byte 32h + l."""
    shifts = np.array([0, 2, 4, 6], dtype=np.uint8).reshape(1, 1, 4, 1)
    return ((codes.reshape(-1, 2, 1, 32) >> shifts) & np.uint8(3)).reshape(-1, 256)


def _q2_k(b: Blocks) -> Float32:
    scales = b[:, :16]
    d, dmin = _half(b, 80), _half(b, 82)
    scale = np.repeat(d * (scales & 15).astype(np.float32), 16, axis=1)
    minimum = np.repeat(dmin * (scales >> 4).astype(np.float32), 16, axis=1)
    return scale * _two_bits(b[:, 16:80]).astype(np.float32) - minimum


def _q3_k(b: Blocks) -> Float32:
    packed = b[:, 96:108]
    g = np.arange(16)
    low = (packed[:, g & 7] >> (4 * (g >> 3)).astype(np.uint8)) & 15
    high = (packed[:, 8 + (g & 3)] >> (2 * (g >> 2)).astype(np.uint8)) & 3
    scale = (low | high << 4).astype(np.float32) - 32
    # A clear mask bit subtracts 4. Bit j of byte l belongs to element 32·j + l.
    mask = (b[:, None, :32] >> np.arange(8, dtype=np.uint8).reshape(1, 8, 1)) & 1
    codes = _two_bits(b[:, 32:96]).astype(np.float32) - (4 - 4 * mask.reshape(-1, 256).astype(np.float32))
    spread: Float32 = np.repeat(_half(b, 108) * scale, 16, axis=1)
    return spread * codes


def _scales_and_mins(packed: Blocks) -> tuple[Float32, Float32]:
    """The eight 6-bit scales and eight 6-bit minima in 12 bytes of Q4_K and Q5_K."""
    first, second, third = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scale = np.concatenate([first & 63, (third & 15) | ((first >> 6) << 4)], axis=1)
    low = np.concatenate([second & 63, (third >> 4) | ((second >> 6) << 4)], axis=1)
    return scale.astype(np.float32), low.astype(np.float32)


def _four_bits(codes: Blocks) -> Blocks:
    """128 bytes hold 256 codes: 32 low nibbles, then the same bytes' 32 high nibbles."""
    pairs = codes.reshape(-1, 4, 1, 32)
    return np.concatenate([pairs & 15, pairs >> 4], axis=2).reshape(-1, 8, 32)


def _q4_k(b: Blocks) -> Float32:
    scale, low = _scales_and_mins(b[:, 4:16])
    d, m = (_half(b, 0) * scale)[:, :, None], (_half(b, 2) * low)[:, :, None]
    return (d * _four_bits(b[:, 16:]).astype(np.float32) - m).reshape(-1, 256)


def _q5_k(b: Blocks) -> Float32:
    scale, low = _scales_and_mins(b[:, 4:16])
    d, m = (_half(b, 0) * scale)[:, :, None], (_half(b, 2) * low)[:, :, None]
    high = (b[:, None, 16:48] >> np.arange(8, dtype=np.uint8).reshape(1, 8, 1)) & 1
    codes = _four_bits(b[:, 48:]) | high << 4
    return (d * codes.astype(np.float32) - m).reshape(-1, 256)


def _q6_k(b: Blocks) -> Float32:
    pairs = b[:, :128].reshape(-1, 2, 2, 32)  # [h, r & 1, l]
    low = np.concatenate([pairs & 15, pairs >> 4], axis=2).reshape(-1, 256)  # r = 0, 1, then 2, 3
    codes = (low | _two_bits(b[:, 128:192]) << 4).astype(np.float32) - 32
    scale = _half(b, 208) * b[:, 192:208].view(np.int8).astype(np.float32)
    return np.repeat(scale, 16, axis=1) * codes


def _iq4_xs(b: Blocks) -> Float32:
    j = np.arange(8)
    high = np.ascontiguousarray(b[:, 2:4]).view("<u2")
    low = (b[:, 4 + (j >> 1)] >> (4 * (j & 1)).astype(np.uint8)) & 15
    scale = (low | ((high >> (2 * j).astype(np.uint16)) & 3) << 4).astype(np.float32) - 32
    codes = _nibble_halves(b[:, 8:].reshape(-1, 8, 16))
    spread: Float32 = (_half(b, 0) * scale)[:, :, None]
    return (spread * _IQ4[codes]).reshape(-1, 256)


def _tq2_0(b: Blocks) -> Float32:
    return _half(b, 64) * (_two_bits(b[:, :64]).astype(np.float32) - 1)


def _tq1_0(b: Blocks) -> Float32:
    # A byte holds five digits in base 3 as a fraction of 256, the first one most significant; the last four
    # bytes hold four.
    powers = np.array([1, 3, 9, 27, 81], np.uint8)[:, None]
    parts = (
        (b[:, None, first:last] * powers[:count]).reshape(len(b), -1)
        for first, last, count in ((0, 32, 5), (32, 48, 5), (48, 52, 4))
    )
    digits = np.concatenate([*parts], axis=1).astype(np.uint16) * 3 >> 8
    return _half(b, 52) * (digits.astype(np.float32) - 1)


def _grouped_int8(data: Bytes, scales: Bytes, group: int) -> Float32:
    factors = np.frombuffer(scales.tobytes(), "<f4")  # a copy, because the file may not align them
    return data.view(np.int8).reshape(-1, group).astype(np.float32) * factors[:, None]


_PLAIN: dict[str, Callable[[Bytes], Float32]] = {
    # NumPy reads unaligned views correctly, so these stay views of the map until `astype`.
    "F32": lambda data: data.view("<f4"),
    "F16": lambda data: data.view("<f2").astype(np.float32),
    "BF16": lambda data: (data.view("<u2").astype(np.uint32) << 16).view(np.float32),
}

_BLOCKS: dict[str, Callable[[Blocks], Float32]] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
    "IQ4_NL": _iq4_nl,
    "IQ4_XS": _iq4_xs,
    "MXFP4": _mxfp4,
    "NVFP4": _nvfp4,
    "IQ1_S": grids.iq1_s,
    "IQ1_M": grids.iq1_m,
    "IQ2_XXS": grids.iq2_xxs,
    "IQ2_XS": grids.iq2_xs,
    "IQ2_S": grids.iq2_s,
    "IQ3_XXS": grids.iq3_xxs,
    "IQ3_S": grids.iq3_s,
    "TQ1_0": _tq1_0,
    "TQ2_0": _tq2_0,
}

assert set(_PLAIN) | set(_BLOCKS) == set(DTYPES), "every storage type is decoded here"
