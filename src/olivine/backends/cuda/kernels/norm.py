"""RMS norms of whole rows, fused with the residual sum before them; one row a program."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from olivine.backends.cuda.kernels.activations import limited
from olivine.backends.cuda.kernels.pdl import LAUNCH, keep_loads_early, release, wait


class NormWeight(NamedTuple):
    """The weight of an RMS norm."""

    weight: torch.Tensor
    eps: float
    offset: float  # added to each element of the weight


class ResidualScale(NamedTuple):
    """What a residual sum is multiplied by: a weight of one element, if any, and a constant."""

    weight: torch.Tensor | None
    factor: float


@triton.jit
def exact_sum(x, more):
    """The sum over the last axis of x, and of `more` too, if it is not None: of no more than 1,024 numbers.

    Numbers are summed as integers, on a grid that the row's largest one sets: the sum has the same bits in
    every order, and so in every kernel and layout.
    """
    AXIS: tl.constexpr = len(x.shape) - 1
    KEEP: tl.constexpr = AXIS > 0
    tl.static_assert(x.shape[AXIS] * (1 if more is None else 2) <= 1024)  # or the integers could overflow
    # Bits of floats from zero on are in their order, and a warp has the largest integer in one instruction.
    bits = tl.abs(x).to(tl.int32, bitcast=True)
    if more is not None:
        bits = tl.maximum(bits, tl.abs(more).to(tl.int32, bitcast=True))
    exponent = tl.maximum(tl.max(bits, axis=AXIS, keep_dims=KEEP) >> 23, 24)
    grid = ((273 - exponent) << 23).to(tl.float32, bitcast=True)  # brings the largest to 2^19 or a bit more
    steps = _nearest(x, grid)
    if more is not None:
        steps += _nearest(more, grid)
    step = ((exponent - 19) << 23).to(tl.float32, bitcast=True)
    return tl.sum(steps, axis=AXIS, keep_dims=KEEP).to(tl.float32) * step


@triton.jit
def _nearest(x, grid):
    """The integer nearest to x · grid, of less than 2^22: the low bits of its sum with 1.5 · 2^23."""
    return tl.fma(x, grid, 12582912.0).to(tl.int32, bitcast=True) - 0x4B400000


@triton.jit
def exact_inv_rms(y, more, width, eps):
    """1 / sqrt(mean square + eps), of what `exact_sum` takes."""
    total = exact_sum(y * y, None if more is None else more * more)
    return tl.rsqrt(total / width + eps)


@triton.jit
def inv_rms_of(y, WIDTH: tl.constexpr, eps, WARPS: tl.constexpr):
    return tl.rsqrt(row_sum(y * y, WARPS) * (1.0 / WIDTH) + eps)


def block_of(width: int) -> tuple[int, int]:
    """Columns of a program, and its warps. A decode step waits for every norm: many warps load and add up a
    row sooner."""
    block = max(8, triton.next_power_of_2(width))
    return block, 8 if block <= 1024 else 16


@triton.jit
def columns(BLOCK: tl.constexpr):
    """Those of a row. The compiler is told that four of them are neighbors, and so a lane has four of each
    value, of bfloat16 too; with eight, values would have to be exchanged before they are stored."""
    return tl.max_contiguous(tl.arange(0, BLOCK), 4)


@triton.jit
def row_sum(x, WARPS: tl.constexpr):
    """The sum of a row in 8 or 16 warps: each adds up its own columns, and then every lane adds up the sums
    of all warps. (`tl.sum` has one warp add these up, and all others wait for it a second time.)"""
    TURNS: tl.constexpr = max(1, x.shape[0] // (WARPS * 128))  # a warp has 128 columns in each, or fewer
    x = tl.sum(tl.reshape(x, (TURNS, WARPS, x.shape[0] // (TURNS * WARPS))), 0)
    x = tl.sum(x, 1)
    if WARPS == 16:
        even, odd = tl.split(tl.reshape(x, (8, 2)))
        x = even + odd
    even, odd = tl.split(tl.reshape(x, (2, 2, 2)))
    even, odd = tl.split(even + odd)
    even, odd = tl.split(even + odd)
    return even + odd


def partial_sums(x: torch.Tensor) -> tuple[tuple[torch.Tensor, int], tuple[int, int]]:
    """Partial sums [splits, T, D], or x [T, D], as kernels take them: with the stride of rows; and, to be
    compiled in, how many they are and the stride from one to the next. (Those of a row lie one behind the
    other, so that this stride does not depend on the batch, and is free in the address of a load.)"""
    return (x, x.stride(-2)), (x.shape[0], x.stride(0)) if x.ndim == 3 else (1, 0)


@triton.jit
def load_partials(terms, row, at, there, PARTIALS: tl.constexpr):
    """Columns of each of a row's `partial_sums`, to be added up in order."""
    partials, stride = terms
    found = ()
    COUNT: tl.constexpr = PARTIALS[0]
    PLANE: tl.constexpr = PARTIALS[1]
    for i in tl.static_range(COUNT):
        found = found + (tl.load(partials + row * stride + at + i * PLANE, mask=there, other=0.0),)
    return found


