"""The formats that weights have on the device, and in one table what kernels and tiles must know of each.

A weight lies in planes: its codes, and what scales them (see weights.py). Bytes that hold several codes are
decoded into one piece a code position: piece p has the columns of the p-th code of each byte. GEMV reads
units, runs of columns whose pieces have one scale each.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import triton.language as tl


class Format(IntEnum):
    FLOAT = 0  # F32, F16 and BF16
    INT8 = 1  # Q8_0, and int8 with a float32 scale a group of 32, 64 or 128
    Q4_0 = 2
    Q4_1 = 3
    Q4_K = 4
    Q5_K = 5
    Q6_K = 6
    Q5_0 = 7
    Q5_1 = 8
    Q2_K = 9
    Q3_K = 10
    IQ4_NL = 11
    IQ4_XS = 12
    MXFP4 = 13


# What the codes of a table format stand for.
_IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
_FP4 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)  # times two, as its scale is halved


@dataclass(frozen=True)
class Layout:
    """Facts of a format. Of INT8, unit, piece and tile have min(group, 64) columns, given as 0 here."""

    unit: int  # columns of a GEMV unit
    piece: int  # columns of a piece of a unit
    tile_width: int  # codes (bytes, or floats) in a row of a repacked tile of eight rows
    pieces: int = 1  # that a GEMM tile or an embedding row is decoded in
    block: int = 0  # columns of a block in the file; 256: blocks of blocks, whose scales are scaled again
    middle: int = 0  # value = scale · (code - middle)
    has_minimum: bool = False  # value = scale · code + minimum (or less it, in blocks of 256)
    fifth_bit: bool = False  # of each code, in the plane `high`
    # A scale for 16 columns: a unit has every other 16 of twice as many columns.
    sixteens: bool = False
    table: tuple[int, ...] = ()  # value = scale · table[code]
    # Tuned on an H200. Where a split has no more columns than these, GEMV prefetches all, so that nothing is
    # left to wait for; or, with more programs than fit at once, few, so that more of them fit (tiles.py).
    prefetch_all: int = 0
    gemm_columns: int = (
        64  # of a GEMM tile: a piece of it has one scale a row, and pieces are in column order
    )
    expert_rows: int = 128  # prefill rows of an expert from which its weight is expanded


LAYOUTS: dict[Format, Layout] = {
    Format.FLOAT: Layout(32, 16, 32, prefetch_all=1280),
    Format.INT8: Layout(0, 0, 0, prefetch_all=1280),
    Format.Q4_0: Layout(32, 16, 16, 2, 32, middle=8, prefetch_all=1280, gemm_columns=32),
    Format.Q4_1: Layout(32, 16, 16, 2, 32, has_minimum=True, prefetch_all=1152, gemm_columns=32),
    Format.Q4_K: Layout(64, 32, 32, 2, 256, has_minimum=True, expert_rows=1 << 20),
    Format.Q5_K: Layout(64, 32, 32, 2, 256, has_minimum=True, fifth_bit=True),
    Format.Q6_K: Layout(64, 16, 16, 8, 256, middle=32, sixteens=True, gemm_columns=128),
    Format.Q5_0: Layout(32, 16, 16, 2, 32, middle=16, fifth_bit=True, prefetch_all=1152, gemm_columns=32),
    Format.Q5_1: Layout(32, 16, 16, 2, 32, has_minimum=True, fifth_bit=True, gemm_columns=32),
    Format.Q2_K: Layout(64, 16, 16, 8, 256, has_minimum=True, sixteens=True, gemm_columns=128),
    Format.Q3_K: Layout(128, 16, 16, 8, 256, middle=4, sixteens=True, gemm_columns=128),
    Format.IQ4_NL: Layout(32, 16, 16, 2, 32, table=_IQ4, prefetch_all=1152, gemm_columns=32),
    Format.IQ4_XS: Layout(64, 32, 32, 2, 256, table=_IQ4),
    Format.MXFP4: Layout(32, 16, 16, 2, 32, table=_FP4, prefetch_all=1152, gemm_columns=32),
}

# The same for kernels: constants, and tuples to be indexed by a format.
_EACH = [LAYOUTS[each] for each in Format]
FLOAT = tl.constexpr(int(Format.FLOAT))
INT8 = tl.constexpr(int(Format.INT8))
Q6_K = tl.constexpr(int(Format.Q6_K))
Q2_K = tl.constexpr(int(Format.Q2_K))
Q3_K = tl.constexpr(int(Format.Q3_K))
MXFP4 = tl.constexpr(int(Format.MXFP4))
FLOAT_TILE_WIDTH = tl.constexpr(LAYOUTS[Format.FLOAT].tile_width)
PACKED = tl.constexpr(tuple(layout.pieces > 1 for layout in _EACH))  # several codes a byte
BLOCK = tl.constexpr(tuple(layout.block for layout in _EACH))
MIDDLE = tl.constexpr(tuple(float(layout.middle) for layout in _EACH))
HAS_MINIMUM = tl.constexpr(tuple(layout.has_minimum for layout in _EACH))
FIFTH_BIT = tl.constexpr(tuple(layout.fifth_bit for layout in _EACH))
SIXTEENS = tl.constexpr(tuple(layout.sixteens for layout in _EACH))
TABLE = tl.constexpr(tuple(layout.table for layout in _EACH))
HAS_TABLE = tl.constexpr(tuple(len(layout.table) > 0 for layout in _EACH))
HAS_OFFSET = tl.constexpr(tuple(layout.pieces > 1 and not layout.table for layout in _EACH))  # 128, in GEMV
