"""Tiles of weights, decoded to values, for GEMM and embedding.

A tile comes in pieces (see formats.py), and `columns` says which columns a piece has: no code ever moves to
another lane, and the columns of the other operand are loaded to match.
"""

from __future__ import annotations

import triton
import triton.language as tl

from olivine.backends.cuda.formats import (
    BLOCK,
    FIFTH_BIT,
    FLOAT,
    FLOAT_TILE_WIDTH,
    HAS_MINIMUM,
    HAS_TABLE,
    INT8,
    MIDDLE,
    MXFP4,
    PACKED,
    Q3_K,
    Q6_K,
    SIXTEENS,
)
from olivine.backends.cuda.kernels.tables import looked_up


@triton.jit
def columns(k, FORMAT: tl.constexpr, PIECE: tl.constexpr, COLUMNS: tl.constexpr):
    """The columns of a piece of the tile of COLUMNS columns that begins at column k."""
    if not PACKED[FORMAT]:
        at = k + tl.arange(0, COLUMNS)
    elif BLOCK[FORMAT] == 32:
        i = tl.arange(0, COLUMNS // 2)
        at = k + (i // 16 * 32 + PIECE * 16 + i % 16)
    elif SIXTEENS[FORMAT]:
        i = tl.arange(0, COLUMNS // 8)
        at = k + (i // 16 * 128 + PIECE * 16 + i % 16)
    else:
        i = tl.arange(0, COLUMNS // 2)
        at = k + (i // 32 * 64 + PIECE * 32 + i % 32)
    return at


@triton.jit
def _spread(scales, EACH: tl.constexpr):
    """[ROWS, COUNT] to [ROWS, COUNT · EACH], each repeated."""
    wide = tl.broadcast_to(scales[:, :, None], (scales.shape[0], scales.shape[1], EACH))
    return tl.reshape(wide, (scales.shape[0], scales.shape[1] * EACH))


@triton.jit
def half(bits):
    """The float16 in the low half of an int32."""
    return (bits & 0xFFFF).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def _byte(word, index):
    return ((word >> (8 * index)) & 255).to(tl.float32)


@triton.jit
def power_of_two(e):
    """2^(e - 128) of an exponent byte: half of the scale that it stands for, as the table is doubled."""
    e = e.to(tl.int32)
    return tl.where(e < 2, 0x00200000 << e, (e - 1) << 23).to(tl.float32, bitcast=True)


@triton.jit
def q3_scales(low, high, unit):
    """The scales of a unit of Q3_K, with 32 added: bytes of the even pieces and of the odd ones, from the
    words that `weights` packs."""
    high = (high >> ((unit & 1) * 16)) & 0xFFFF
    high = high | (high << 20)
    even = (low & 0x0F0F0F0F) | (high & 0x30303030)
    return even, ((low >> 4) & 0x0F0F0F0F) | ((high >> 2) & 0x30303030)


@triton.jit
def iq4_scales(word, high, unit):
    """The two scales of a unit of 64 columns of IQ4_XS, with 32 added, in bytes."""
    low = word >> ((unit & 3) * 8)
    high = high >> ((unit & 3) * 4 + 16)
    return (low & 15) | ((low & 240) << 4) | ((high & 3) << 4) | ((high & 12) << 10)


@triton.jit
def place(n, at, length, WIDTH: tl.constexpr):
    """Where element `at` of row n lies in a plane of tiles of 8 × WIDTH whose rows have `length` elements."""
    tile = (n >> 3) * (tl.cdiv(length, WIDTH) * (8 * WIDTH)) + at // WIDTH * (8 * WIDTH)
    return tile + ((n & 7) * WIDTH + at % WIDTH)


@triton.jit
def dequantize_piece(
    planes, n, there, k, K,
    FORMAT: tl.constexpr, PIECE: tl.constexpr, GROUP: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Values of rows n (zeros where not `there`) and the columns of one piece of a tile that begins at k.

    A tile of a K format lies within one block of 256 columns.
    """
    n = n.to(tl.int64)
    inside = there & (n * 0 + k < K)
    if FORMAT == FLOAT:
        at = k + tl.arange(0, COLUMNS)
        y = tl.load(planes.codes + place(n, at, K, FLOAT_TILE_WIDTH), mask=there & (at < K), other=0.0)
    elif FORMAT == INT8:
        at = k + tl.arange(0, COLUMNS)
        q = tl.load(planes.codes + place(n, at, K, min(GROUP, 64)), mask=there & (at < K), other=0)
        q = q.to(tl.float32)
        b = k // GROUP + tl.arange(0, COLUMNS // GROUP)
        d = tl.load(planes.scales + place(n, b, K // GROUP, 1), mask=there & (b < K // GROUP), other=0.0)
        y = q * _spread(d.to(tl.float32), GROUP)
    elif BLOCK[FORMAT] == 32:
        i = tl.arange(0, COLUMNS // 2)
        at = k // 2 + i
        q = tl.load(planes.codes + place(n, at, K // 2, 16), mask=there & (at < K // 2), other=0)
        q = (q >> (4 * PIECE)) & 15
        b = k // 32 + tl.arange(0, COLUMNS // 32)
        if FIFTH_BIT[FORMAT]:
            # A word a block: loaded for each code, it would be most of what is loaded.
            word = tl.load(planes.high + place(n, b, K // 32, 1), mask=there & (b < K // 32), other=0)
            bit = (_spread(word, 16) >> (i % 4 * 8 + i % 16 // 4 * 2 + PIECE)) & 1
            q = q | (bit << 4).to(tl.uint8)
        d = tl.load(planes.scales + place(n, b, K // 32, 1), mask=there & (b < K // 32), other=0)
        d = power_of_two(d) if FORMAT == MXFP4 else d.to(tl.float32)
        if HAS_TABLE[FORMAT]:
            y = looked_up(q, FORMAT) * _spread(d, 16)
        elif HAS_MINIMUM[FORMAT]:
            m = tl.load(planes.minima + place(n, b, K // 32, 1), mask=there & (b < K // 32), other=0.0)
            y = q.to(tl.float32) * _spread(d, 16) + _spread(m.to(tl.float32), 16)
        else:
            y = (q.to(tl.float32) - MIDDLE[FORMAT]) * _spread(d, 16)
    elif SIXTEENS[FORMAT]:
        # Of 128 columns, four runs of 32; a piece is one half of a run.
        RUN: tl.constexpr = PIECE >> 1
        HALF: tl.constexpr = PIECE & 1
        i = tl.arange(0, COLUMNS // 8)
        # Two bits of each of the four runs are in one byte: all of a code, or its high or its low bits.
        two_at = k // 4 + (i // 16 * 32 + HALF * 16 + i % 16)
        fine = there & (two_at < K // 4)
        twos = planes.high if FORMAT == Q6_K else planes.codes
        q = (tl.load(twos + place(n, two_at, K // 4, 16), mask=fine, other=0) >> (2 * RUN)) & 3
        if FORMAT == Q6_K:
            low_at = k // 2 + (i // 16 * 64 + HALF * 32 + (RUN & 1) * 16 + i % 16)
            low = tl.load(planes.codes + place(n, low_at, K // 2, 16), mask=fine, other=0)
            q = (q << 4) | ((low >> (4 * (RUN >> 1))) & 15)
        unit = k // 64 + (tl.arange(0, COLUMNS // 128) * 2 + HALF)
        known = there & (unit < K // 64)
        if FORMAT == Q3_K:
            third_at = k // 256 * 32 + (HALF * 16 + i % 16)
            third = tl.load(planes.high + place(n, third_at, K // 8, 16), mask=fine, other=0)
            bit = (k % 256 // 128 + i // 16) * 4 + RUN
            q |= ((third >> bit.to(tl.uint8)) & 1) << 2
            words = planes.scales + place(n, unit // 4 * 3, K // 256 * 3, 1)
            low = tl.load(words + HALF * 8, mask=known, other=0)
            even, odd = q3_scales(low, tl.load(words + 16, mask=known, other=0), HALF)
            # Pieces of both halves of a block have their scales in one word.
            scales = (odd if RUN & 1 else even) >> (unit % 4 // 2 * 16 + RUN // 2 * 8)
        else:
            scales = tl.load(planes.scales + place(n, unit, K // 64, 1), mask=known, other=0)
        both = tl.load(planes.halves + place(n, k // 256, K // 256, 1), mask=inside, other=0)
        if HAS_MINIMUM[FORMAT]:
            byte = (scales >> (8 * RUN)) & 255
            d = half(both) * (byte & 15).to(tl.float32)
            m = half(both >> 16) * (byte >> 4).to(tl.float32)
            y = q.to(tl.float32) * _spread(d, 16) - _spread(m, 16)
        else:
            scale = _byte(scales, 0) - 32.0 if FORMAT == Q3_K else _byte(scales, RUN) - 128.0
            d = both.to(tl.float32) * scale
            y = (q.to(tl.float32) - MIDDLE[FORMAT]) * _spread(d, 16)
    else:
        i = tl.arange(0, COLUMNS // 2)
        at = k // 2 + i
        q = tl.load(planes.codes + place(n, at, K // 2, 32), mask=there & (at < K // 2), other=0)
        q = (q >> (4 * PIECE)) & 15
        if FIFTH_BIT[FORMAT]:
            chunk = k % 256 // 64 + i // 32
            h = k // 256 * 32 + i % 32
            bits = tl.load(planes.high + place(n, h, K // 8, 32), mask=there & (at < K // 2), other=0)
            q = q | (((bits >> (chunk * 2 + PIECE).to(tl.uint8)) & 1) << 4)
        b = k // 64 + tl.arange(0, COLUMNS // 64)
        both = tl.load(planes.halves + place(n, k // 256, K // 256, 1), mask=inside, other=0)
        if HAS_TABLE[FORMAT]:
            word = tl.load(planes.scales + place(n, b // 4, K // 256, 1), mask=there & (b < K // 64), other=0)
            d = half(both) * (_byte(iq4_scales(word, both, b), PIECE) - 32.0)
            y = looked_up(q, FORMAT) * _spread(d, 32)
        else:
            word = tl.load(planes.scales + place(n, b, K // 64, 1), mask=there & (b < K // 64), other=0)
            d = half(both) * _byte(word, 2 * PIECE)
            m = half(both >> 16) * _byte(word, 2 * PIECE + 1)
            y = q.to(tl.float32) * _spread(d, 32) - _spread(m, 32)
    return y
