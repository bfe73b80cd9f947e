"""What programs of a GEMV have in common: how they load a unit of columns a warp, multiply it and add it up.

All of them sum in this order, so a row has the same bits in each.
"""

from __future__ import annotations

import triton
import triton.language as tl

from olivine.backends.cuda.formats import BLOCK, FLOAT, HAS_MINIMUM, HAS_OFFSET
from olivine.backends.cuda.kernels.dot import INTERPRETED, dot
from olivine.backends.cuda.kernels.gemv_weights import fragment, load_unit, piece_start, run_columns


@triton.jit
def load_weights(
    planes, first, last, base, start, step, steps, K,
    FORMAT: tl.constexpr, WARPS: tl.constexpr, WIDTH: tl.constexpr, SPAN: tl.constexpr, GROUP: tl.constexpr,
    EVEN: tl.constexpr,
):  # fmt: skip
    """A unit a warp, of sixteen rows from `first` on; rows beyond `last` repeat it."""
    warp = tl.arange(0, WARPS)
    tile = tl.minimum(first // 8 + tl.arange(0, 2)[None, None, None, :, None], last // 8)
    row = tl.minimum(first + tl.arange(0, 16)[None, :], last)
    u = start + (warp * steps)[None, None, :, None, None]
    at = start + (warp * steps)[:, None]
    return load_unit(
        planes, (base // 8 + tile).to(tl.int64), u, (base + row).to(tl.int64), at, step, K,
        FORMAT, SPAN, WIDTH, GROUP, EVEN,
    )  # fmt: skip


@triton.jit
def load_inputs(
    x, there, u, step, K,
    FORMAT: tl.constexpr, PIECES: tl.constexpr, WIDTH: tl.constexpr, SPAN: tl.constexpr, EVEN: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    """The columns of units u + step, of rows that x points to [1, 8, 1, BATCH / 8, 1], piece by piece."""
    found = ()
    for piece in tl.static_range(PIECES):
        column, more = piece_start(u, step, FORMAT, piece, SPAN, WIDTH)
        at = column + run_columns(WIDTH // 4)
        fine = there if EVEN else there & (at + more < K)
        y = tl.load(x + at + more, mask=fine, other=0.0) if MASKED else tl.load(x + at + more)
        found = found + (tl.permute(fragment(y.to(tl.bfloat16), 2 if FORMAT == FLOAT else 4), (0, 2, 1)),)
    return found


@triton.jit
def accumulate(accs, ws, inputs, FORMAT: tl.constexpr, PIECES: tl.constexpr):
    """Each of accs, [WARPS, 16, BATCH], plus the products of a unit a warp; each of ws is as `decode_unit`
    gives it, and has sixteen other rows of the weight."""
    zeros = tl.zeros_like(accs[0])
    SCALES: tl.constexpr = PIECES if BLOCK[FORMAT] == 256 else 1
    EACH: tl.constexpr = PIECES // SCALES
    MINIMUM: tl.constexpr = HAS_MINIMUM[FORMAT]
    A: tl.constexpr = PIECES + HAS_OFFSET[FORMAT]  # where the scales begin in w
    for scale in tl.static_range(SCALES):
        # The sum of the inputs, in every row: for the minimum, or the middle of codes that have a sign.
        total = zeros
        if HAS_OFFSET[FORMAT]:
            for piece in tl.static_range(EACH):
                total = dot(ws[0][PIECES], inputs[scale * EACH + piece], total)
        sums = ()
        for tile in tl.static_range(len(accs)):
            w, acc = ws[tile], accs[tile]
            y = zeros if MINIMUM else total
            for piece in tl.static_range(EACH):
                y = dot(w[scale * EACH + piece], inputs[scale * EACH + piece], y)
            if FORMAT == FLOAT:
                # Not a plain sum, which the compiler would make a chain of products that wait for each other.
                acc = tl.fma(y, 1.0, acc)
            else:
                acc = tl.fma(y, w[A + scale][:, :, None], acc)
            if MINIMUM:
                acc = tl.fma(total, w[A + SCALES + scale][:, :, None], acc)
            sums = sums + (acc,)
        accs = sums
    return accs


@triton.jit
def sum_over_warps(acc):
    """The sum of the four warps, (first + third) + (second + fourth): the order in which a GPU adds them."""
    if INTERPRETED:
        acc = tl.sum(tl.reshape(acc, (2, 2, acc.shape[1], acc.shape[2])), 0)
    return tl.sum(acc, 0)
