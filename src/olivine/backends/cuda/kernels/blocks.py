"""What the stored bytes of a weight mean, a tile at a time.

A weight lies on the device in planes (see weights.py): the codes, and what scales them. A tile of BLOCK_K
columns comes in PARTS pieces: bytes that hold several codes give one piece a code position, and a piece
says which columns it has. So no code ever moves to another lane; the columns of the other operand are
fetched to match.
"""

from __future__ import annotations

import triton
import triton.language as tl

DENSE: tl.constexpr = tl.constexpr(0)
INT8: tl.constexpr = tl.constexpr(1)
Q4_0: tl.constexpr = tl.constexpr(2)
Q4_1: tl.constexpr = tl.constexpr(3)
Q4_K: tl.constexpr = tl.constexpr(4)
Q5_K: tl.constexpr = tl.constexpr(5)
Q6_K: tl.constexpr = tl.constexpr(6)
Q5_0: tl.constexpr = tl.constexpr(7)
Q5_1: tl.constexpr = tl.constexpr(8)

# Pieces that a tile comes in, by kind.
PARTS = {0: 1, 1: 1, 2: 2, 3: 2, 4: 2, 5: 2, 6: 4, 7: 2, 8: 2}


@triton.jit
def columns(k, KIND: tl.constexpr, PART: tl.constexpr, BLOCK_K: tl.constexpr):
    """The columns of a piece, from column k on."""
    if KIND <= 1:
        at = k + tl.arange(0, BLOCK_K)
    elif KIND <= 3 or KIND >= 7:
        i = tl.arange(0, BLOCK_K // 2)
        at = k + i // 16 * 32 + PART * 16 + i % 16
    elif KIND <= 5:
        i = tl.arange(0, BLOCK_K // 2)
        at = k + i // 32 * 64 + PART * 32 + i % 32
    else:
        i = tl.arange(0, BLOCK_K // 4)
        at = k + i // 32 * 128 + PART * 32 + i % 32
    return at


@triton.jit
def spread(scales, ROWS: tl.constexpr, COUNT: tl.constexpr, EACH: tl.constexpr):
    """[ROWS, COUNT] to [ROWS, COUNT · EACH], each repeated."""
    return tl.reshape(tl.broadcast_to(scales[:, :, None], (ROWS, COUNT, EACH)), (ROWS, COUNT * EACH))


@triton.jit
def piece(
    codes, high, scales, minima, halves, n, there, k, K,
    KIND: tl.constexpr, PART: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Rows n (those that are `there`) and the columns of one piece, [ROWS, BLOCK_K / PARTS]."""
    n = n.to(tl.int64)[:, None]
    there = there[:, None]
    if KIND == 0:
        at = (k + tl.arange(0, BLOCK_K))[None, :]
        y = tl.load(codes + n * K + at, mask=there & (at < K), other=0.0)
    elif KIND == 1:
        at = (k + tl.arange(0, BLOCK_K))[None, :]
        q = tl.load(codes + n * K + at, mask=there & (at < K), other=0).to(tl.float32)
        b = (k // GROUP + tl.arange(0, BLOCK_K // GROUP))[None, :]
        d = tl.load(scales + n * (K // GROUP) + b, mask=there & (b < K // GROUP), other=0.0).to(tl.float32)
        y = q * spread(d, ROWS, BLOCK_K // GROUP, GROUP)
    elif KIND <= 3 or KIND >= 7:
        at = (k // 2 + tl.arange(0, BLOCK_K // 2))[None, :]
        q = tl.load(codes + n * (K // 2) + at, mask=there & (at < K // 2), other=0)
        q = (q >> (4 * PART)) & 15
        if KIND >= 7:
            i = tl.arange(0, BLOCK_K // 2)
            h = (k // 8 + i // 16 * 4 + PART * 2 + i % 16 // 8)[None, :]
            bits = tl.load(high + n * (K // 8) + h, mask=there & (at < K // 2), other=0)
            q = q | (((bits >> (i % 8)[None, :].to(tl.uint8)) & 1) << 4)
        q = q.to(tl.float32)
        b = (k // 32 + tl.arange(0, BLOCK_K // 32))[None, :]
        d = tl.load(scales + n * (K // 32) + b, mask=there & (b < K // 32), other=0.0).to(tl.float32)
        if KIND == 2 or KIND == 7:
            y = (q - (8.0 if KIND == 2 else 16.0)) * spread(d, ROWS, BLOCK_K // 32, 16)
        else:
            m = tl.load(minima + n * (K // 32) + b, mask=there & (b < K // 32), other=0.0).to(tl.float32)
            y = q * spread(d, ROWS, BLOCK_K // 32, 16) + spread(m, ROWS, BLOCK_K // 32, 16)
    elif KIND <= 5:
        i = tl.arange(0, BLOCK_K // 2)
        at = (k // 2 + i)[None, :]
        q = tl.load(codes + n * (K // 2) + at, mask=there & (at < K // 2), other=0)
        q = (q >> (4 * PART)) & 15
        if KIND == 5:
            chunk = k // 64 + i // 32
            h = (chunk // 4 * 32 + i % 32)[None, :]
            bits = tl.load(high + n * (K // 8) + h, mask=there & (at < K // 2), other=0)
            q = q | (((bits >> ((chunk % 4) * 2 + PART)[None, :].to(tl.uint8)) & 1) << 4)
        # Sub-block 2c + PART of 32 columns; eight of them share the two halves.
        b = (k // 32 + tl.arange(0, BLOCK_K // 64) * 2 + PART)[None, :]
        fine = there & (b < K // 32)
        d = tl.load(halves + (n * (K // 256) + b // 8) * 2, mask=fine, other=0.0).to(tl.float32)
        m = tl.load(halves + (n * (K // 256) + b // 8) * 2 + 1, mask=fine, other=0.0).to(tl.float32)
        d *= tl.load(scales + n * (K // 32) + b, mask=fine, other=0).to(tl.float32)
        m *= tl.load(minima + n * (K // 32) + b, mask=fine, other=0).to(tl.float32)
        d = spread(d, ROWS, BLOCK_K // 64, 32)
        y = q.to(tl.float32) * d - spread(m, ROWS, BLOCK_K // 64, 32)
    else:
        i = tl.arange(0, BLOCK_K // 4)
        low_at = (k // 2 + i // 32 * 64 + (PART & 1) * 32 + i % 32)[None, :]
        high_at = (k // 4 + i)[None, :]
        fine = there & (high_at < K // 4)
        q = (tl.load(codes + n * (K // 2) + low_at, mask=fine, other=0) >> (4 * (PART >> 1))) & 15
        q |= ((tl.load(high + n * (K // 4) + high_at, mask=fine, other=0) >> (2 * PART)) & 3) << 4
        g = tl.arange(0, BLOCK_K // 64)
        b = (k // 16 + g // 2 * 8 + PART * 2 + g % 2)[None, :]
        fine = there & (b < K // 16)
        d = tl.load(halves + n * (K // 256) + b // 16, mask=fine, other=0.0).to(tl.float32)
        d *= tl.load(scales + n * (K // 16) + b, mask=fine, other=0).to(tl.float32)
        y = (q.to(tl.float32) - 32.0) * spread(d, ROWS, BLOCK_K // 64, 16)
    return y
