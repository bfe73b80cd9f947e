"""Weights as a GEMV takes them: in units, codes first, and scales after the sum.

A unit is a run of columns whose pieces have one scale each (see formats.py). Its codes are multiplied as they
are, and the sum is scaled: values = a · code + c, or a · (code - middle) for formats whose codes have a sign.

Loads are laid out as the tensor cores want their operands: [4, 8, WARPS, G, RUN] puts four runs of columns of
eight rows on the lanes of a warp, a unit on each warp, and the rest into registers; `fragment` then only
renames columns, alike for both operands. So nothing passes through shared memory, and no warp waits for
another one.
"""

from __future__ import annotations

import struct

import triton
import triton.language as tl

from olivine.backends.cuda.formats import (
    BLOCK,
    FIFTH_BIT,
    FLOAT,
    FLOAT_TILE_WIDTH,
    HAS_MINIMUM,
    HAS_OFFSET,
    HAS_TABLE,
    INT8,
    LAYOUTS,
    MXFP4,
    Q2_K,
    Q3_K,
    Q6_K,
    SIXTEENS,
    Format,
)
from olivine.backends.cuda.kernels.dequantize import half, iq4_scales, place, power_of_two, q3_scales
from olivine.backends.cuda.kernels.dot import INTERPRETED
from olivine.backends.cuda.kernels.tables import pair_looked_up


