"""Products of tiles with bfloat16 operands and float32 sums, and the order of the tiles of a GEMM."""

from __future__ import annotations

import os

import triton
import triton.language as tl

# Triton's interpreter keeps bfloat16 as raw bits, which NumPy cannot multiply.
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
def swizzled_block(at, count, others, GROUP: tl.constexpr):
    """Block `at` of a grid count × others, in groups of GROUP of the first: programs that run at the same
    time then read the same few rows, from the L2 cache."""
    first = at // (GROUP * others) * GROUP
    size = tl.minimum(count - first, GROUP)
    inner = at % (GROUP * others)
    return first + inner % size, inner // size
