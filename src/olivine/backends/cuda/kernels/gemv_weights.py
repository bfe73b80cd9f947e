"""Weights as a product of generated rows takes them: in units, codes first and scales after the sum.

A unit is a run of columns whose pieces have one scale each (bytes that hold several codes give one piece a
code position). Its codes are multiplied as they are, and the sum is scaled: values = a · code + c, or
a · (code - middle) for kinds whose codes have a sign.

Loads are laid out as the tensor cores want their operands: [4, 8, WARPS, G, RUN] puts four runs of columns of
eight rows on the lanes of a warp, a unit on each warp, and the rest into registers; `fragment` then only
renames columns, alike for both operands. So nothing passes through shared memory, and no warp waits for
another one.
"""

from __future__ import annotations

import struct

import triton
import triton.language as tl

from olivine.backends.cuda.kernels.dequantize import FLOATS, PARTS, half, place
from olivine.backends.cuda.kernels.dot import INTERPRETED


@triton.jit
def fragment(q, EACH: tl.constexpr):
    """[4, 8, WARPS, G, RUN] to [WARPS, G · 8, 4 · RUN]: pairs of columns, in turn from the four runs."""
    WARPS: tl.constexpr = q.shape[2]
    G: tl.constexpr = q.shape[3]
    RUN: tl.constexpr = q.shape[4]
    q = tl.permute(tl.reshape(q, (4, 8, WARPS, G, RUN // EACH, EACH)), (2, 3, 1, 4, 0, 5))
    return tl.reshape(q, (WARPS, G * 8, 4 * RUN))


@triton.jit
def run_columns(RUN: tl.constexpr):
    """The columns of a piece, from its first on, in that layout."""
    run = tl.arange(0, 4)[:, None, None, None, None] * RUN
    return run + tl.arange(0, RUN)[None, None, None, None, :]


@triton.jit
def piece_columns(u, step, KIND: tl.constexpr, PART: tl.constexpr, SPAN: tl.constexpr, WIDTH: tl.constexpr):
    """Where the columns of a piece of units u + step begin: a tensor, and a number to add to it."""
    if KIND == 6:
        u = u + step
        first = (u >> 1) * 128 + (u & 1) * 16
        more = PART * 32
    else:
        first = u * SPAN
        more = step * SPAN + PART * WIDTH
    return first, more


# Four bytes to four bfloat16: a byte below 128 becomes the low bits of 128.0, which makes it 128 + code.
# Where codes have a sign, another product takes off that and their middle.
_MIDDLE = tl.constexpr((0, 0, -136, 0, 0, 0, -160, -144, 0))
_NIBBLES = (" and.b32 u, $2, 0x0F0F0F0F;", " shr.u32 u, $2, 4; and.b32 u, u, 0x0F0F0F0F;")
# A fifth bit: turning $3, a word or four bytes, brings it to bit 4 of each byte.
_FIFTH = " shf.r.wrap.b32 v, $3, $3, {}; lop3.b32 u, v, 0x10101010, u, 0xEA;"
# Two more bits of another byte, by part of a Q6_K unit.
_TWO_MORE = tuple(
    f" {move} v, $3, {by}; lop3.b32 u, v, 0x30303030, u, 0xEA;"
    for move, by in (("shl.b32", 4), ("shl.b32", 2), ("shr.u32", 0), ("shr.u32", 2))
)


def _instructions(kind: int, part: int) -> str:
    """Those that make a piece's four codes, in bfloat16, of a word with their bytes."""
    found = _NIBBLES[part >> 1 if kind == 6 else part]
    if kind == 6:
        found += _TWO_MORE[part]
    elif kind in (5, 7, 8):
        found += _FIFTH.format("$4" if kind == 5 else "$7")
    found += " prmt.b32 $0, u, 0x43434343, 0x4140; prmt.b32 $1, u, 0x43434343, 0x4342;"
    return "{ .reg .b32 u, v;" + found + " }"


# Of part p of kind k at 4 · k + p.
_PIECES = tl.constexpr(
    tuple(
        _instructions(kind, part) if kind > 1 and part < PARTS[kind] else ""
        for kind in PARTS
        for part in range(4)
    )
)
# The same four times, by kind.
_FILLED = tl.constexpr(
    tuple(
        "mov.b32 $0, 0x{0}{0}; mov.b32 $1, 0x{0}{0};".format(struct.pack(">f", middle or 1).hex()[:4])
        for middle in _MIDDLE.value
    )
)
# A byte of a word to float32, by way of 2^23 + byte.
_BYTES = tl.constexpr(
    tuple(
        f"{{ .reg .b32 u; .reg .f32 f; prmt.b32 u, $1, 0x4B000000, 0x754{index}; mov.b32 f, u;"
        " add.f32 $0, f, 0fCB000000; }"
        for index in range(4)
    )
)
# Signed bytes: 128 + the low seven bits, less 128, or 256 for a negative one.
_SIGNED = tl.constexpr(
    "{ .reg .b32 u, v, a, b, c, d; and.b32 u, $2, 0x7F7F7F7F; and.b32 v, $2, 0x80808080;"
    " prmt.b32 a, u, 0x43434343, 0x4140; prmt.b32 b, u, 0x43434343, 0x4342;"
    " prmt.b32 c, v, 0x43434343, 0x4140; prmt.b32 d, v, 0x43434343, 0x4342;"
    " mov.b32 u, 0xBF80BF80; fma.rn.bf16x2 $0, c, u, a; fma.rn.bf16x2 $1, d, u, b; }"
)


@triton.jit
def _widen(q, ASM: tl.constexpr):
    return tl.inline_asm_elementwise(ASM, "=r,=r,r", [q], dtype=tl.bfloat16, is_pure=True, pack=4)


@triton.jit
def _widen_two(q, more, ASM: tl.constexpr):
    return tl.inline_asm_elementwise(ASM, "=r,=r,r,r", [q, more], dtype=tl.bfloat16, is_pure=True, pack=4)


@triton.jit
def _widen_word(q, word, turn, ASM: tl.constexpr):
    """A word for every code."""
    return tl.inline_asm_elementwise(
        ASM, "=r,=r,r,r,r,r,r,r,r,r,r", [q, word, turn], dtype=tl.bfloat16, is_pure=True, pack=4
    )


@triton.jit
def _widen_byte(q, byte, turn, ASM: tl.constexpr):
    """A byte beside every code."""
    return tl.inline_asm_elementwise(
        ASM, "=r,=r,r,r,r,r,r,r", [q, byte, turn], dtype=tl.bfloat16, is_pure=True, pack=4
    )


@triton.jit
def fetched(
    codes, high, scales, minima, halves, tile, u, row, at, step, K,
    KIND: tl.constexpr, SPAN: tl.constexpr, WIDTH: tl.constexpr, GROUP: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """The bytes of a unit, for `decoded`: nothing here waits for them.

    Twice the same place: tiles of eight rows [1, 1, 1, G, 1] and units u [1, 1, WARPS, 1, 1] for the codes,
    and rows [1, G · 8] and units `at` [WARPS, 1] for the scales. The units are those `step` further on: a
    constant is best added last, where a load takes it for nothing.
    """
    i = run_columns(WIDTH // 4)
    ROW: tl.constexpr = FLOATS if KIND == 0 else WIDTH
    inner = tl.arange(0, 8)[None, :, None, None, None] * ROW + i
    there = (u + step) * SPAN < K
    fine = (at + step) * SPAN < K
    if KIND == 0:
        values = codes + tile * (tl.cdiv(K, FLOATS) * (8 * FLOATS)) + (u * (8 * SPAN) + inner)
        found = ()
        for part in tl.static_range(SPAN // WIDTH):
            first = part * WIDTH
            value = values + (step * (8 * SPAN) + first // FLOATS * (8 * FLOATS) + first % FLOATS)
            column = (u + step) * SPAN + first + i
            found = found + (tl.load(value) if EVEN else tl.load(value, mask=column < K, other=0.0),)
    elif KIND == 1:
        q = _fetch(codes + tile * (K * 8) + (u * (8 * WIDTH) + inner) + step * (8 * WIDTH), there, EVEN)
        if GROUP == SPAN:
            where = scales + place(row, at, K // GROUP, 1) + step * 8
        else:
            where = scales + place(row, (at + step) // (GROUP // SPAN), K // GROUP, 1)
        found = (q, _fetch(where, fine, EVEN))
    elif KIND == 4 or KIND == 5:
        q = _fetch(codes + tile * (K * 4) + (u * 256 + inner) + step * 256, there, EVEN)
        word = _fetch(scales + place(row, at, K // 64, 1) + step * 8, fine, EVEN)
        both = _fetch(halves + place(row, (at + step) >> 2, K // 256, 1), fine, EVEN)
        found = (q, word, both)
        if KIND == 5:
            found = found + (_fetch(high + tile * K + (((u + step) >> 2) * 256 + inner), there, EVEN),)
    elif KIND == 6:
        # Two tiles with low bits, and one with high bits.
        low = codes + tile * (K * 4) + (u * 256 + inner) + step * 256
        q, q2 = _fetch(low, there, EVEN), _fetch(low + 128, there, EVEN)
        two = _fetch(high + tile * (K * 2) + (u * 128 + inner) + step * 128, there, EVEN)
        word = _fetch(scales + place(row, at, K // 64, 1) + step * 8, fine, EVEN)
        found = (q, q2, two, word, _fetch(halves + place(row, (at + step) >> 2, K // 256, 1), fine, EVEN))
    else:
        q = _fetch(codes + tile * (K * 4) + (u * 128 + inner) + step * 128, there, EVEN)
        found = (q, _fetch(scales + place(row, at, K // 32, 1) + step * 8, fine, EVEN))
        if KIND == 3 or KIND == 8:
            found = found + (_fetch(minima + place(row, at, K // 32, 1) + step * 8, fine, EVEN),)
        if KIND >= 7:
            n = tile * 8 + tl.arange(0, 8)[None, :, None, None, None]
            word = high + place(n, u, K // 32, 1) + step * 8
            found = found + (_fetch(word, there, EVEN),)
    return found


@triton.jit
def decoded(raw, u, step, KIND: tl.constexpr, SPAN: tl.constexpr, WIDTH: tl.constexpr):
    """The codes of each piece in turn, one number in place of codes, then each a and each c.

    Floats have only the values, int8 the codes and a. Other codes are 128 too large, and the number is one,
    for c to multiply the sum of, or the negative of 128 and the codes' middle. There is one a, and one c,
    where a block is no wider than a unit, and else one a piece.
    """
    if KIND == 0:
        found = ()
        for part in tl.static_range(SPAN // WIDTH):
            found = found + (fragment(raw[part].to(tl.bfloat16), 2),)
    elif KIND == 1:
        q = raw[0].to(tl.float32).to(tl.bfloat16) if INTERPRETED else _widen(raw[0], _SIGNED)
        found = (fragment(q, 4), raw[1].to(tl.float32))
    elif KIND == 4 or KIND == 5:
        q, word, both = raw[0], raw[1], raw[2]
        d, low = half(both), half(both >> 16)
        a, a2 = d * _byte(word, 0), d * _byte(word, 2)
        c = tl.fma(a, -128.0, -(low * _byte(word, 1)))
        c2 = tl.fma(a2, -128.0, -(low * _byte(word, 3)))
        if KIND == 5:
            turn = ((u + step) & 3) * 2
            first, second = _five(q, raw[3], turn, KIND, 0), _five(q, raw[3], turn + 1, KIND, 1)
        else:
            first, second = _nibble(q, KIND, 0), _nibble(q, KIND, 1)
        found = (fragment(first, 4), fragment(second, 4), fragment(_filled(q, KIND), 4), a, a2, c, c2)
    elif KIND == 6:
        q, q2, two, word = raw[0], raw[1], raw[2], raw[3]
        d = raw[4].to(tl.float32)
        found = (
            fragment(_six(q, two, 0), 4), fragment(_six(q2, two, 1), 4),
            fragment(_six(q, two, 2), 4), fragment(_six(q2, two, 3), 4), fragment(_filled(q, KIND), 4),
            d * (_byte(word, 0) - 128.0), d * (_byte(word, 1) - 128.0),
            d * (_byte(word, 2) - 128.0), d * (_byte(word, 3) - 128.0),
        )  # fmt: skip
    else:
        q = raw[0]
        a = raw[1].to(tl.float32)
        if KIND >= 7:
            # Bit 8 b + 2 t + p is of byte b of lane t of four, and of part p.
            word = raw[2] if KIND == 7 else raw[3]
            turn = tl.arange(0, 4)[:, None, None, None, None] * 2
            first, second = _five(q, word, turn, KIND, 0), _five(q, word, turn + 1, KIND, 1)
        else:
            first, second = _nibble(q, KIND, 0), _nibble(q, KIND, 1)
        found = (fragment(first, 4), fragment(second, 4), fragment(_filled(q, KIND), 4), a)
        if KIND == 3 or KIND == 8:
            found = found + (tl.fma(a, -128.0, raw[2].to(tl.float32)),)
    return found


@triton.jit
def _fetch(place, there, EVEN: tl.constexpr):
    return tl.load(place) if EVEN else tl.load(place, mask=there, other=0)


@triton.jit
def _byte(word, INDEX: tl.constexpr):
    """A byte of the word, as float: it becomes the low bits of 2^23."""
    if INTERPRETED:
        y = ((word >> (8 * INDEX)) & 255).to(tl.float32)
    else:
        ASM: tl.constexpr = _BYTES[INDEX]
        y = tl.inline_asm_elementwise(ASM, "=f,r", [word], dtype=tl.float32, is_pure=True, pack=1)
    return y


@triton.jit
def _filled(q, KIND: tl.constexpr):
    """One number in the place of codes: made of them, so that the compiler lays both out alike."""
    if INTERPRETED:
        NUMBER: tl.constexpr = _MIDDLE[KIND] or 1
        y = (q.to(tl.float32) * 0 + NUMBER).to(tl.bfloat16)
    else:
        ASM: tl.constexpr = _FILLED[KIND]
        y = _widen(q, ASM)
    return y


@triton.jit
def _plain(code):
    """What the instructions above make of a code, where there are none."""
    return (code.to(tl.float32) + 128).to(tl.bfloat16)


@triton.jit
def _nibble(q, KIND: tl.constexpr, PART: tl.constexpr):
    if INTERPRETED:
        y = _plain((q >> (4 * PART)) & 15)
    else:
        ASM: tl.constexpr = _PIECES[4 * KIND + PART]
        y = _widen(q, ASM)
    return y


@triton.jit
def _five(q, bits, at, KIND: tl.constexpr, PART: tl.constexpr):
    """The fifth bit is bit `at` of the byte `bits`, or, of a word, that of the code's byte of it."""
    if INTERPRETED:
        if bits.dtype == tl.uint8:
            bit = (bits >> at.to(tl.uint8)) & 1
        else:
            byte = tl.arange(0, q.shape[4])[None, None, None, None, :] % 4
            bit = ((bits >> (at + byte * 8)) & 1).to(tl.uint8)
        y = _plain(((q >> (4 * PART)) & 15) | (bit << 4))
    else:
        ASM: tl.constexpr = _PIECES[4 * KIND + PART]
        turn = tl.broadcast_to((at - 4) & 31, q.shape)
        if bits.dtype == tl.uint8:
            y = _widen_byte(q, bits, turn, ASM)
        else:
            y = _widen_word(q, tl.broadcast_to(bits, q.shape), turn, ASM)
    return y


@triton.jit
def _six(q, two, PART: tl.constexpr):
    if INTERPRETED:
        y = _plain(((q >> (4 * (PART >> 1))) & 15) | (((two >> (2 * PART)) & 3) << 4))
    else:
        ASM: tl.constexpr = _PIECES[24 + PART]
        y = _widen_two(q, two, ASM)
    return y
