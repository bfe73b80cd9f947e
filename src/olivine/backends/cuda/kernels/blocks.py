"""What the stored bytes of a weight mean, a tile at a time.

A weight lies on the device in planes (see weights.py): the codes, and what scales them. A tile comes in
pieces: bytes that hold several codes give one piece a code position, and a piece says which columns it has.
So no code ever moves to another lane; the columns of the other operand are fetched to match.

`piece` gives values, [rows, columns]. `unit_codes` and `unit_scales` leave the codes as they are: a unit is
a run of columns whose pieces have one scale each, so that products of codes can be scaled after their sum.
"""

from __future__ import annotations

import triton
import triton.language as tl

from olivine.backends.cuda.kernels.products import INTERPRETED

# Pieces that a tile or a unit comes in, by kind: floats, int8, Q4_0, Q4_1, Q4_K, Q5_K, Q6_K, Q5_0, Q5_1.
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
def _half(bits):
    """The float16 in the low half of an int32."""
    return (bits & 0xFFFF).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def _k_scales(head, fine, b):
    """Scale and minimum of sub-blocks b (0 to 7) of a Q4_K or Q5_K block, from the 16 bytes of its head."""
    both = tl.load(head, mask=fine, other=0)
    first = tl.load(head + 1, mask=fine, other=0)
    second = tl.load(head + 2, mask=fine, other=0)
    third = tl.load(head + 3, mask=fine, other=0)
    shift = b % 4 * 8
    late_scale = ((third >> shift) & 15) | (((first >> (shift + 6)) & 3) << 4)
    late_low = ((third >> (shift + 4)) & 15) | (((second >> (shift + 6)) & 3) << 4)
    scale = tl.where(b < 4, (first >> shift) & 63, late_scale)
    low = tl.where(b < 4, (second >> shift) & 63, late_low)
    return _half(both) * scale.to(tl.float32), _half(both >> 16) * low.to(tl.float32)


