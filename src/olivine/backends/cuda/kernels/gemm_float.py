"""y = x @ w.T for prefill rows and float weights: tiles of both are pipelined through shared memory.

The sum over K runs in one order, sixteen columns at a time: a row has the same bits in any batch and tile.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from olivine.backends.cuda.formats import FLOAT_TILE_WIDTH
from olivine.backends.cuda.kernels.activations import activate
from olivine.backends.cuda.kernels.dot import dot, swizzled_block
from olivine.backends.cuda.kernels.expert_blocks import ExpertBlocks
from olivine.backends.cuda.kernels.pdl import LAUNCH, begin
from olivine.backends.cuda.tiles import gemm_float_tiles
from olivine.backends.cuda.weights import Planes


@triton.jit(do_not_specialize=["M", "first_expert", "expert_count"])
def _gemm_float(
    x, target, bias, row_scale, experts, codes, M, N, K, x_stride, weight_rows, first_expert, expert_count,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    GATED: tl.constexpr, ACTIVATION: tl.constexpr, EVEN: tl.constexpr, SHORT: tl.constexpr,
):  # fmt: skip
    """target is out and its stride. bias and row_scale may be None, and so may experts:
    `ExpertBlocks.pointers`; the codes are those of `expert_count` experts from `first_expert` on, and the
    blocks of others do nothing. SHORT: most rows of a tile may be padding. It then loads none of them, where
    it otherwise repeats a row: programs that all load the same few bytes wait for each other."""
    out, out_stride = target
    WIDTH: tl.constexpr = FLOAT_TILE_WIDTH
    blocks_n = tl.cdiv(weight_rows, BLOCK_N)
    blocks_m = tl.num_programs(0) // blocks_n
    block_n, block_m = swizzled_block(tl.program_id(0), blocks_n, blocks_m, 8)
    begin()
    column = tl.arange(0, BLOCK_K)
    m = block_m * BLOCK_M + tl.arange(0, BLOCK_M)
    steps = tl.cdiv(K, BLOCK_K)
    # Rows beyond the last repeat it.
    n = tl.minimum(tl.arange(0, BLOCK_N), weight_rows - 1 - block_n * BLOCK_N)
    if experts is not None:
        expert = tl.load(experts.expert_of + block_m) - first_expert
        mine = (expert >= 0) & (expert < expert_count)
        steps = tl.where(mine, steps, 0)
        tile_rows = tl.where(mine, expert, 0).to(tl.int64) * weight_rows + block_n * BLOCK_N
        m = tl.where(mine, tl.load(experts.row_ids + m), -1)
        m_there = m >= 0
        x_at = (tl.maximum(m, 0) // experts.rows_per_input).to(tl.int64)[:, None] * x_stride + column[None, :]
    else:
        tile_rows = block_n.to(tl.int64) * BLOCK_N
        m_there = m < M
        x += block_m.to(tl.int64) * BLOCK_M * x_stride
        row = tl.minimum(tl.arange(0, BLOCK_M), M - 1 - block_m * BLOCK_M)
        x_at = row[:, None] * x_stride + column[None, :]
    tile = tl.cdiv(K, WIDTH) * (8 * WIDTH)
    w = codes + tile_rows // 8 * tile
    w_at = (n // 8 * tile + n % 8 * WIDTH)[None, :] + (column // WIDTH * (8 * WIDTH) + column % WIDTH)[
        :, None
    ]
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for step in range(steps):
        k = step * BLOCK_K
        there = k + column < K
        if SHORT:
            rows = tl.load(x + k + x_at, mask=m_there[:, None] & there[None, :], other=0.0)
        elif EVEN:
            rows = tl.load(x + k + x_at)
        else:
            rows = tl.load(x + k + x_at, mask=there[None, :], other=0.0)
        if EVEN:
            weights = tl.load(w + k * 8 + w_at)
        else:
            weights = tl.load(w + k * 8 + w_at, mask=there[:, None], other=0.0)
        acc = dot(rows, weights, acc)
    OUTS: tl.constexpr = BLOCK_N // 2 if GATED else BLOCK_N
    y = acc
    if GATED:
        # Gate and up are interleaved by eight rows.
        pairs = tl.permute(tl.reshape(acc, (BLOCK_M, BLOCK_N // 16, 2, 8)), (0, 1, 3, 2))
        gate, up = tl.split(pairs)
        y = tl.reshape(activate(gate, ACTIVATION) * up, (BLOCK_M, OUTS))
    at = block_n * OUTS + tl.arange(0, OUTS)
    if bias is not None:
        y += tl.load(bias + at, mask=at < N, other=0.0).to(tl.float32)[None, :]
    if row_scale is not None:
        y *= tl.load(row_scale + m, mask=m_there, other=0.0)[:, None]
    to = out + m.to(tl.int64)[:, None] * out_stride + at[None, :]
    tl.store(to, y.to(out.dtype.element_ty), mask=m_there[:, None] & (at < N)[None, :])


def gemm_float(
    x: torch.Tensor,
    weight: Planes,
    out: torch.Tensor,
    bias: torch.Tensor | None,
    activation: int | None,
    experts: ExpertBlocks | None,
    row_scale: torch.Tensor | None = None,
    expert_range: tuple[int, int] | None = None,
) -> None:
    """As `gemm`. The weight may be of some experts, the first of which and how many `expert_range` says; only
    rows of those are written."""
    rows, n = out.shape
    tiles = gemm_float_tiles(weight, rows, None if experts is None else experts.rows)
    first, count = expert_range or (0, 1 if experts is None else experts.count)
    height = weight.n // count
    blocks = -(-rows // tiles.block_m) if experts is None else len(experts.expert_of)
    _gemm_float[(-(-height // tiles.block_n) * blocks,)](
        x, (out, out.stride(0)), bias, row_scale, None if experts is None else experts.pointers(),
        weight.codes, rows, n, weight.k, x.stride(0), height, first, count,
        BLOCK_M=tiles.block_m, BLOCK_N=tiles.block_n, BLOCK_K=tiles.block_k,
        GATED=activation is not None, ACTIVATION=activation or 0, EVEN=weight.k % tiles.block_k == 0,
        SHORT=experts is not None or rows < tiles.block_m,
        num_warps=tiles.warps, num_stages=tiles.stages, **LAUNCH,
    )  # fmt: skip
