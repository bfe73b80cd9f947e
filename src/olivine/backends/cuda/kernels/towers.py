"""Kernels of towers: layer norms, limits, rotary embeddings of two dimensions, attention to the last rows."""

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
def _clamp(x, low, high, out, width, x_stride, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = at < width
    begin()
    y = tl.load(x + row * x_stride + at, mask=there, other=0.0).to(tl.float32)
    if low is not None:
        y = tl.maximum(y, tl.load(low).to(tl.float32))
    if high is not None:
        y = tl.minimum(y, tl.load(high).to(tl.float32))
    tl.store(out + row * width + at, y.to(out.dtype.element_ty), mask=there)


def clamp(x: torch.Tensor, low: torch.Tensor | None, high: torch.Tensor | None, out: torch.Tensor) -> None:
    """out = x, at least `low` and at most `high`, each of one element."""
    rows, width = out.shape
    if rows:
        _clamp[(rows, -(-width // 1024))](x, low, high, out, width, x.stride(0), BLOCK=1024, **LAUNCH)


@triton.jit
def _grid_rope(
    x, cos, sin, out, width, x_stride,
    HALF: tl.constexpr, PAIRS: tl.constexpr, INTERLEAVED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = at < width
    column = at % HALF
    rotated = there & (column < 2 * PAIRS)
    if INTERLEAVED:
        pair = column // 2
        second = column % 2 == 1
        other = tl.where(second, at - 1, at + 1)
    else:
        pair = column % PAIRS
        second = column >= PAIRS
        other = tl.where(second, at - PAIRS, at + PAIRS)
    angle = row * (2 * PAIRS) + at // HALF % 2 * PAIRS + pair
    begin()
    y = tl.load(x + row * x_stride + at, mask=there, other=0.0).to(tl.float32)
    partner = tl.load(x + row * x_stride + other, mask=rotated, other=0.0).to(tl.float32)
    c = tl.load(cos + angle, mask=rotated, other=1.0)
    s = tl.load(sin + angle, mask=rotated, other=0.0)
    y = y * c + tl.where(second, partner, -partner) * s
    tl.store(out + row * width + at, y.to(out.dtype.element_ty), mask=there)


def grid_rope(
    x: torch.Tensor,
    angles: tuple[torch.Tensor, torch.Tensor],
    out: torch.Tensor,
    half: int,
    interleaved: bool,
) -> None:
    """Rotates the halves of heads, `half` columns each, in turn by the two angles of a row: [T, 2, pairs]."""
    rows, width = out.shape
    if rows:
        _grid_rope[(rows, -(-width // 1024))](
            x, *angles, out, width, x.stride(0),
            HALF=half, PAIRS=angles[0].shape[2], INTERLEAVED=interleaved, BLOCK=1024, **LAUNCH,
        )  # fmt: skip


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