@triton.jit
def fragment(q, EACH: tl.constexpr):
    """[4, 8, WARPS, G, RUN] to [WARPS, G · 8, 4 · RUN]: EACH columns, in turn from the four runs.

    Of codes, a lane has four neighbors of 32 columns as the compiler lays them out, and an instruction takes
    the first two with the first two of the next four. Eight columns are put so that those are neighbors in
    memory: what was loaded together is then an operand as it is.
    """
    WARPS: tl.constexpr = q.shape[2]
    G: tl.constexpr = q.shape[3]
    RUN: tl.constexpr = q.shape[4]
    if EACH == 4 and RUN % 8 == 0:
        q = tl.permute(tl.reshape(q, (4, 8, WARPS, G, RUN // 8, 2, 2, 2)), (2, 3, 1, 4, 6, 0, 5, 7))
    else:
        q = tl.permute(tl.reshape(q, (4, 8, WARPS, G, RUN // EACH, EACH)), (2, 3, 1, 4, 0, 5))
    return tl.reshape(q, (WARPS, G * 8, 4 * RUN))


@triton.jit
def run_columns(RUN: tl.constexpr):
    """The columns of a piece, counted from its first, in that layout."""
    run = tl.arange(0, 4)[:, None, None, None, None] * RUN
    return run + tl.arange(0, RUN)[None, None, None, None, :]


@triton.jit
def piece_start(u, step, FORMAT: tl.constexpr, PIECE: tl.constexpr, SPAN: tl.constexpr, WIDTH: tl.constexpr):
    """The first column of a piece of units u + step: a tensor, and a number to add to it."""
    if SIXTEENS[FORMAT]:
        u = u + step
        first = (u >> 1) * (2 * SPAN) + (u & 1) * 16
        more = PIECE * 32
    else:
        first = u * SPAN
        more = step * SPAN + PIECE * WIDTH
    return first, more


# Codes are converted four at a time, bytes to bfloat16: a byte below 128 becomes the low bits of 128.0, which
# makes it 128 + code. A product with a constant in place of the codes takes that off again: the constant is
# -(128 + middle) where codes have a sign, else 1, and `c` multiplies the sum.
_MIDDLES = [LAYOUTS[each].middle for each in Format]
_FILL = tl.constexpr(tuple(-(128 + middle) if middle else 1 for middle in _MIDDLES))
_NIBBLES = (" and.b32 u, $2, 0x0F0F0F0F;", " shr.u32 u, $2, 4; and.b32 u, u, 0x0F0F0F0F;")
_TWOS = " shr.u32 u, $2, {}; and.b32 u, u, 0x03030303;"
# A third bit, by piece, is bit `piece` of a byte beside.
_THIRD = tuple(
    f" {move} v, $3, {by}; lop3.b32 u, v, 0x04040404, u, 0xEA;"
    for move, by in (("shl.b32", 2), ("shl.b32", 1), *(("shr.u32", by) for by in range(6)))
)
# A fifth bit: rotating $3, a word or four bytes, brings it to bit 4 of each byte.
_FIFTH = " shf.r.wrap.b32 v, $3, $3, {}; lop3.b32 u, v, 0x10101010, u, 0xEA;"
# Two more bits of another byte, by piece of a Q6_K unit.
_TWO_MORE = tuple(
    f" {move} v, $3, {by}; lop3.b32 u, v, 0x30303030, u, 0xEA;"
    for move, by in (("shl.b32", 4), ("shl.b32", 2), ("shr.u32", 0), ("shr.u32", 2))
)


def _instructions(kind: Format, piece: int) -> str:
    """PTX that makes four bfloat16 codes of a piece from a word with their bytes."""
    if kind in (Format.Q2_K, Format.Q3_K):
        found = _TWOS.format(2 * (piece & 3)) + (_THIRD[piece] if kind is Format.Q3_K else "")
    elif kind is Format.Q6_K:
        found = _NIBBLES[piece >> 1] + _TWO_MORE[piece]
    else:
        found = _NIBBLES[piece]
    if LAYOUTS[kind].fifth_bit:
        found += _FIFTH.format("$4" if kind is Format.Q5_K else "$7")
    found += " prmt.b32 $0, u, 0x43434343, 0x4140; prmt.b32 $1, u, 0x43434343, 0x4342;"
    return "{ .reg .b32 u, v;" + found + " }"


# Of piece p of format f at 8 · f + p.
_PIECES = tl.constexpr(
    tuple(
        _instructions(kind, piece)
        if HAS_OFFSET.value[kind] and piece < LAYOUTS[kind].unit // LAYOUTS[kind].piece
        else ""
        for kind in Format
        for piece in range(8)
    )
)
# The constant four times, by format.
_FILLED = tl.constexpr(
    tuple(
        "mov.b32 $0, 0x{0}{0}; mov.b32 $1, 0x{0}{0};".format(struct.pack(">f", number).hex()[:4])
        for number in _FILL.value
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
# The same, multiplied: exact, since a float16 and a byte have no more than 24 bits.
_SCALED_BYTES = tl.constexpr(
    tuple(
        f"{{ .reg .b32 u; .reg .f32 f; prmt.b32 u, $1, 0x4B000000, 0x754{index}; mov.b32 f, u;"
        " fma.rn.f32 $0, f, $2, $3; }"
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
def _widen_word(q, word, rotate, ASM: tl.constexpr):
    """With a word for every code."""
    return tl.inline_asm_elementwise(
        ASM, "=r,=r,r,r,r,r,r,r,r,r,r", [q, word, rotate], dtype=tl.bfloat16, is_pure=True, pack=4
    )


@triton.jit
def _widen_byte(q, byte, rotate, ASM: tl.constexpr):
    """With a byte beside every code."""
    return tl.inline_asm_elementwise(
        ASM, "=r,=r,r,r,r,r,r,r", [q, byte, rotate], dtype=tl.bfloat16, is_pure=True, pack=4
    )


@triton.jit
def load_codes(
    planes, tile, u, step, K,
    FORMAT: tl.constexpr, SPAN: tl.constexpr, WIDTH: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """The bytes of a unit's codes, for `decode_codes`: nothing here waits for them.

    Of tiles of eight rows [1, 1, 1, G, 1], and of units u [1, 1, WARPS, 1, 1], or those `step` further on: a
    constant is best added last, where it is free as the offset of a load.
    """
    i = run_columns(WIDTH // 4)
    ROW: tl.constexpr = FLOAT_TILE_WIDTH if FORMAT == FLOAT else WIDTH
    inner = tl.arange(0, 8)[None, :, None, None, None] * ROW + i
    there = (u + step) * SPAN < K
    if FORMAT == FLOAT:
        tile_size = tl.cdiv(K, FLOAT_TILE_WIDTH) * (8 * FLOAT_TILE_WIDTH)
        values = planes.codes + tile * tile_size + (u * (8 * SPAN) + inner)
        found = ()
        for piece in tl.static_range(SPAN // WIDTH):
            first = piece * WIDTH
            value = values + (
                step * (8 * SPAN)
                + first // FLOAT_TILE_WIDTH * (8 * FLOAT_TILE_WIDTH)
                + first % FLOAT_TILE_WIDTH
            )
            column = (u + step) * SPAN + first + i
            found = found + (_load(value, column < K, EVEN),)
    elif FORMAT == INT8:
        q = planes.codes + tile * (K * 8) + (u * (8 * WIDTH) + inner) + step * (8 * WIDTH)
        found = (_load(q, there, EVEN),)
    elif FORMAT == Q6_K:
        # Two tiles with low bits, and one with high bits.
        low = planes.codes + tile * (K * 4) + (u * 256 + inner) + step * 256
        two = planes.high + tile * (K * 2) + (u * 128 + inner) + step * 128
        found = (_load(low, there, EVEN), _load(low + 128, there, EVEN), _load(two, there, EVEN))
    elif FORMAT == Q3_K:
        # Of a block, two units: four tiles with low bits, and two with third bits.
        block, odd = (u + step) >> 1, (u + step) & 1
        codes = planes.codes + tile * (K * 2) + (block * 512 + odd * 128 + inner)
        third = planes.high + tile * K + (u * 128 + inner) + step * 128
        found = (_load(codes, there, EVEN), _load(codes + 256, there, EVEN), _load(third, there, EVEN))
    elif SIXTEENS[FORMAT]:
        found = (_load(planes.codes + tile * (K * 2) + (u * 128 + inner) + step * 128, there, EVEN),)
    elif BLOCK[FORMAT] == 256:
        found = (_load(planes.codes + tile * (K * 4) + (u * 256 + inner) + step * 256, there, EVEN),)
        if FIFTH_BIT[FORMAT]:
            found = found + (_load(planes.high + tile * K + (((u + step) >> 2) * 256 + inner), there, EVEN),)
    else:
        found = (_load(planes.codes + tile * (K * 4) + (u * 128 + inner) + step * 128, there, EVEN),)
        if FIFTH_BIT[FORMAT]:
            n = tile * 8 + tl.arange(0, 8)[None, :, None, None, None]
            word = planes.high + place(n, u, K // 32, 1) + step * 8
            found = found + (_load(word, there, EVEN),)
    return found


@triton.jit
def _scale_at(row, at, length):
    """Where element `at` of a row lies in a plane whose rows have `length` elements."""
    return row[0] * (length * 8) + (at * 8 + row[1])


@triton.jit
def load_scales(
    planes, row, at, step, K,
    FORMAT: tl.constexpr, SPAN: tl.constexpr, GROUP: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """The bytes of the scales of units at + step, for `decode_scales`, in the shape of rows and units.

    Rows are given as tiles of eight, and the row in its tile.
    """
    fine = (at + step) * SPAN < K
    if FORMAT == FLOAT:
        found = ()
    elif FORMAT == INT8:
        if GROUP == SPAN:
            where = planes.scales + _scale_at(row, at, K // GROUP) + step * 8
        else:
            where = planes.scales + _scale_at(row, (at + step) // (GROUP // SPAN), K // GROUP)
        found = (_load(where, fine, EVEN),)
    elif FORMAT == Q3_K:  # three words a block
        words = planes.scales + _scale_at(row, ((at + step) >> 1) * 3, K // 256 * 3)
        low = _load(words + ((at + step) & 1) * 8, fine, EVEN)
        halves = _load(planes.halves + _scale_at(row, (at + step) >> 1, K // 256), fine, EVEN)
        found = (low, _load(words + 16, fine, EVEN), halves)
    elif BLOCK[FORMAT] == 256:
        if HAS_TABLE[FORMAT]:
            word = _load(planes.scales + _scale_at(row, (at + step) >> 2, K // 256), fine, EVEN)
        else:
            word = _load(planes.scales + _scale_at(row, at, K // 64) + step * 8, fine, EVEN)
        found = (word, _load(planes.halves + _scale_at(row, (at + step) >> 2, K // 256), fine, EVEN))
    else:
        found = (_load(planes.scales + _scale_at(row, at, K // 32) + step * 8, fine, EVEN),)
        if HAS_MINIMUM[FORMAT]:
            found = found + (_load(planes.minima + _scale_at(row, at, K // 32) + step * 8, fine, EVEN),)
    return found


@triton.jit
def decode_codes(raw, u, step, FORMAT: tl.constexpr, SPAN: tl.constexpr, WIDTH: tl.constexpr):
    """The codes of each piece in turn, then, unless they are as they should be, a constant in their place.

    Codes of formats with an offset are 128 too large, and the constant is 1, for c to multiply its sum, or
    -(128 + middle).
    """
    q = raw[0]
    if FORMAT == FLOAT:
        found = ()
        for piece in tl.static_range(SPAN // WIDTH):
            found = found + (fragment(raw[piece].to(tl.bfloat16), 2),)
    elif FORMAT == INT8:
        found = (fragment(q.to(tl.float32).to(tl.bfloat16) if INTERPRETED else _widen(q, _SIGNED), 4),)
    elif FORMAT == Q6_K:
        q2, two = raw[1], raw[2]
        found = (
            fragment(_six(q, two, 0), 4), fragment(_six(q2, two, 1), 4),
            fragment(_six(q, two, 2), 4), fragment(_six(q2, two, 3), 4), fragment(_filled(q, FORMAT), 4),
        )  # fmt: skip
    elif FORMAT == Q3_K:
        q2, third = raw[1], raw[2]
        found = (
            fragment(_three(q, third, 0), 4), fragment(_three(q, third, 1), 4),
            fragment(_three(q, third, 2), 4), fragment(_three(q, third, 3), 4),
            fragment(_three(q2, third, 4), 4), fragment(_three(q2, third, 5), 4),
            fragment(_three(q2, third, 6), 4), fragment(_three(q2, third, 7), 4),
            fragment(_filled(q, FORMAT), 4),
        )  # fmt: skip
    elif SIXTEENS[FORMAT]:
        found = (
            fragment(_two(q, 0), 4), fragment(_two(q, 1), 4),
            fragment(_two(q, 2), 4), fragment(_two(q, 3), 4), fragment(_filled(q, FORMAT), 4),
        )  # fmt: skip
    elif HAS_TABLE[FORMAT]:
        first, second = pair_looked_up(q, FORMAT)
        found = (fragment(first, 4), fragment(second, 4))
    else:
        if FIFTH_BIT[FORMAT]:
            if BLOCK[FORMAT] == 256:
                bit = ((u + step) & 3) * 2
            else:  # bit 8 b + 2 t + p is of byte b of lane t of four, and of piece p
                bit = tl.arange(0, 4)[:, None, None, None, None] * 2
            first, second = _five(q, raw[1], bit, FORMAT, 0), _five(q, raw[1], bit + 1, FORMAT, 1)
        else:
            first, second = _nibble(q, FORMAT, 0), _nibble(q, FORMAT, 1)
        found = (fragment(first, 4), fragment(second, 4), fragment(_filled(q, FORMAT), 4))
    return found


@triton.jit
def decode_scales(raw, at, step, FORMAT: tl.constexpr):
    """Each a, then each c of formats with a minimum: one where a block is no wider than a unit, and else one
    a piece. Floats have none."""
    if FORMAT == FLOAT:
        found = ()
    elif FORMAT == Q6_K:
        d = raw[1].to(tl.float32)
        found = (
            d * (_byte(raw[0], 0) - 128.0), d * (_byte(raw[0], 1) - 128.0),
            d * (_byte(raw[0], 2) - 128.0), d * (_byte(raw[0], 3) - 128.0),
        )  # fmt: skip
    elif FORMAT == Q3_K:
        even, odd = q3_scales(raw[0], raw[1], at + step)
        d = raw[2].to(tl.float32)
        found = (
            d * (_byte(even, 0) - 32.0), d * (_byte(odd, 0) - 32.0),
            d * (_byte(even, 1) - 32.0), d * (_byte(odd, 1) - 32.0),
            d * (_byte(even, 2) - 32.0), d * (_byte(odd, 2) - 32.0),
            d * (_byte(even, 3) - 32.0), d * (_byte(odd, 3) - 32.0),
        )  # fmt: skip
    elif SIXTEENS[FORMAT]:
        scales, minima = raw[0] & 0x0F0F0F0F, (raw[0] >> 4) & 0x0F0F0F0F
        d, low = half(raw[1]), -half(raw[1] >> 16)
        d_off, low_off = d * -8388608.0, low * -8388608.0
        a, a2 = _scaled_byte(scales, d, d_off, 0), _scaled_byte(scales, d, d_off, 1)
        a3, a4 = _scaled_byte(scales, d, d_off, 2), _scaled_byte(scales, d, d_off, 3)
        found = (
            a, a2, a3, a4,
            tl.fma(a, -128.0, _scaled_byte(minima, low, low_off, 0)),
            tl.fma(a2, -128.0, _scaled_byte(minima, low, low_off, 1)),
            tl.fma(a3, -128.0, _scaled_byte(minima, low, low_off, 2)),
            tl.fma(a4, -128.0, _scaled_byte(minima, low, low_off, 3)),
        )  # fmt: skip
    elif BLOCK[FORMAT] == 256 and HAS_TABLE[FORMAT]:
        word, d = iq4_scales(raw[0], raw[1], at + step), half(raw[1])
        found = (d * (_byte(word, 0) - 32.0), d * (_byte(word, 1) - 32.0))
    elif BLOCK[FORMAT] == 256:
        word = raw[0]
        d, low = half(raw[1]), -half(raw[1] >> 16)
        d_off, low_off = d * -8388608.0, low * -8388608.0
        a, a2 = _scaled_byte(word, d, d_off, 0), _scaled_byte(word, d, d_off, 2)
        c = tl.fma(a, -128.0, _scaled_byte(word, low, low_off, 1))
        found = (a, a2, c, tl.fma(a2, -128.0, _scaled_byte(word, low, low_off, 3)))
    else:
        a = power_of_two(raw[0]) if FORMAT == MXFP4 else raw[0].to(tl.float32)
        found = (a,)
        if HAS_MINIMUM[FORMAT]:
            found = (a, tl.fma(a, -128.0, raw[1].to(tl.float32)))
    return found


@triton.jit
def _load(place, there, EVEN: tl.constexpr):
    """Most weights are read once a step: what the caches have of them goes first."""
    if EVEN:
        found = tl.load(place, eviction_policy="evict_first")
    else:
        found = tl.load(place, mask=there, other=0, eviction_policy="evict_first")
    return found


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
def _scaled_byte(word, d, off, INDEX: tl.constexpr):
    """A byte of the word times d; `off` is -2^23 · d."""
    if INTERPRETED:
        y = ((word >> (8 * INDEX)) & 255).to(tl.float32) * d
    else:
        ASM: tl.constexpr = _SCALED_BYTES[INDEX]
        y = tl.inline_asm_elementwise(ASM, "=f,r,f,f", [word, d, off], dtype=tl.float32, is_pure=True, pack=1)
    return y


@triton.jit
def _filled(q, FORMAT: tl.constexpr):
    """The constant in place of codes: made of them, so that the compiler lays both out alike."""
    if INTERPRETED:
        NUMBER: tl.constexpr = _FILL[FORMAT]
        y = (q.to(tl.float32) * 0 + NUMBER).to(tl.bfloat16)
    else:
        ASM: tl.constexpr = _FILLED[FORMAT]
        y = _widen(q, ASM)
    return y


@triton.jit
def _plain(code):
    """What the PTX above makes of a code, in the interpreter."""
    return (code.to(tl.float32) + 128).to(tl.bfloat16)


@triton.jit
def _nibble(q, FORMAT: tl.constexpr, PIECE: tl.constexpr):
    if INTERPRETED:
        y = _plain((q >> (4 * PIECE)) & 15)
    else:
        ASM: tl.constexpr = _PIECES[8 * FORMAT + PIECE]
        y = _widen(q, ASM)
    return y


@triton.jit
def _five(q, bits, at, FORMAT: tl.constexpr, PIECE: tl.constexpr):
    """The fifth bit is bit `at` of the byte `bits`, or, of a word, that of the code's byte of it."""
    if INTERPRETED:
        if bits.dtype == tl.uint8:
            bit = (bits >> at.to(tl.uint8)) & 1
        else:
            byte = tl.arange(0, q.shape[4])[None, None, None, None, :] % 4
            bit = ((bits >> (at + byte * 8)) & 1).to(tl.uint8)
        y = _plain(((q >> (4 * PIECE)) & 15) | (bit << 4))
    else:
        ASM: tl.constexpr = _PIECES[8 * FORMAT + PIECE]
        rotate = tl.broadcast_to((at - 4) & 31, q.shape)
        if bits.dtype == tl.uint8:
            y = _widen_byte(q, bits, rotate, ASM)
        else:
            y = _widen_word(q, tl.broadcast_to(bits, q.shape), rotate, ASM)
    return y


@triton.jit
def _six(q, two, PIECE: tl.constexpr):
    if INTERPRETED:
        y = _plain(((q >> (4 * (PIECE >> 1))) & 15) | (((two >> (2 * PIECE)) & 3) << 4))
    else:
        ASM: tl.constexpr = _PIECES[8 * Q6_K + PIECE]
        y = _widen_two(q, two, ASM)
    return y


@triton.jit
def _two(q, PIECE: tl.constexpr):
    if INTERPRETED:
        y = _plain((q >> (2 * PIECE)) & 3)
    else:
        ASM: tl.constexpr = _PIECES[8 * Q2_K + PIECE]
        y = _widen(q, ASM)
    return y


@triton.jit
def _three(q, third, PIECE: tl.constexpr):
    if INTERPRETED:
        y = _plain(((q >> (2 * (PIECE & 3))) & 3) | (((third >> PIECE) & 1) << 2))
    else:
        ASM: tl.constexpr = _PIECES[8 * Q3_K + PIECE]
        y = _widen_two(q, third, ASM)
    return y
