"""Kernels of towers: layer norms, and attention to the last rows with keys for how far back they are."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from olivine.backends.cuda.kernels.activations import tanh
from olivine.backends.cuda.kernels.pdl import LAUNCH, begin


@triton.jit
def _layer_norm(x, weight, bias, out, eps, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """A program has a group of SIZE columns. bias may be None."""
    group = tl.program_id(0).to(tl.int64) * SIZE
    at = tl.arange(0, BLOCK)
    there = at < SIZE
    begin()
    y = tl.load(x + group + at, mask=there, other=0.0).to(tl.float32)
    y = tl.where(there, y - tl.sum(y, 0) / SIZE, 0.0)
    y = y / tl.sqrt(tl.sum(y * y, 0) / SIZE + eps)
    y = y * tl.load(weight + at, mask=there, other=0.0).to(tl.float32)
    if bias is not None:
        y += tl.load(bias + at, mask=there, other=0.0).to(tl.float32)
    tl.store(out + group + at, y.to(out.dtype.element_ty), mask=there)


def layer_norm(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, out: torch.Tensor, eps: float
) -> None:
    """Of each group of as many columns as the weight has; x is contiguous."""
    size = len(weight)
    if len(x):
        block = triton.next_power_of_2(size)
        _layer_norm[(x.numel() // size,)](
            x,
            weight,
            bias,
            out,
            eps,
            SIZE=size,
            BLOCK=block,
            num_warps=min(8, max(1, block // 256)),
            **LAUNCH,
        )


@triton.jit
def _relative_attention(
    q, k, v, relative, positions, out, cap, width,
    SPAN: tl.constexpr, BLOCK: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """A program has one head of one row."""
    row = tl.program_id(0)
    head = tl.program_id(1) * D
    back = tl.arange(0, BLOCK)
    d = tl.arange(0, BLOCK_D)
    begin()
    seen = (back < SPAN) & (back <= tl.load(positions + row))
    fine = seen[:, None] & (d < D)[None, :]
    at = (row - back).to(tl.int64)[:, None] * width + head + d[None, :]
    query = tl.load(q + row.to(tl.int64) * width + head + d, mask=d < D, other=0.0)
    keys = tl.load(k + at, mask=fine, other=0.0)
    keys += tl.load(relative + back[:, None] * width + head + d[None, :], mask=fine, other=0.0).to(tl.float32)
    scores = tanh(tl.sum(query[None, :] * keys, 1) / cap) * cap
    scores = tl.where(seen, scores, float("-inf"))
    share = tl.exp(scores - tl.maximum(tl.max(scores, 0), -1e30))  # a row of padding sees nothing
    share = share / tl.maximum(tl.sum(share, 0), 1e-30)
    y = tl.sum(share[:, None] * tl.load(v + at, mask=fine, other=0.0), 0)
    tl.store(out + row.to(tl.int64) * width + head + d, y.to(out.dtype.element_ty), mask=d < D)


def relative_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    relative: torch.Tensor,
    positions: torch.Tensor,
    out: torch.Tensor,
    heads: int,
    cap: float,
) -> None:
    """q, k, v, out [T, H · d] in float32, relative [span, H · d]: row t sees the rows t - span + 1 … t."""
    rows, width = q.shape
    if rows:
        _relative_attention[(rows, heads)](
            q, k, v, relative, positions, out, cap, width,
            SPAN=len(relative), BLOCK=triton.next_power_of_2(len(relative)),
            D=width // heads, BLOCK_D=triton.next_power_of_2(width // heads), **LAUNCH,
        )  # fmt: skip
