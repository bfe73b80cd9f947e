"""Matrix products of tiles: bfloat16 operands, float32 sums; and which tile comes when."""

from __future__ import annotations

import os

import triton
import triton.language as tl

# Triton's interpreter keeps bfloat16 as raw bits, which NumPy cannot multiply; and it cuts what a GPU rounds.
INTERPRETED: tl.constexpr = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")


@triton.jit
def dot(a, b, acc):
    """acc + a @ b with both rounded to bfloat16."""
    a = a.to(tl.bfloat16)
    b = b.to(tl.bfloat16)
    if INTERPRETED:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), acc)
    return tl.dot(a, b, acc)


@triton.jit
def swizzled_block(at, count, others, TOGETHER: tl.constexpr):
    """Block `at` of count × others, as (one of count, one of others): TOGETHER of the first take turns, so
    that programs which run at the same time read the same few rows."""
    first = at // (TOGETHER * others) * TOGETHER
    size = tl.minimum(count - first, TOGETHER)
    inner = at % (TOGETHER * others)
    return first + inner % size, inner // size
