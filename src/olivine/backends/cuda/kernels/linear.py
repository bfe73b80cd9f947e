"""y = x @ w.T for prompt rows, for every kind of weight. Generated rows have few.py.

A tile of the weight is the left operand and the rows are the right one. The sum over K runs in one order that
only the weight's shape decides: a row has the same bits in any batch.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from olivine.backends.cuda.kernels.activations import activate
from olivine.backends.cuda.kernels.blocks import PARTS, columns, piece
from olivine.backends.cuda.kernels.launches import LAUNCH, begin
from olivine.backends.cuda.kernels.products import product
from olivine.backends.cuda.tiles import many_tiles
from olivine.backends.cuda.weights import Planes


@triton.jit(do_not_specialize=["M"])
def _linear(
    x, out, bias, codes, high, scales, minima, halves,
    M, N, K, x_stride, out_stride,
    KIND: tl.constexpr, PIECES: tl.constexpr, GROUP: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, TOGETHER: tl.constexpr,
    GATED: tl.constexpr, ACTIVATION: tl.constexpr, BIAS: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    # Programs that read the same rows of the weight run close together, so that it is read once.
    blocks_m = tl.cdiv(M, BLOCK_M)
    blocks_n = tl.cdiv(N, BLOCK_N)
    begin()
    at = tl.program_id(0)
    first = at // (TOGETHER * blocks_n) * TOGETHER
    size = tl.minimum(blocks_m - first, TOGETHER)
    block_n = (at % (TOGETHER * blocks_n)) // size
    m = (first + at % (TOGETHER * blocks_n) % size) * BLOCK_M + tl.arange(0, BLOCK_M)
    m_there = m < M
    n = block_n * BLOCK_N + tl.arange(0, BLOCK_N)
    n_there = n < N
    weight_row = (n // 8 * 16 + n % 8 if GATED else n)[:, None]
    acc = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    acc2 = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    x_at = x + m.to(tl.int64)[None, :] * x_stride
    for step in range(tl.cdiv(K, BLOCK_K)):
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
) -> None:
    """out = x @ weight.T + bias, [M, N].

    With an activation the weight is gate and up, interleaved, and out = activation(x @ gate.T) · (x @ up.T).
    """
    rows, n = out.shape
    if rows == 0:
        return
    cut = many_tiles(weight, activation is not None)
    planes: list[Any] = list(weight.pointers())
    _linear[(-(-n // cut.block_n) * -(-rows // cut.block_m),)](
        x, out, x if bias is None else bias, *planes, rows, n, weight.k, x.stride(0), out.stride(0),
        KIND=weight.kind, PIECES=PARTS[weight.kind], GROUP=weight.group,
        BLOCK_M=cut.block_m, BLOCK_N=cut.block_n, BLOCK_K=cut.block_k, TOGETHER=8,
        GATED=activation is not None, ACTIVATION=activation or 0, BIAS=bias is not None,
        EVEN=weight.k % cut.block_k == 0,
        num_warps=cut.warps, num_stages=cut.stages, **LAUNCH,
    )  # fmt: skip