@triton.jit
def piece(
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
        y = tl.load(codes + n * K + at, mask=there & (at < K), other=0.0)
    elif KIND == 1:
        at = k + tl.arange(0, COLUMNS)
        q = tl.load(codes + n * K + at, mask=there & (at < K), other=0).to(tl.float32)
        b = k // GROUP + tl.arange(0, COLUMNS // GROUP)
        d = tl.load(scales + n * (K // GROUP) + b, mask=there & (b < K // GROUP), other=0.0).to(tl.float32)
        y = q * _spread(d, GROUP)
    elif KIND <= 3 or KIND >= 7:
        i = tl.arange(0, COLUMNS // 2)
        at = k // 2 + i
        q = tl.load(codes + n * (K // 2) + at, mask=there & (at < K // 2), other=0)
        q = (q >> (4 * PART)) & 15
        if KIND >= 7:
            word = tl.load(high + n * (K // 32) + k // 32 + i // 16, mask=there & (at < K // 2), other=0)
            q = q | (((word >> (PART * 16 + i % 16)) & 1) << 4).to(tl.uint8)
        q = q.to(tl.float32)
        b = k // 32 + tl.arange(0, COLUMNS // 32)
        d = tl.load(scales + n * (K // 32) + b, mask=there & (b < K // 32), other=0.0).to(tl.float32)
        if KIND == 2 or KIND == 7:
            y = (q - (8.0 if KIND == 2 else 16.0)) * _spread(d, 16)
        else:
            m = tl.load(minima + n * (K // 32) + b, mask=there & (b < K // 32), other=0.0).to(tl.float32)
            y = q * _spread(d, 16) + _spread(m, 16)
    elif KIND <= 5:
        i = tl.arange(0, COLUMNS // 2)
        at = k // 2 + i
        q = tl.load(codes + n * (K // 2) + at, mask=there & (at < K // 2), other=0)
        q = (q >> (4 * PART)) & 15
        if KIND == 5:
            chunk = k % 256 // 64 + i // 32
            h = k // 256 * 32 + i % 32
            bits = tl.load(high + n * (K // 8) + h, mask=there & (at < K // 2), other=0)
            q = q | (((bits >> (chunk * 2 + PART).to(tl.uint8)) & 1) << 4)
        b = k % 256 // 32 + (tl.arange(0, COLUMNS // 64) * 2 + PART)
        head = scales + (n * (K // 256) + k // 256) * 4
        d, m = _k_scales(head, inside, b)
        y = q.to(tl.float32) * _spread(d, 32) - _spread(m, 32)
    else:
        i = tl.arange(0, COLUMNS // 4)
        low_at = k // 2 + (i // 32 * 64 + (PART & 1) * 32 + i % 32)
        high_at = k // 4 + i
        fine = there & (high_at < K // 4)
        q = (tl.load(codes + n * (K // 2) + low_at, mask=fine, other=0) >> (4 * (PART >> 1))) & 15
        q |= ((tl.load(high + n * (K // 4) + high_at, mask=fine, other=0) >> (2 * PART)) & 3) << 4
        g = tl.arange(0, COLUMNS // 64)
        b = k // 16 + (g // 2 * 8 + PART * 2 + g % 2)
        fine = there & (b < K // 16)
        d = tl.load(halves + (n * (K // 256) + k // 256), mask=inside, other=0.0).to(tl.float32)
        d = d * tl.load(scales + n * (K // 16) + b, mask=fine, other=0).to(tl.float32)
        y = (q.to(tl.float32) - 32.0) * _spread(d, 16)
    return y


# ---- units: of floats any columns, int8 a group, Q4_0 and its like 32, Q4_K and Q5_K 64, Q6_K 64 of 128


@triton.jit
def unit_columns(k, b, KIND: tl.constexpr, PART: tl.constexpr, WIDTH: tl.constexpr, SPAN: tl.constexpr):
    """The columns, WIDTH of them, of a piece of the units b from column k on; SPAN: from unit to unit."""
    i = tl.arange(0, WIDTH)
    if KIND == 6:
        at = k + b // 2 * 128 + (b % 2 * 16 + PART * 32) + i
    else:
        at = k + b * SPAN + PART * WIDTH + i
    return at


# Four bytes to four bfloat16: a byte below 128 becomes the low bits of 128.0, which makes it 128 + code.
_WIDEN = tl.constexpr(
    "{ .reg .b32 u; and.b32 u, $2, 0x7F7F7F7F;"
    " prmt.b32 $0, u, 0x43434343, 0x4140; prmt.b32 $1, u, 0x43434343, 0x4342; }"
)
_WIDEN_LOW = tl.constexpr(
    "{ .reg .b32 u; and.b32 u, $2, 0x0F0F0F0F;"
    " prmt.b32 $0, u, 0x43434343, 0x4140; prmt.b32 $1, u, 0x43434343, 0x4342; }"
)
_WIDEN_HIGH = tl.constexpr(
    "{ .reg .b32 u; shr.u32 u, $2, 4; and.b32 u, u, 0x0F0F0F0F;"
    " prmt.b32 $0, u, 0x43434343, 0x4140; prmt.b32 $1, u, 0x43434343, 0x4342; }"
)
# The same for Q6_K, by part: four low bits of one byte and two bits of another.
_WIDEN_SIX = tuple(
    tl.constexpr(
        f"{{ .reg .b32 u, v; shr.u32 u, $2, {4 * (part >> 1)}; and.b32 u, u, 0x0F0F0F0F;"
        f" {'shl.b32' if part < 2 else 'shr.u32'} v, $3, {abs(4 - 2 * part)}; and.b32 v, v, 0x30303030;"
        " or.b32 u, u, v; prmt.b32 $0, u, 0x43434343, 0x4140; prmt.b32 $1, u, 0x43434343, 0x4342; }"
    )
    for part in range(4)
)
_SIX_0, _SIX_1, _SIX_2, _SIX_3 = _WIDEN_SIX
# Signed bytes by way of 2^23 + 128 + code in float32.
_WIDEN_SIGNED = tl.constexpr(
    "{ .reg .b32 u, a, b, c, d; .reg .f32 e, f, g, h; xor.b32 u, $2, 0x80808080;"
    " prmt.b32 a, u, 0x4B000000, 0x7540; prmt.b32 b, u, 0x4B000000, 0x7541;"
    " prmt.b32 c, u, 0x4B000000, 0x7542; prmt.b32 d, u, 0x4B000000, 0x7543;"
    " mov.b32 e, a; mov.b32 f, b; mov.b32 g, c; mov.b32 h, d;"
    " add.f32 e, e, 0fCB000080; add.f32 f, f, 0fCB000080;"
    " add.f32 g, g, 0fCB000080; add.f32 h, h, 0fCB000080;"
    " cvt.rn.bf16x2.f32 $0, f, e; cvt.rn.bf16x2.f32 $1, h, g; }"
)


@triton.jit
def _widen(q, ASM: tl.constexpr):
    return tl.inline_asm_elementwise(ASM, "=r,=r,r", [q], dtype=tl.bfloat16, is_pure=True, pack=4)


@triton.jit
def _widen_two(q, more, ASM: tl.constexpr):
    return tl.inline_asm_elementwise(ASM, "=r,=r,r,r", [q, more], dtype=tl.bfloat16, is_pure=True, pack=4)


@triton.jit
def unit_codes(
    codes, high, n, there, k, b, K,
    KIND: tl.constexpr, PART: tl.constexpr, WIDTH: tl.constexpr, SPAN: tl.constexpr,
):  # fmt: skip
    """Codes of rows n [1, ROWS, 1] of a piece of units b [UNITS, 1, 1]; 128 too large, but for int8."""
    i = tl.arange(0, WIDTH)
    if KIND <= 1:
        at = k + b * SPAN + i
        q = tl.load(codes + n * K + at, mask=there & (at < K), other=0)
        if KIND == 1:
            q = q.to(tl.float32).to(tl.bfloat16) if INTERPRETED else _widen(q, _WIDEN_SIGNED)
    elif KIND == 6:
        low_at = k // 2 + b // 2 * 64 + (b % 2 * 16 + (PART & 1) * 32) + i
        high_at = k // 4 + b // 2 * 32 + b % 2 * 16 + i
        fine = there & (high_at < K // 4)
        q = tl.load(codes + n * (K // 2) + low_at, mask=fine, other=0)
        two = tl.load(high + n * (K // 4) + high_at, mask=fine, other=0)
        if INTERPRETED:
            q = ((q >> (4 * (PART >> 1))) & 15) | (((two >> (2 * PART)) & 3) << 4)
            q = (q.to(tl.float32) + 128).to(tl.bfloat16)
        elif PART == 0:
            q = _widen_two(q, two, _SIX_0)
        elif PART == 1:
            q = _widen_two(q, two, _SIX_1)
        elif PART == 2:
            q = _widen_two(q, two, _SIX_2)
        else:
            q = _widen_two(q, two, _SIX_3)
    else:
        at = (k + b * SPAN) // 2 + i
        q = tl.load(codes + n * (K // 2) + at, mask=there & (at < K // 2), other=0)
        if KIND <= 4:
            if INTERPRETED:
                q = (((q >> (4 * PART)) & 15).to(tl.float32) + 128).to(tl.bfloat16)
            elif PART == 0:
                q = _widen(q, _WIDEN_LOW)
            else:
                q = _widen(q, _WIDEN_HIGH)
        else:
            column = k + b * SPAN
            fine = there & (column < K)
            if KIND == 5:
                shift = (column % 256 // 64 * 2 + PART).to(tl.uint8)
                bits = tl.load(high + n * (K // 8) + column // 256 * 32 + i, mask=fine, other=0)
                bits = ((bits >> shift) & 1) << 4
            else:
                word = tl.load(high + n * (K // 32) + column // 32, mask=fine, other=0)
                bits = (((word >> (PART * 16 + i)) & 1) << 4).to(tl.uint8)
            q = ((q >> (4 * PART)) & 15) | bits
            q = (q.to(tl.float32) + 128).to(tl.bfloat16) if INTERPRETED else _widen(q, _WIDEN)
    return q


@triton.jit
def unit_scales(
    scales, minima, halves, n, there, k, b, K,
    KIND: tl.constexpr, PART: tl.constexpr, SPAN: tl.constexpr,
):  # fmt: skip
    """a and c of values = a · code + c, of rows n [1, ROWS] of a piece of units b [UNITS, 1]."""
    column = k + b * SPAN
    fine = there & (column < K)
    if KIND == 1:
        a = tl.load(scales + n * (K // SPAN) + column // SPAN, mask=fine, other=0.0).to(tl.float32)
        c = a
    elif KIND == 6:
        block = n * (K // 256) + column // 256
        at = column // 256 * 16 + (k % 256 + b // 2 * 128) % 256 // 16 + PART * 2 + b % 2
        a = tl.load(halves + block, mask=fine, other=0.0).to(tl.float32)
        a = a * tl.load(scales + n * (K // 16) + at, mask=fine, other=0).to(tl.float32)
        c = a * -160.0
    elif KIND == 4 or KIND == 5:
        head = scales + (n * (K // 256) + column // 256) * 4
        a, low = _k_scales(head, fine, column % 256 // 32 + PART)
        c = a * -128.0 - low
    else:
        a = tl.load(scales + n * (K // 32) + column // 32, mask=fine, other=0.0).to(tl.float32)
        if KIND == 2:
            c = a * -136.0
        elif KIND == 7:
            c = a * -144.0
        else:
            c = (
                tl.load(minima + n * (K // 32) + column // 32, mask=fine, other=0.0).to(tl.float32)
                + a * -128.0
            )
    return a, c
