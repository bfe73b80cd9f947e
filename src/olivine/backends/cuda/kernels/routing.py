"""Which experts a row of a mixture takes, and with which shares; one row a program."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from olivine.backends.cuda.kernels.norm import add_partials, load_partials, partial_sums
from olivine.backends.cuda.kernels.pdl import LAUNCH, release, wait


@triton.jit
def _route(
    terms, scale, shares, chosen, experts,
    TOP_K: tl.constexpr, NORMALIZE: tl.constexpr, PARTIALS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """terms are the router's partial sums, as in `load_partials`. The scale of each expert may be None."""
    release()  # at once: what comes next has much to load
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    there = at < experts
    if scale is not None:
        scales = tl.load(scale + at, mask=there, other=0.0)
    wait()
    x = add_partials(load_partials(terms, row, at, there, PARTIALS))
    x = tl.where(there, x, float("-inf"))
    p = tl.exp(x - tl.max(x, 0))
    p = p / tl.sum(p, 0)
    # Padding rows may be NaN, which has no largest; experts are taken all the same.
    p = tl.where(there, tl.where(p >= 0.0, p, 0.0), -1.0)
    # Bits of floats from zero on are in their order, and a warp has the largest integer in one instruction.
    left = p.to(tl.int32, bitcast=True)
    place = tl.full((BLOCK,), -1, tl.int32)
    for i in tl.static_range(TOP_K):
        best = tl.min(tl.where(left == tl.max(left, 0), at, BLOCK), 0)
        place = tl.where(at == best, i, place)
        left = tl.where(at == best, -1, left)
    is_chosen = place >= 0
    if NORMALIZE:
        p = p / tl.sum(tl.where(is_chosen, p, 0.0), 0)
    if scale is not None:
        p = p * scales
    tl.store(shares + row * TOP_K + place, p, mask=is_chosen)
    tl.store(chosen + row * TOP_K + place, at, mask=is_chosen)


def route(
    logits: torch.Tensor, top_k: int, *, normalize: bool, scale: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """The shares and the ids of the experts that each row takes, [T · top_k], the largest share first; of
    equal ones the lowest id.

    logits [T, E], or several sums that are added up [splits, T, E].
    """
    rows, experts = logits.shape[-2:]
    shares = torch.empty(rows * top_k, device=logits.device)
    chosen = torch.empty(rows * top_k, dtype=torch.int32, device=logits.device)
    if rows:
        block = triton.next_power_of_2(experts)
        terms, sums = partial_sums(logits)
        _route[(rows,)](
            terms, scale, shares, chosen, experts,
            TOP_K=top_k, NORMALIZE=normalize, PARTIALS=sums, BLOCK=block,
            num_warps=1 if block <= 256 else 4, enable_fp_fusion=False, **LAUNCH,
        )  # fmt: skip
    return shares, chosen
