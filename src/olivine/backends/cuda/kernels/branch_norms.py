"""Residual sums of layers with parallel branches, with all the norms around them; one row a program."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl

from olivine.backends.cuda.kernels.norm import (
    NormWeight,
    ResidualScale,
    add_partials,
    block_of,
    columns,
    inv_rms_of,
    load_partials,
    norm_weight,
    partial_sums,
)
from olivine.backends.cuda.kernels.pdl import LAUNCH, keep_loads_early, release, wait


@triton.jit(do_not_specialize=["M"])
def _branch_norms(
    first, second, residual, total, first_norm, second_norm, post_norm, scale, factor, norms, outs, M,
    WIDTH: tl.constexpr, FIRST: tl.constexpr, SECOND: tl.constexpr, NORMS: tl.constexpr, BLOCK: tl.constexpr,
    WARPS: tl.constexpr,
):  # fmt: skip
    """Branches are terms as in `load_partials`, norms `NormWeight`. Those before the sum may be None;
    first_norm and second_norm are there if a second branch is. The factor is None where nothing is scaled,
    and scale where a constant does."""
    release()  # at once: the product after it has much to load, and these programs use few resources
    row = tl.program_id(0).to(tl.int64)
    at = columns(BLOCK)
    there = at < WIDTH
    if second is not None:
        first_w = norm_weight(first_norm, at, there)
        second_w = norm_weight(second_norm, at, there)
    if post_norm is not None:
        post_w = norm_weight(post_norm, at, there)
    w = ()
    for i in tl.static_range(NORMS):
        w = w + (norm_weight(norms[i], at, there),)
    if scale is not None:
        factor = tl.load(scale).to(tl.float32) * factor
    wait()
    parts = load_partials(first, row, at, there, FIRST)
    if second is not None:
        second_parts = load_partials(second, row, at, there, SECOND)
    x = tl.load(residual + row * WIDTH + at, mask=there, other=0.0)
    keep_loads_early(M)
    y = add_partials(parts)
    if second is not None:
        z = add_partials(second_parts)
        y = y * inv_rms_of(y, WIDTH, first_norm.eps, WARPS) * first_w
        y += z * inv_rms_of(z, WIDTH, second_norm.eps, WARPS) * second_w
    if post_norm is not None:
        y = y * inv_rms_of(y, WIDTH, post_norm.eps, WARPS) * post_w
    y = x + y
    if factor is not None:
        y = y * factor
    tl.store(total + row * WIDTH + at, y, mask=there)
    if NORMS > 0:
        y = y * inv_rms_of(y, WIDTH, norms[0].eps, WARPS)
        for i in tl.static_range(NORMS):
            tl.store(outs[i] + row * WIDTH + at, (y * w[i]).to(outs[i].dtype.element_ty), mask=there)


def branch_norms(
    branches: Sequence[torch.Tensor],
    residual: torch.Tensor,
    total: torch.Tensor,
    *,
    branch_norms: tuple[NormWeight, NormWeight] | None = None,
    post_norm: NormWeight | None = None,
    scale: ResidualScale | None = None,
    norms: Sequence[NormWeight] = (),
    outs: Sequence[torch.Tensor] = (),
) -> None:
    """y is the sum of the branches, of two of them normalized by `branch_norms`, and then by `post_norm`;
    total = (residual + y) · scale; outs are norms of the total, all of the same eps.

    A branch is [T, D], or partial sums [splits, T, D].
    """
    height, width = total.shape
    if height == 0:
        return
    first, first_sums = partial_sums(branches[0])
    second, second_sums = partial_sums(branches[1]) if len(branches) == 2 else (None, None)
    before = branch_norms or (None, None)
    block, warps = block_of(width)
    _branch_norms[(height,)](
        first, second, residual, total, *before, post_norm,
        None if scale is None else scale.weight, None if scale is None else scale.factor,
        tuple(norms) or None, tuple(outs) or None, height,
        WIDTH=width, FIRST=first_sums, SECOND=second_sums, NORMS=len(norms), BLOCK=block, WARPS=warps,
        num_warps=warps, enable_fp_fusion=False, **LAUNCH,
    )  # fmt: skip
