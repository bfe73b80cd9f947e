"""y = x @ w.T for prefill rows. Float weights are multiplied by gemm_float.py. Quantized ones are expanded
first (slabs.py), or multiplied here, where reading them once is the most of the work.

Here a tile of the weight, decoded in registers, is the left operand and the rows are the right one. The sum
over K runs in one order, sixteen columns at a time: a row has the same bits in any batch, and either way.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from olivine.backends.cuda.formats import LAYOUTS, Format
from olivine.backends.cuda.kernels.activations import activate
from olivine.backends.cuda.kernels.dequantize import columns, dequantize_piece
from olivine.backends.cuda.kernels.dot import dot, swizzled_block
from olivine.backends.cuda.kernels.expert_blocks import ExpertBlocks
from olivine.backends.cuda.kernels.gemm_float import gemm_float
from olivine.backends.cuda.kernels.pdl import LAUNCH, begin
from olivine.backends.cuda.slabs import EXPERT_SLAB_BYTES, RingSlabs, expanded_in_turn
from olivine.backends.cuda.tiles import gemm_quantized_tiles
from olivine.backends.cuda.weights import Planes


@triton.jit(do_not_specialize=["M"])
def _gemm(
    x, target, bias, row_scale, experts, planes, M, N, K, x_stride, weight_rows,
    FORMAT: tl.constexpr, PIECES: tl.constexpr, GROUP: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    GATED: tl.constexpr, ACTIVATION: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """target is out and its stride. bias and row_scale may be None, and so may experts:
    `ExpertBlocks.pointers`."""
    out, out_stride = target
    blocks_n = tl.cdiv(N, BLOCK_N)
    block_m, block_n = swizzled_block(tl.program_id(0), tl.num_programs(0) // blocks_n, blocks_n, 8)
    begin()
    base = 0
    m = block_m * BLOCK_M + tl.arange(0, BLOCK_M)
    m_there = m < M
    x_row = m
    steps = tl.cdiv(K, BLOCK_K)
    if experts is not None:
        expert = tl.load(experts.expert_of + block_m)
        base = tl.maximum(expert, 0).to(tl.int64) * weight_rows
        m = tl.load(experts.row_ids + m)
        m_there = m >= 0
        x_row = m // experts.rows_per_input
        steps = tl.where(expert < 0, 0, steps)  # a spare block
    n = block_n * BLOCK_N + tl.arange(0, BLOCK_N)
    n_there = n < N
    weight_row = base + (n // 8 * 16 + n % 8 if GATED else n)[:, None]
    acc = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    acc2 = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    x_at = x + x_row.to(tl.int64)[None, :] * x_stride
    for step in range(steps):
        k = step * BLOCK_K
        for piece in tl.static_range(PIECES):
            at_k = columns(k, FORMAT, piece, BLOCK_K)[:, None]
            if EVEN:
                rows = tl.load(x_at + at_k, mask=m_there[None, :], other=0.0)
            else:
                rows = tl.load(x_at + at_k, mask=m_there[None, :] & (at_k < K), other=0.0)
            w = dequantize_piece(planes, weight_row, n_there[:, None], k, K, FORMAT, piece, GROUP, BLOCK_K)
            acc = dot(w, rows, acc)
            if GATED:
                w = dequantize_piece(
                    planes, weight_row + 8, n_there[:, None], k, K, FORMAT, piece, GROUP, BLOCK_K
                )
                acc2 = dot(w, rows, acc2)
    if bias is not None:
        acc += tl.load(bias + n, mask=n_there, other=0.0).to(tl.float32)[:, None]
    if GATED:
        acc = activate(acc, ACTIVATION) * acc2
    if row_scale is not None:
        acc *= tl.load(row_scale + m, mask=m_there, other=0.0)[None, :]
    to = out + m.to(tl.int64)[None, :] * out_stride + n[:, None]
    tl.store(to, acc.to(out.dtype.element_ty), mask=m_there[None, :] & n_there[:, None])


def gemm(
    x: torch.Tensor,
    weight: Planes,
    out: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    activation: int | None = None,
    experts: ExpertBlocks | None = None,
    row_scale: torch.Tensor | None = None,
    slabs: RingSlabs | None = None,
) -> None:
    """out = (x @ weight.T + bias) · row_scale, [M, N].

    With an activation the weight is gate and up, interleaved, and out = activation(x @ gate.T) · (x @ up.T).
    With `experts` the weight has those of all experts, and each row of out is of the expert it was routed to.
    A weight that is expanded lies in the ring of `slabs`, if they are given.
    """
    rows, n = out.shape
    if rows == 0:
        return
    if weight.format is Format.FLOAT:
        gemm_float(x, weight, out, bias, activation, experts, row_scale)
        return
    gated, grouped = activation is not None, None if experts is None else (experts.rows, experts.count)
    tiles = gemm_quantized_tiles(weight, gated, rows, grouped)
    if tiles is None:
        if experts is None:
            _expanded(x, weight, out, bias, activation, slabs)
        else:
            _experts_expanded(x, weight, out, activation, experts, row_scale)
        return
    blocks = -(-rows // tiles.block_m) if experts is None else len(experts.expert_of)
    _gemm[(-(-n // tiles.block_n) * blocks,)](
        x, (out, out.stride(0)), bias, row_scale, None if experts is None else experts.pointers(),
        weight.pointers(), rows, n, weight.k, x.stride(0),
        0 if experts is None else weight.n // experts.count,
        FORMAT=int(weight.format), PIECES=LAYOUTS[weight.format].pieces, GROUP=weight.group,
        BLOCK_M=tiles.block_m, BLOCK_N=tiles.block_n, BLOCK_K=tiles.block_k,
        GATED=gated, ACTIVATION=activation or 0, EVEN=weight.k % tiles.block_k == 0,
        num_warps=tiles.warps, num_stages=tiles.stages, **LAUNCH,
    )  # fmt: skip


def _expanded(
    x: torch.Tensor,
    weight: Planes,
    out: torch.Tensor,
    bias: torch.Tensor | None,
    activation: int | None,
    slabs: RingSlabs | None,
) -> None:
    """As `gemm`, of a weight that is expanded a slab at a time."""
    parts = expanded_in_turn(weight) if slabs is None else slabs.expanded(weight)
    for first, slab in parts:
        rows_per_out = 1 if activation is None else 2
        at = slice(first // rows_per_out, (first + slab.n) // rows_per_out)
        gemm_float(x, slab, out[:, at], None if bias is None else bias[at], activation, None)


def _experts_expanded(
    x: torch.Tensor,
    weight: Planes,
    out: torch.Tensor,
    activation: int | None,
    experts: ExpertBlocks,
    row_scale: torch.Tensor | None,
) -> None:
    """As `gemm`, some experts at a time."""
    height = weight.n // experts.count
    for first, slab in expanded_in_turn(weight, height, EXPERT_SLAB_BYTES):
        some = (first // height, slab.n // height)
        gemm_float(x, slab, out, None, activation, experts, row_scale, expert_range=some)
