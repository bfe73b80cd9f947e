"""Residual stream and norms, a row a program: sum up, join the stream, normalize, in one pass."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from olivine.backends.cuda.kernels.launches import LAUNCH, begin


@dataclass(frozen=True)
class NormWeight:
    """The weight of an RMS norm over a whole row."""

    weight: torch.Tensor
    eps: float
    offset: float


@triton.jit
def normalize(y, weight, at, there, width, eps, offset):
    mean = tl.sum(y * y, axis=0) / width
    w = tl.load(weight + at, mask=there, other=0.0).to(tl.float32) + offset
    return y * (1.0 / tl.sqrt(mean + eps)) * w


@triton.jit
def _join(
    terms, stream, rows, total, out, post, norm, width, plane, term_stride, post_eps, post_offset, eps,
    offset,
    TERMS: tl.constexpr, POST: tl.constexpr, STREAM: tl.constexpr, NORM: tl.constexpr, TAKE: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    there = at < width
    begin()
    source = row
    if TAKE:
        source = tl.load(rows + row).to(tl.int64)
    y = tl.load(terms + source * term_stride + at, mask=there, other=0.0).to(tl.float32)
    for term in tl.static_range(1, TERMS):
        y += tl.load(terms + term * plane + source * term_stride + at, mask=there, other=0.0)
    if POST:
        y = normalize(y, post, at, there, width, post_eps, post_offset)
    if STREAM:
        y += tl.load(stream + row * width + at, mask=there, other=0.0)
        tl.store(total + row * width + at, y, mask=there)
    if NORM:
        y = normalize(y, norm, at, there, width, eps, offset)
        tl.store(out + row * width + at, y.to(out.dtype.element_ty), mask=there)


def join(
    terms: torch.Tensor,
    *,
    stream: torch.Tensor | None = None,
    total: torch.Tensor | None = None,
    post: NormWeight | None = None,
    norm: NormWeight | None = None,
    out: torch.Tensor | None = None,
    rows: torch.Tensor | None = None,
) -> None:
    """y = Σ terms [splits, T, D] (or [T, D]), normalized by `post`; total = stream + y; out = norm(total).

    With `rows`, the result's row i is of input row rows[i].
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
        terms if rows is None else rows,
        terms if total is None else total,
        terms if out is None else out,
        terms if post is None else post.weight,
        terms if norm is None else norm.weight,
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
        TAKE=rows is not None,
        BLOCK=block,
        num_warps=4 if block <= 2048 else 8,
        **LAUNCH,
    )
