"""What programs of a GEMV have in common: how they load rows of x, multiply a unit of columns a warp, and add
it up.

All of them sum in this order, so a row has the same bits in each: the units of a warp in chains, each by
itself; the chains of a warp one after another; and then the warps.
"""

from __future__ import annotations

import triton
import triton.language as tl

from olivine.backends.cuda import tiles
from olivine.backends.cuda.formats import BLOCK, FLOAT, HAS_MINIMUM, HAS_OFFSET, Format
from olivine.backends.cuda.kernels.dot import dot
from olivine.backends.cuda.kernels.gemv_weights import fragment, piece_start, run_columns

CHAINS = tl.constexpr(tuple(tiles.CHAINS[each] for each in Format))


@triton.jit
def end_of(STEPS: tl.constexpr, M):
    """STEPS, as the end of a loop that stays one: the compiler does not know that there is a row."""
    return STEPS * tl.minimum(M, 1)


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
def accumulate(accs, codes, scales, inputs, FORMAT: tl.constexpr, PIECES: tl.constexpr):
    """Each of accs, [WARPS, 16, BATCH], plus the products of a unit a warp. Each has sixteen other rows of
    the weight: its codes are as `decode_codes` gives them, its scales as `decode_scales`."""
    zeros = tl.zeros_like(accs[0])
    SCALES: tl.constexpr = PIECES if BLOCK[FORMAT] == 256 else 1
    EACH: tl.constexpr = PIECES // SCALES
    MINIMUM: tl.constexpr = HAS_MINIMUM[FORMAT]
    for scale in tl.static_range(SCALES):
        # The sum of the inputs, in every row: for the minimum, or the middle of codes that have a sign.
        total = zeros
        if HAS_OFFSET[FORMAT]:
            for piece in tl.static_range(EACH):
                total = dot(codes[0][PIECES], inputs[scale * EACH + piece], total)
        sums = ()
        for tile in tl.static_range(len(accs)):
            acc = accs[tile]
            y = zeros if MINIMUM else total
            for piece in tl.static_range(EACH):
                y = dot(codes[tile][scale * EACH + piece], inputs[scale * EACH + piece], y)
            if FORMAT == FLOAT:
                # Not a plain sum, which the compiler would make a chain of products that wait for each other.
                acc = tl.fma(y, 1.0, acc)
            else:
                acc = tl.fma(y, scales[tile][scale][:, :, None], acc)
            if MINIMUM:
                acc = tl.fma(total, scales[tile][SCALES + scale][:, :, None], acc)
            sums = sums + (acc,)
        accs = sums
    return accs


@triton.jit
def with_chain(accs, CHAIN: tl.constexpr, acc):
    """accs with another one for a chain."""
    found = ()
    for i in tl.static_range(len(accs)):
        found = found + (acc if i == CHAIN else accs[i],)
    return found


@triton.jit
def sum_over_warps(accs):
    """The chains of a warp one after another, each [4 warps, rows, columns], then the warps: (first + third)
    + (second + fourth). By way of shared memory once: a lane then has a number of each warp."""
    acc = accs[0]
    for i in tl.static_range(1, len(accs)):
        acc = acc + accs[i]
    apart = tl.permute(tl.reshape(acc, (2, 2, acc.shape[1], acc.shape[2])), (2, 3, 1, 0))
    low, high = tl.split(apart)
    even, odd = tl.split(low + high)
    return even + odd
