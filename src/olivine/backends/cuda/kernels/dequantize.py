"""What the stored bytes of a weight mean, a tile at a time.

A weight lies on the device in planes (see weights.py): the codes, and what scales them. A tile comes in
pieces: bytes that hold several codes give one piece a code position, and a piece says which columns it has.
So no code ever moves to another lane; the columns of the other operand are fetched to match.
"""

from __future__ import annotations

import triton
import triton.language as tl

from olivine.backends.cuda.weights import FLOAT_TILE_WIDTH

FLOATS: tl.constexpr = tl.constexpr(FLOAT_TILE_WIDTH)
# Pieces that a tile comes in, by kind: floats, int8, Q4_0, Q4_1, Q4_K, Q5_K, Q6_K, Q5_0, Q5_1.
PARTS = {0: 1, 1: 1, 2: 2, 3: 2, 4: 2, 5: 2, 6: 4, 7: 2, 8: 2}


@triton.jit
def columns(k, KIND: tl.constexpr, PART: tl.constexpr, COLUMNS: tl.constexpr):
    """The columns of a piece, from column k on."""
    if KIND <= 1:
        at = k + tl.arange(0, COLUMNS)
    elif KIND <= 3 or KIND >= 7:
        i = tl.arange(0, COLUMNS // 2)
        at = k + (i // 16 * 32 + PART * 16 + i % 16)
    elif KIND <= 5:
        i = tl.arange(0, COLUMNS // 2)
        at = k + (i // 32 * 64 + PART * 32 + i % 32)
    else:
        i = tl.arange(0, COLUMNS // 4)
        at = k + (i // 32 * 128 + PART * 32 + i % 32)
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
def place(n, at, length, WIDTH: tl.constexpr):
    """Where element `at` of row n lies, of rows with so many elements: in tiles of 8 × WIDTH."""
    tile = (n >> 3) * (tl.cdiv(length, WIDTH) * (8 * WIDTH)) + at // WIDTH * (8 * WIDTH)
    return tile + ((n & 7) * WIDTH + at % WIDTH)


@triton.jit
def dequantize_piece(
    codes, high, scales, minima, halves, n, there, k, K,
    KIND: tl.constexpr, PART: tl.constexpr, GROUP: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Rows n (those that are `there`) and the columns of one piece: COLUMNS / PARTS of them.

    A tile of a K kind lies within one block of 256 columns.
    """
    n = n.to(tl.int64)
    inside = there & (n * 0 + k < K)
    if KIND == 0:
        at = k + tl.arange(0, COLUMNS)
        y = tl.load(codes + place(n, at, K, FLOATS), mask=there & (at < K), other=0.0)
    elif KIND == 1:
        at = k + tl.arange(0, COLUMNS)
        q = tl.load(codes + place(n, at, K, min(GROUP, 64)), mask=there & (at < K), other=0).to(tl.float32)
        b = k // GROUP + tl.arange(0, COLUMNS // GROUP)
        d = tl.load(scales + place(n, b, K // GROUP, 1), mask=there & (b < K // GROUP), other=0.0).to(
            tl.float32
        )
        y = q * _spread(d, GROUP)
    elif KIND <= 3 or KIND >= 7:
        i = tl.arange(0, COLUMNS // 2)
        at = k // 2 + i
        q = tl.load(codes + place(n, at, K // 2, 16), mask=there & (at < K // 2), other=0)
        q = (q >> (4 * PART)) & 15
        if KIND >= 7:
            word = tl.load(
                high + place(n, k // 32 + i // 16, K // 32, 1), mask=there & (at < K // 2), other=0
            )
            q = q | (((word >> (i % 4 * 8 + i % 16 // 4 * 2 + PART)) & 1) << 4).to(tl.uint8)
        q = q.to(tl.float32)
        b = k // 32 + tl.arange(0, COLUMNS // 32)
        d = tl.load(scales + place(n, b, K // 32, 1), mask=there & (b < K // 32), other=0.0).to(tl.float32)
        if KIND == 2 or KIND == 7:
            y = (q - (8.0 if KIND == 2 else 16.0)) * _spread(d, 16)
        else:
            m = tl.load(minima + place(n, b, K // 32, 1), mask=there & (b < K // 32), other=0.0).to(
                tl.float32
            )
            y = q * _spread(d, 16) + _spread(m, 16)
    elif KIND <= 5:
        i = tl.arange(0, COLUMNS // 2)
        at = k // 2 + i
        q = tl.load(codes + place(n, at, K // 2, 32), mask=there & (at < K // 2), other=0)
        q = (q >> (4 * PART)) & 15
        if KIND == 5:
            chunk = k % 256 // 64 + i // 32
            h = k // 256 * 32 + i % 32
            bits = tl.load(high + place(n, h, K // 8, 32), mask=there & (at < K // 2), other=0)
            q = q | (((bits >> (chunk * 2 + PART).to(tl.uint8)) & 1) << 4)
        b = k // 64 + tl.arange(0, COLUMNS // 64)
        word = tl.load(scales + place(n, b, K // 64, 1), mask=there & (b < K // 64), other=0)
        both = tl.load(halves + place(n, k // 256, K // 256, 1), mask=inside, other=0)
        d = half(both) * _byte(word, 2 * PART)
        m = half(both >> 16) * _byte(word, 2 * PART + 1)
        y = q.to(tl.float32) * _spread(d, 32) - _spread(m, 32)
    else:
        i = tl.arange(0, COLUMNS // 4)
        low_at = k // 2 + (i // 16 * 32 + (PART & 1) * 16 + i % 16)
        high_at = k // 4 + i
        fine = there & (high_at < K // 4)
        q = (tl.load(codes + place(n, low_at, K // 2, 16), mask=fine, other=0) >> (4 * (PART >> 1))) & 15
        q |= ((tl.load(high + place(n, high_at, K // 4, 16), mask=fine, other=0) >> (2 * PART)) & 3) << 4
        b = k // 64 + tl.arange(0, COLUMNS // 64)
        word = tl.load(scales + place(n, b, K // 64, 1), mask=there & (b < K // 64), other=0)
        d = tl.load(halves + place(n, k // 256, K // 256, 1), mask=inside, other=0.0).to(tl.float32)
        d = d * (_byte(word, PART) - 128.0)
        y = (q.to(tl.float32) - 32.0) * _spread(d, 16)
    return y
