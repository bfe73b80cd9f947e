"""Residual stream and norms, a row a program: sum up, join the stream, normalize, in one pass."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from olivine.backends.cuda.kernels.launches import LAUNCH, release, wait


@dataclass(frozen=True)
class NormWeight:
    """The weight of an RMS norm."""

    weight: torch.Tensor
    eps: float
    offset: float


@dataclass(frozen=True)
class Scaled:
    """What a sum is multiplied by: a weight of one element, if any, and a constant."""

    weight: torch.Tensor | None
    factor: float


@triton.jit
def factor_of(y, width, eps):
    """By what a norm multiplies each row of a tile, or a row with one axis: 1 / sqrt(mean square + eps).

    Squares are summed as whole numbers of a grid that the row's largest value sets: the sum is exact, and so
    the same in any order, and in every kernel.
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
def _rms_factor(y, width, eps):
    return 1.0 / tl.sqrt(tl.sum(y * y, 0) / width + eps)


@triton.jit
def _join(
    terms, stream, total, out, factors, post, norm, scale, factor, width, plane, term_stride,
    post_eps, post_offset,
    eps, offset,
    TERMS: tl.constexpr, POST: tl.constexpr, STREAM: tl.constexpr, NORM: tl.constexpr, DEFER: tl.constexpr,
    SCALE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    release()  # at once: the product after it has much to fetch, and these programs take little room
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    there = at < width
    if POST:
        post_w = tl.load(post + at, mask=there, other=0.0).to(tl.float32) + post_offset
    if NORM:
        w = tl.load(norm + at, mask=there, other=0.0).to(tl.float32) + offset
    wait()
    y = tl.load(terms + row * term_stride + at, mask=there, other=0.0).to(tl.float32)
    for term in tl.static_range(1, TERMS):
        y += tl.load(terms + term * plane + row * term_stride + at, mask=there, other=0.0)
    if POST:
        y = y * _rms_factor(y, width, post_eps) * post_w
    if STREAM:
        y = tl.load(stream + row * width + at, mask=there, other=0.0) + y
        if SCALE == 1:
            y = y * (tl.load(scale).to(tl.float32) * factor)
        elif SCALE == 2:
            y = y * factor
        tl.store(total + row * width + at, y, mask=there)
    if NORM:
        rms = _rms_factor(y, width, eps)
        y = y * w
        if DEFER:
            tl.store(factors + row, rms)
        else:
            y = y * rms
        tl.store(out + row * width + at, y.to(out.dtype.element_ty), mask=there)


def join(
    terms: torch.Tensor,
    *,
    stream: torch.Tensor | None = None,
    total: torch.Tensor | None = None,
    post: NormWeight | None = None,
    norm: NormWeight | None = None,
    out: torch.Tensor | None = None,
    factors: torch.Tensor | None = None,
    scale: Scaled | None = None,
) -> None:
    """y = Σ terms [splits, T, D] (or [T, D]), normalized by `post`; total = stream + y; out = norm(total).

    With `scale`, total is multiplied by it.

    With `factors`, those get 1 / rms of each row and `out` lacks it: a product with `out` is then multiplied.
    """
    count = terms.shape[0] if terms.ndim == 3 else 1
    target = total if total is not None else out
    assert target is not None
    height, width = target.shape
    if height == 0:
        return
    block = triton.next_power_of_2(width)
    _join[(height,)](
        terms,
        terms if stream is None else stream,
        terms if total is None else total,
        terms if out is None else out,
        terms if factors is None else factors,
        terms if post is None else post.weight,
        terms if norm is None else norm.weight,
        terms if scale is None or scale.weight is None else scale.weight,
        1.0 if scale is None else scale.factor,
        width,
        terms.stride(0) if terms.ndim == 3 else 0,
        terms.stride(-2),
        0.0 if post is None else post.eps,
        0.0 if post is None else post.offset,
        0.0 if norm is None else norm.eps,
        0.0 if norm is None else norm.offset,
        TERMS=count,
        POST=post is not None,
        STREAM=stream is not None,
        NORM=norm is not None,
        DEFER=factors is not None,
        SCALE=0 if scale is None else 2 if scale.weight is None else 1,
        BLOCK=block,
        num_warps=4 if block <= 2048 else 8,
        enable_fp_fusion=False,
        **LAUNCH,
    )
