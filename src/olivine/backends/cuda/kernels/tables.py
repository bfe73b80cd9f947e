"""Codes of four bits that stand for the numbers of a table, as bfloat16.

A byte permutation picks four bytes of eight, by the low three bits of four codes; another one chooses between
the two halves of the table by the fourth bit. So the high bytes of four numbers are found, and the low ones.
"""

from __future__ import annotations

import struct

import triton
import triton.language as tl

from olivine.backends.cuda.formats import LAYOUTS, TABLE, Format
from olivine.backends.cuda.kernels.dot import INTERPRETED


def _words(table: tuple[int, ...], byte: int) -> list[str]:
    """One byte of each of the sixteen bfloat16 numbers, in four words."""
    found = bytes(struct.pack(">f", number)[byte] for number in table)
    return [f"0x{found[at : at + 4][::-1].hex()}" for at in range(0, 16, 4)]


def _four(table: tuple[int, ...], low: str, high: str, codes: str, halves: str) -> str:
    """The low and the high bytes of four numbers, to be found in `low` and `high`."""
    found = ""
    for to, byte in ((low, 1), (high, 0)):
        first, second, third, fourth = _words(table, byte)
        found += f" prmt.b32 x, {first}, {second}, {codes}; prmt.b32 y, {third}, {fourth}, {codes};"
        found += f" prmt.b32 {to}, x, y, {halves};"
    return found


# Of a word: its codes with three bits each, and for the fourth bits, 4 added to the place of each code.
_SELECT = " and.b32 c, {0}, 0x77777777; shr.u32 h, {0}, 1; lop3.b32 h, h, 0x44444444, 0x32103210, 0xEA;"
_REGISTERS = "{ .reg .b32 u, c, h, x, y, l, m, n, o;"


def _pairs(table: tuple[int, ...]) -> str:
    """PTX for four bytes of two codes: first the numbers of the low codes, then those of the high ones."""
    found = _REGISTERS + _SELECT.format("$4") + _four(table, "l", "m", "c", "h")
    found += " shr.u32 c, c, 16; shr.u32 h, h, 16;" + _four(table, "n", "o", "c", "h")
    found += " prmt.b32 $0, l, m, 0x6240; prmt.b32 $1, n, o, 0x6240;"
    return found + " prmt.b32 $2, l, m, 0x7351; prmt.b32 $3, n, o, 0x7351; }"


def _singles(table: tuple[int, ...]) -> str:
    """PTX for four bytes of one code."""
    found = _REGISTERS + " shr.u32 u, $2, 4; or.b32 u, u, $2; prmt.b32 u, u, 0, 0x4420;"
    found += _SELECT.format("u") + _four(table, "l", "m", "c", "h")
    return found + " prmt.b32 $0, l, m, 0x5140; prmt.b32 $1, l, m, 0x7362; }"


# By format; empty where it has no table.
_TABLES = [LAYOUTS[kind].table for kind in Format]
_PAIRS = tl.constexpr(tuple(_pairs(table) if table else "" for table in _TABLES))
_SINGLES = tl.constexpr(tuple(_singles(table) if table else "" for table in _TABLES))


@triton.jit
def _plain(code, FORMAT: tl.constexpr):
    """The same in the interpreter, in float32."""
    y = code.to(tl.float32) * 0
    for i in tl.static_range(16):
        y = tl.where(code == i, TABLE[FORMAT][i], y)
    return y


@triton.jit
def looked_up(code, FORMAT: tl.constexpr):
    """The numbers of codes, in float32."""
    if INTERPRETED:
        y = _plain(code, FORMAT)
    else:
        ASM: tl.constexpr = _SINGLES[FORMAT]
        y = tl.inline_asm_elementwise(ASM, "=r,=r,r", [code], dtype=tl.bfloat16, is_pure=True, pack=4)
        y = y.to(tl.float32)
    return y


@triton.jit
def pair_looked_up(codes, FORMAT: tl.constexpr):
    """The numbers of the low and of the high code of each byte, in bfloat16."""
    if INTERPRETED:
        first = _plain(codes & 15, FORMAT).to(tl.bfloat16)
        second = _plain(codes >> 4, FORMAT).to(tl.bfloat16)
    else:
        ASM: tl.constexpr = _PAIRS[FORMAT]
        first, second = tl.inline_asm_elementwise(
            ASM, "=r,=r,=r,=r,r", [codes], dtype=(tl.bfloat16, tl.bfloat16), is_pure=True, pack=4
        )
    return first, second