@triton.jit
def add_partials(parts):
    y = parts[0].to(tl.float32)
    for i in tl.static_range(1, len(parts)):
        y += parts[i]
    return y


@triton.jit
def norm_weight(norm, at, there):
    """Elements of a norm's weight, in float32."""
    return tl.load(norm.weight + at, mask=there, other=0.0).to(tl.float32) + norm.offset


@triton.jit(do_not_specialize=["M"])
def _add_norm(
    terms, residual, total, out, rounded, inv_rms, post_norm, norm, scale, factor, branch_limits, limits, M,
    WIDTH: tl.constexpr, PARTIALS: tl.constexpr, BLOCK: tl.constexpr, WARPS: tl.constexpr,
):  # fmt: skip
    """terms are as in `load_partials`. Norms are `NormWeight`; each may be None, and so may residual,
    inv_rms, limits, and each of rounded, the copies of total and out. The factor is None where nothing is
    scaled, and scale where a constant does. (Triton 3.6 takes no tuple of None and a number.)"""
    release()  # at once: the product after it has much to load, and these programs use few resources
    row = tl.program_id(0).to(tl.int64)
    at = columns(BLOCK)
    there = at < WIDTH
    if post_norm is not None:
        post_w = norm_weight(post_norm, at, there)
    if norm is not None:
        w = norm_weight(norm, at, there)
    if scale is not None:
        factor = tl.load(scale).to(tl.float32) * factor
    wait()
    parts = load_partials(terms, row, at, there, PARTIALS)
    if residual is not None:
        x = tl.load(residual + row * WIDTH + at, mask=there, other=0.0)
    keep_loads_early(M)
    y = add_partials(parts)
    if branch_limits is not None:  # which need not have 0 between them
        y = tl.where(there, limited(y, branch_limits), 0.0)
    if post_norm is not None:
        y = y * inv_rms_of(y, WIDTH, post_norm.eps, WARPS) * post_w
    if residual is not None:
        y = x + y
        if factor is not None:
            y = y * factor
        tl.store(total + row * WIDTH + at, y, mask=there)
        if rounded[0] is not None:
            tl.store(rounded[0] + row * WIDTH + at, y.to(tl.bfloat16), mask=there)
    if norm is not None:
        rms = inv_rms_of(y, WIDTH, norm.eps, WARPS)
        y = y * w
        if inv_rms is not None:
            tl.store(inv_rms + row, rms)
        else:
            y = y * rms
        y = limited(y, limits)
        tl.store(out + row * WIDTH + at, y.to(out.dtype.element_ty), mask=there)
        if rounded[1] is not None:
            tl.store(rounded[1] + row * WIDTH + at, y.to(tl.bfloat16), mask=there)


def add_norm(
    partials: torch.Tensor,
    *,
    residual: torch.Tensor | None = None,
    total: torch.Tensor | None = None,
    post_norm: NormWeight | None = None,
    norm: NormWeight | None = None,
    out: torch.Tensor | None = None,
    rounded: tuple[torch.Tensor | None, torch.Tensor | None] = (None, None),
    inv_rms: torch.Tensor | None = None,
    scale: ResidualScale | None = None,
    branch_limits: torch.Tensor | None = None,
    limits: torch.Tensor | None = None,
) -> None:
    """y = Σ partials [splits, T, D] (or [T, D]), normalized by `post_norm`; total = (residual + y) · scale;
    out = norm(total). `rounded` are copies of total and out in bfloat16. `branch_limits` are those of the sum
    of partials, `limits` those of out.

    With `inv_rms`, that tensor gets 1 / rms of each row and `out` is not multiplied by it: the product that
    reads `out` multiplies its result instead (GEMV's `inv_rms`).
    """
    target = total if total is not None else out
    assert target is not None
    height, width = target.shape
    if height == 0:
        return
    block, warps = block_of(width)
    terms, sums = partial_sums(partials)
    _add_norm[(height,)](
        terms, residual, total, out, rounded, inv_rms, post_norm, norm,
        None if scale is None else scale.weight, None if scale is None else scale.factor,
        branch_limits, limits, height,
        WIDTH=width, PARTIALS=sums, BLOCK=block, WARPS=warps,
        num_warps=warps, enable_fp_fusion=False, **LAUNCH,
    )  # fmt: skip
