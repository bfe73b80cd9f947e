"""y = x @ w.T for prompt rows, for every kind of weight: floats by floats.py, quantized ones here.

A tile of the weight, decoded in registers, is the left operand and the rows are the right one. The sum over K
runs in one order that only the weight's shape decides: a row has the same bits in any batch.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from olivine.backends.cuda.kernels.activations import activate
from olivine.backends.cuda.kernels.blocks import PARTS, columns, piece
from olivine.backends.cuda.kernels.floats import floats
from olivine.backends.cuda.kernels.grouped import Grouped
from olivine.backends.cuda.kernels.launches import LAUNCH, begin
from olivine.backends.cuda.kernels.products import block_of, product
from olivine.backends.cuda.tiles import block_tiles
from olivine.backends.cuda.weights import Planes


@triton.jit(do_not_specialize=["M"])
def _linear(
    x, out, bias, experts, slots, codes, high, scales, minima, halves,
    M, N, K, x_stride, out_stride, share, weight_rows,
    KIND: tl.constexpr, PIECES: tl.constexpr, GROUP: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    GATED: tl.constexpr, ACTIVATION: tl.constexpr, BIAS: tl.constexpr, EVEN: tl.constexpr,
    GROUPED: tl.constexpr,
):  # fmt: skip
    blocks_n = tl.cdiv(N, BLOCK_N)
    block_m, block_n = block_of(tl.program_id(0), tl.num_programs(0) // blocks_n, blocks_n, 8)
    begin()
    base = 0
    m = block_m * BLOCK_M + tl.arange(0, BLOCK_M)
    m_there = m < M
    x_row = m
    steps = tl.cdiv(K, BLOCK_K)
    if GROUPED:
        expert = tl.load(experts + block_m)
        base = tl.maximum(expert, 0).to(tl.int64) * weight_rows
        m = tl.load(slots + m)
        m_there = m >= 0
        x_row = m // share
        steps = tl.where(expert < 0, 0, steps)  # a block too many
    n = block_n * BLOCK_N + tl.arange(0, BLOCK_N)
    n_there = n < N
    weight_row = base + (n // 8 * 16 + n % 8 if GATED else n)[:, None]
    acc = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    acc2 = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    x_at = x + x_row.to(tl.int64)[None, :] * x_stride
    for step in range(steps):
        k = step * BLOCK_K
        for part in tl.static_range(PIECES):
            at_k = columns(k, KIND, part, BLOCK_K)[:, None]
            if EVEN:
                rows = tl.load(x_at + at_k, mask=m_there[None, :], other=0.0)
            else:
                rows = tl.load(x_at + at_k, mask=m_there[None, :] & (at_k < K), other=0.0)
            w = piece(
                codes, high, scales, minima, halves, weight_row, n_there[:, None], k, K,
                KIND, part, GROUP, BLOCK_K,
            )  # fmt: skip
            acc = product(w, rows, acc)
            if GATED:
                w = piece(
                    codes, high, scales, minima, halves, weight_row + 8, n_there[:, None], k, K,
                    KIND, part, GROUP, BLOCK_K,
                )  # fmt: skip
                acc2 = product(w, rows, acc2)
    if BIAS:
        acc += tl.load(bias + n, mask=n_there, other=0.0).to(tl.float32)[:, None]
    if GATED:
        acc = activate(acc, ACTIVATION) * acc2
    to = out + m.to(tl.int64)[None, :] * out_stride + n[:, None]
    tl.store(to, acc.to(out.dtype.element_ty), mask=m_there[None, :] & n_there[:, None])


def linear(
    x: torch.Tensor,
    weight: Planes,
    out: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    activation: int | None = None,
    grouped: Grouped | None = None,
) -> None:
    """out = x @ weight.T + bias, [M, N].

    With an activation the weight is gate and up, interleaved, and out = activation(x @ gate.T) · (x @ up.T).
    With `grouped` the weight is one of experts, and each row of out is of the expert that was chosen for it.
    """
    rows, n = out.shape
    if rows == 0:
        return
    if weight.kind == 0:
        floats(x, weight, out, bias, activation, grouped)
        return
    cut = block_tiles(weight, activation is not None, rows if grouped is None else None)
    block_m = cut.block_m if grouped is None else Grouped.ROWS
    blocks = -(-rows // block_m) if grouped is None else len(grouped.experts)
    planes: list[Any] = list(weight.pointers())
    _linear[(-(-n // cut.block_n) * blocks,)](
        x, out, x if bias is None else bias, x if grouped is None else grouped.experts,
        x if grouped is None else grouped.slots, *planes, rows, n, weight.k, x.stride(0), out.stride(0),
        1 if grouped is None else grouped.share, 0 if grouped is None else weight.n // grouped.count,
        KIND=weight.kind, PIECES=PARTS[weight.kind], GROUP=weight.group,
        BLOCK_M=block_m, BLOCK_N=cut.block_n, BLOCK_K=cut.block_k,
        GATED=activation is not None, ACTIVATION=activation or 0, BIAS=bias is not None,
        EVEN=weight.k % cut.block_k == 0, GROUPED=grouped is not None,
        num_warps=cut.warps, num_stages=cut.stages, **LAUNCH,
    )  # fmt: skip
