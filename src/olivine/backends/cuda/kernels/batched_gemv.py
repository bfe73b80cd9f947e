"""y = x @ w.T for decode rows of many sequences and float weights, with the bits that `gemv` gives each row.

So many rows are worth a pipeline through shared memory, which holds the next tiles of the weight and of the
rows while the current ones are multiplied. What must be as in `gemv` is only the order of the sums: a unit of
columns by itself, sixteen columns at a time; units one after another, in four parts of the columns; and then
(first + third) + (second + fourth). That the tensor cores give the same sum of sixteen products in any order,
by either instruction, was seen on Hopper; elsewhere `gemv` takes all rows.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from olivine.backends.cuda.formats import FLOAT_TILE_WIDTH
from olivine.backends.cuda.kernels.dot import dot
from olivine.backends.cuda.kernels.epilogue import epilogue, load_up
from olivine.backends.cuda.kernels.pdl import LAUNCH, begin, registers
from olivine.backends.cuda.tiles import WARPS, GemvTiles
from olivine.backends.cuda.weights import Planes

_BLOCK_N = 64  # rows of the weight that a program has


# Told that a split has one step, the compiler of Triton 3.6 leaves out sums.
@triton.jit(do_not_specialize=["M", "steps"])
def _batched_gemv(
    inputs, inv_rms, target, bias, up, codes, M, weight_rows, steps,
    BLOCK_N: tl.constexpr, BATCH: tl.constexpr, SPAN: tl.constexpr, EVEN: tl.constexpr,
    GATED: tl.constexpr, ACTIVATION: tl.constexpr,
):  # fmt: skip
    """inputs are x, its stride and its columns; target is as in `epilogue`. inv_rms and bias may be None, and
    so may up: a pointer and its stride."""
    x, x_stride, K = inputs
    WIDTH: tl.constexpr = FLOAT_TILE_WIDTH
    block = tl.program_id(0)
    split = tl.program_id(1)
    first = tl.program_id(2) * BATCH
    m = first + tl.arange(0, BATCH)
    column = tl.arange(0, SPAN)
    # Rows beyond the last repeat it.
    n = tl.minimum(tl.arange(0, BLOCK_N), weight_rows - 1 - block * BLOCK_N)
    tile = tl.cdiv(K, WIDTH) * (8 * WIDTH)
    w = codes + block.to(tl.int64) * (BLOCK_N // 8) * tile
    w_at = (n // 8 * tile + n % 8 * WIDTH)[:, None] + (column // WIDTH * (8 * WIDTH) + column % WIDTH)[
        None, :
    ]
    x += first.to(tl.int64) * x_stride
    x_at = (tl.minimum(tl.arange(0, BATCH), M - 1 - first) * x_stride)[None, :] + column[:, None]
    acc = tl.zeros((BLOCK_N, BATCH), tl.float32)
    part = acc
    total = acc
    begin()
    row_scale = None
    if inv_rms is not None:
        row_scale = tl.load(inv_rms + m, mask=m < M, other=0.0)
    for i in range(4 * steps):
        which = i // steps  # of the four parts: first, third, second, fourth
        step = i - which * steps
        unit = (split * 4 + (which >> 1) + (which & 1) * 2) * steps + step
        if EVEN:
            weights = tl.load(w + unit * (8 * SPAN) + w_at)
            rows = tl.load(x + unit * SPAN + x_at)
        else:
            there = unit * SPAN + column < K
            weights = tl.load(w + unit * (8 * SPAN) + w_at, mask=there[None, :], other=0.0)
            rows = tl.load(x + unit * SPAN + x_at, mask=there[:, None], other=0.0)
        # Not a plain sum, which the compiler would make a chain of products.
        acc = tl.fma(dot(weights, rows, tl.zeros_like(acc)), 1.0, acc)
        if step == steps - 1:
            total = tl.where((which & 1) == 1, total + (part + acc), total)
            part = acc
            acc = tl.zeros((BLOCK_N, BATCH), tl.float32)
    up_part = None
    if up is not None:
        up_part = load_up(up, target, block, m, m < M, BLOCK_N)
    epilogue(total, row_scale, bias, up_part, target, (block, split, m, m < M), GATED, ACTIVATION)


def batched_gemv(
    x: torch.Tensor,
    weight: Planes,
    out: torch.Tensor,
    tiles: GemvTiles,
    *,
    inv_rms: torch.Tensor | None,
    bias: torch.Tensor | None,
    activation: int | None,
    up: torch.Tensor | None,
) -> None:
    """As `gemv`, of float weights."""
    rows, n, k = out.shape[-2], out.shape[-1], weight.k
    splits = out.shape[0] if out.ndim == 3 else 1
    batch = min(tiles.max_rows, triton.next_power_of_2(rows))
    _batched_gemv[(-(-weight.n // _BLOCK_N), splits, -(-rows // batch))](
        (x, x.stride(0), k), inv_rms, (out, out.stride(-2), out.stride(0) if out.ndim == 3 else 0, n), bias,
        None if up is None else (up, up.stride(0)),
        weight.codes, rows, weight.n, tiles.steps // splits,
        BLOCK_N=_BLOCK_N, BATCH=batch, SPAN=tiles.span, EVEN=k == tiles.steps * WARPS * tiles.span,
        GATED=activation is not None and up is None, ACTIVATION=activation or 0,
        num_warps=4, num_stages=4, enable_fp_fusion=False, **registers(168), **LAUNCH,
    )  # fmt: skip
