"""Kernels of towers: layer norms, limits, rotary embeddings of two dimensions, attention to the last rows."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from olivine.backends.cuda.kernels.activations import limited, tanh
from olivine.backends.cuda.kernels.pdl import LAUNCH, begin

_ELEMENTS = 4096  # that a program has at most, where a row or group is not longer


@triton.jit
def _layer_norm(
    x, branch, total, weight, bias, out, eps, groups,
    SIZE: tl.constexpr, BLOCK: tl.constexpr, AT_ONCE: tl.constexpr,
):  # fmt: skip
    """A program has AT_ONCE groups of SIZE columns. bias may be None, and so may branch."""
    group = tl.program_id(0) * AT_ONCE + tl.arange(0, AT_ONCE)
    column = tl.arange(0, BLOCK)[None, :]
    at = group.to(tl.int64)[:, None] * SIZE + column
    inside = column < SIZE
    there = inside & (group < groups)[:, None]
    begin()
    y = tl.load(x + at, mask=there, other=0.0).to(tl.float32)
    if branch is not None:
        y += tl.load(branch + at, mask=there, other=0.0).to(tl.float32)
        tl.store(total + at, y, mask=there)
    y = tl.where(inside, y - tl.sum(y, 1, keep_dims=True) / SIZE, 0.0)
    y = y / tl.sqrt(tl.sum(y * y, 1, keep_dims=True) / SIZE + eps)
    y = y * tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    if bias is not None:
        y += tl.load(bias + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + at, y.to(out.dtype.element_ty), mask=there)


def layer_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    out: torch.Tensor,
    eps: float,
    branch: torch.Tensor | None = None,
    total: torch.Tensor | None = None,
) -> None:
    """Of each group of as many columns as the weight has; x is contiguous. With a branch, of the sum of both,
    which goes to `total`."""
    size = len(weight)
    if len(x):
        block, groups = triton.next_power_of_2(size), x.numel() // size
        at_once = 1 if size == x.shape[1] else max(1, _ELEMENTS // block)
        _layer_norm[(-(-groups // at_once),)](
            x, branch, total, weight, bias, out, eps, groups,
            SIZE=size, BLOCK=block, AT_ONCE=at_once,
            num_warps=min(8, max(1, block * at_once // 256)), **LAUNCH,
        )  # fmt: skip


@triton.jit
def _places(rows, width, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Row numbers [ROWS, 1] and columns [1, BLOCK] of a program, and which of them there are."""
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS))[:, None]
    column = (tl.program_id(1) * BLOCK + tl.arange(0, BLOCK))[None, :]
    return row.to(tl.int64), column, (row < rows) & (column < width)


def _blocks(rows: int, width: int) -> tuple[tuple[int, int], dict[str, int]]:
    """The programs for [rows, width], and what each has."""
    block = min(1024, triton.next_power_of_2(width))
    at_once = _ELEMENTS // block if rows >= 16 else 1
    return (-(-rows // at_once), -(-width // block)), {"ROWS": at_once, "BLOCK": block}


@triton.jit
def _clamp(x, limits, out, rows, width, x_stride, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    row, column, there = _places(rows, width, ROWS, BLOCK)
    begin()
    y = tl.load(x + row * x_stride + column, mask=there, other=0.0).to(tl.float32)
    tl.store(out + row * width + column, limited(y, limits).to(out.dtype.element_ty), mask=there)


def clamp(x: torch.Tensor, limits: torch.Tensor, out: torch.Tensor) -> None:
    """out = x, at least the first and at most the second of the limits."""
    if x.is_contiguous() and x.numel() % 1024 == 0:
        x, out = x.view(-1, 1024), out.view(-1, 1024)  # whole blocks
    rows, width = out.shape
    if rows:
        grid, blocks = _blocks(rows, width)
        _clamp[grid](x, limits, out, rows, width, x.stride(0), **blocks, **LAUNCH)


@triton.jit
def _grid_rope(
    x, cos, sin, out, rows, width, x_stride,
    HALF: tl.constexpr, PAIRS: tl.constexpr, INTERLEAVED: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row, at, there = _places(rows, width, ROWS, BLOCK)
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
        grid, blocks = _blocks(rows, width)
        _grid_rope[grid](
            x, *angles, out, rows, width, x.stride(0),
            HALF=half, PAIRS=angles[0].shape[2], INTERLEAVED=interleaved, **blocks, **LAUNCH,
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
