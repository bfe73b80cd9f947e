"""RMS norms of whole rows, fused with the residual sum before them; one row a program."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from olivine.backends.cuda.kernels.pdl import LAUNCH, release, wait


@dataclass(frozen=True)
class NormWeight:
    """The weight of an RMS norm."""

    weight: torch.Tensor
    eps: float
    offset: float  # added to each element of the weight


@dataclass(frozen=True)
class ResidualScale:
    """What a residual sum is multiplied by: a weight of one element, if any, and a constant."""

    weight: torch.Tensor | None
    factor: float


@triton.jit
def exact_inv_rms(y, width, eps):
    """1 / sqrt(mean square + eps) over the last axis, with the same bits in every kernel and layout.

    Squares are summed as integers, on a grid that the row's largest value sets: the sum is exact, so its
    order does not matter.
    """
    axis: tl.constexpr = len(y.shape) - 1
    keep: tl.constexpr = len(y.shape) > 1
    top = tl.max(tl.abs(y), axis=axis, keep_dims=keep)
    exponent = tl.maximum(top.to(tl.int32, bitcast=True) >> 23, 24)
    grid = ((277 - exponent) << 23).to(tl.float32, bitcast=True)  # brings `top` to 2^23 or a bit more
    q = (y * grid).to(tl.int32).to(tl.int64)
    total = tl.sum(q * q, axis=axis, keep_dims=keep)
    return 1.0 / tl.sqrt(total.to(tl.float32) / grid / width / grid + eps)


@triton.jit
def _inv_rms(y, width, eps):
    return 1.0 / tl.sqrt(tl.sum(y * y, 0) / width + eps)


@triton.jit
def _add_norm(
    partials, residual, total, out, inv_rms, post, norm, scale, factor, width, plane, partial_stride,
    post_eps, post_offset,
    eps, offset,
    PARTIALS: tl.constexpr, POST: tl.constexpr, RESIDUAL: tl.constexpr, NORM: tl.constexpr,
    DEFER: tl.constexpr, SCALE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    release()  # at once: the product after it has much to load, and these programs use few resources
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    there = at < width
    if POST:
        post_w = tl.load(post + at, mask=there, other=0.0).to(tl.float32) + post_offset
    if NORM:
        w = tl.load(norm + at, mask=there, other=0.0).to(tl.float32) + offset
    wait()
    y = tl.load(partials + row * partial_stride + at, mask=there, other=0.0).to(tl.float32)
    for i in tl.static_range(1, PARTIALS):
        y += tl.load(partials + i * plane + row * partial_stride + at, mask=there, other=0.0)
    if POST:
        y = y * _inv_rms(y, width, post_eps) * post_w
    if RESIDUAL:
        y = tl.load(residual + row * width + at, mask=there, other=0.0) + y
        if SCALE == 1:
            y = y * (tl.load(scale).to(tl.float32) * factor)
        elif SCALE == 2:
            y = y * factor
        tl.store(total + row * width + at, y, mask=there)
    if NORM:
        rms = _inv_rms(y, width, eps)
        y = y * w
        if DEFER:
            tl.store(inv_rms + row, rms)
        else:
            y = y * rms
        tl.store(out + row * width + at, y.to(out.dtype.element_ty), mask=there)


def add_norm(
    partials: torch.Tensor,
    *,
    residual: torch.Tensor | None = None,
    total: torch.Tensor | None = None,
    post_norm: NormWeight | None = None,
    norm: NormWeight | None = None,
    out: torch.Tensor | None = None,
    inv_rms: torch.Tensor | None = None,
    scale: ResidualScale | None = None,
) -> None:
    """y = Σ partials [splits, T, D] (or [T, D]), normalized by `post_norm`; total = (residual + y) · scale;
    out = norm(total).

    With `inv_rms`, that tensor gets 1 / rms of each row and `out` is not multiplied by it: the product that
    reads `out` multiplies its result instead (GEMV's `inv_rms`).
    """
    count = partials.shape[0] if partials.ndim == 3 else 1
    target = total if total is not None else out
    assert target is not None
    height, width = target.shape
    if height == 0:
        return
    block = triton.next_power_of_2(width)
    _add_norm[(height,)](
        partials,
        partials if residual is None else residual,
        partials if total is None else total,
        partials if out is None else out,
        partials if inv_rms is None else inv_rms,
        partials if post_norm is None else post_norm.weight,
        partials if norm is None else norm.weight,
        partials if scale is None or scale.weight is None else scale.weight,
        1.0 if scale is None else scale.factor,
        width,
        partials.stride(0) if partials.ndim == 3 else 0,
        partials.stride(-2),
        0.0 if post_norm is None else post_norm.eps,
        0.0 if post_norm is None else post_norm.offset,
        0.0 if norm is None else norm.eps,
        0.0 if norm is None else norm.offset,
        PARTIALS=count,
        POST=post_norm is not None,
        RESIDUAL=residual is not None,
        NORM=norm is not None,
        DEFER=inv_rms is not None,
        SCALE=0 if scale is None else 2 if scale.weight is None else 1,
        BLOCK=block,
        num_warps=4 if block <= 2048 else 8,
        enable_fp_fusion=False,
        **LAUNCH,
    )
