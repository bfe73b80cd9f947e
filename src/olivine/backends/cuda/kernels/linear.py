"""y = x @ w.T for every kind of weight, for prompt rows and for generated rows.

A tile of the weight is the left operand and the rows are the right one, so few rows waste little. The sum
over K runs in one order that only the weight's shape decides: a row has the same bits in any batch. With
several SPLITS, as many sums over parts of K are written side by side, and whoever reads them adds them up
in order.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from olivine.backends.cuda.kernels.activations import activate
from olivine.backends.cuda.kernels.blocks import PARTS, columns, piece
from olivine.backends.cuda.kernels.launches import LAUNCH, begin, prefetch
from olivine.backends.cuda.kernels.products import product
from olivine.backends.cuda.tiles import Tiles, choose
from olivine.backends.cuda.weights import Planes

PREFETCHED = 5 << 20  # larger weights would push each other out of L2


@triton.jit(do_not_specialize=["M"])
def _linear(
    x, out, bias, chosen,
    codes, high, scales, minima, halves,
    codes2, high2, scales2, minima2, halves2,
    M, N, K, x_stride, out_stride, out_plane, steps, x_share, expert_rows,
    KIND: tl.constexpr, PIECES: tl.constexpr, GROUP: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, TOGETHER: tl.constexpr,
    GATED: tl.constexpr, ACTIVATION: tl.constexpr, BIAS: tl.constexpr, EXPERTS: tl.constexpr,
    EVEN: tl.constexpr,
    PREFETCH: tl.constexpr, PACKED: tl.constexpr, LINES: tl.constexpr, LINE_ITEM: tl.constexpr,
):  # fmt: skip
    # Programs that read the same rows of the weight run close together, so that it is read once.
    blocks_m = tl.cdiv(M, BLOCK_M)
    blocks_n = tl.cdiv(N, BLOCK_N)
    if EXPERTS:
        begin()
        block_n = tl.program_id(0)
        row = tl.program_id(2)
        base = tl.load(chosen + row).to(tl.int64) * expert_rows
        m = tl.arange(0, BLOCK_M)
        m_there = m < 1
        x_row = row // x_share + m * 0
        m = row + m
    else:
        at = tl.program_id(0)
        group = at // (TOGETHER * blocks_n)
        first = group * TOGETHER
        size = tl.minimum(blocks_m - first, TOGETHER)
        block_n = (at % (TOGETHER * blocks_n)) // size
        m = (first + at % (TOGETHER * blocks_n) % size) * BLOCK_M + tl.arange(0, BLOCK_M)
        m_there = m < M
        x_row = m
        base = 0
    split = tl.program_id(1)
    n = block_n * BLOCK_N + tl.arange(0, BLOCK_N)
    n_there = n < N
    acc = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    acc2 = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    if PREFETCH:
        # What will be read is asked for at once, while the kernel before is still at work.
        line = tl.arange(0, LINES) * (128 // LINE_ITEM)
        span = steps * BLOCK_K // PACKED
        at = n.to(tl.int64)[:, None] * (K // PACKED) + split * span + line[None, :]
        fine = n_there[:, None] & (line < span)[None, :]
        prefetch(tl.where(fine, codes + at, codes))
        if GATED:
            prefetch(tl.where(fine, codes2 + at, codes2))
    if EXPERTS == 0:
        begin()
    x_at = x + x_row.to(tl.int64)[None, :] * x_stride
    for step in range(split * steps, (split + 1) * steps):
        k = step * BLOCK_K
        for part in tl.static_range(PIECES):
            at_k = columns(k, KIND, part, BLOCK_K)[:, None]
            if EVEN:
                rows = tl.load(x_at + at_k, mask=m_there[None, :], other=0.0)
            else:
                rows = tl.load(x_at + at_k, mask=m_there[None, :] & (at_k < K), other=0.0)
            w = piece(
                codes,
                high,
                scales,
                minima,
                halves,
                base + n,
                n_there,
                k,
                K,
                KIND,
                part,
                GROUP,
                BLOCK_N,
                BLOCK_K,
            )
            acc = product(w, rows, acc)
            if GATED:
                w = piece(
                    codes2, high2, scales2, minima2, halves2, base + n, n_there, k, K, KIND, part, GROUP,
                    BLOCK_N, BLOCK_K,
                )  # fmt: skip
                acc2 = product(w, rows, acc2)
    if BIAS:
        added = tl.load(bias + n, mask=n_there, other=0.0).to(tl.float32)
        acc += tl.where(split == 0, added, 0.0)[:, None]
    if GATED:
        acc = activate(acc, ACTIVATION) * acc2
    at = out + split.to(tl.int64) * out_plane + m.to(tl.int64)[None, :] * out_stride + n[:, None]
    tl.store(at, acc.to(out.dtype.element_ty), mask=m_there[None, :] & n_there[:, None])


def linear(
    x: torch.Tensor,
    weight: Planes,
    out: torch.Tensor,
    *,
    generated: bool,
    bias: torch.Tensor | None = None,
    up: Planes | None = None,
    activation: int = 0,
    chosen: torch.Tensor | None = None,
    share: int = 1,
) -> None:
    """out[s, m] = the s-th part of x[m] @ weight.T; with `up`, activation(x @ weight.T) · (x @ up.T).

    out is [splits, M, N], or [M, N] for one split. With `chosen` the weight is one of experts: out row m is
    x row m // share times expert chosen[m].
    """
    splits = out.shape[0] if out.ndim == 3 else 1
    rows, n, k = out.shape[-2], out.shape[-1], weight.k
    if rows == 0:
        return
    tiles: Tiles = choose(weight, n, generated or chosen is not None, up is not None, splits)
    block_m = tiles.block_m if not (generated or chosen is not None) else _few(rows, chosen is not None)
    steps = triton.cdiv(triton.cdiv(k, tiles.block_k), splits)
    blocks_n = -(-n // tiles.block_n)
    grid = (
        blocks_n * (1 if chosen is not None else -(-rows // block_m)),
        splits,
        1 if chosen is None else rows,
    )
    other = up or weight
    packed = 2 if weight.kind >= 2 else 1
    item = weight.codes.element_size()
    lines = triton.next_power_of_2(-(-steps * tiles.block_k // packed * item // 128))
    planes: list[Any] = [*weight.pointers(), *other.pointers()]
    _linear[grid](
        x, out, weight.codes if bias is None else bias, weight.codes if chosen is None else chosen, *planes,
        rows, n, k, x.stride(0), out.stride(-2), out.stride(0) if out.ndim == 3 else 0, steps, share, n,
        KIND=weight.kind, PIECES=PARTS[weight.kind], GROUP=weight.group,
        BLOCK_M=block_m, BLOCK_N=tiles.block_n, BLOCK_K=tiles.block_k, TOGETHER=8,
        GATED=up is not None, ACTIVATION=activation, BIAS=bias is not None, EXPERTS=chosen is not None,
        EVEN=k % (tiles.block_k * splits) == 0,
        PREFETCH=generated and chosen is None and n * k * item // packed < PREFETCHED,
        PACKED=packed, LINES=lines, LINE_ITEM=item,
        num_warps=tiles.warps, num_stages=tiles.stages, **LAUNCH,
    )  # fmt: skip


def _few(rows: int, experts: bool) -> int:
    """Generated rows that a program takes at once. It decides no bits: each row is a column of its own."""
    return 16 if experts or rows <= 16 else 32 if rows <= 32 else 64
