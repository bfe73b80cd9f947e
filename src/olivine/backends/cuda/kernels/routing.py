"""Which experts a row of a mixture takes, and with which shares; one row a program."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from olivine.backends.cuda.kernels.pdl import LAUNCH, release, wait


@triton.jit
def _route(
    terms, scale, shares, chosen, experts,
    TOP_K: tl.constexpr, NORMALIZE: tl.constexpr, PARTIALS: tl.constexpr, BLOCK: tl.constexpr,
    CHOSEN: tl.constexpr,
):  # fmt: skip
    """terms are the router's partial sums, the stride from one to the next, and that of their rows. The scale
    of each expert may be None."""
    release()  # at once: what comes next has much to load
    partials, plane, stride = terms
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    there = at < experts
    wait()
    x = tl.load(partials + row * stride + at, mask=there, other=float("-inf"))
    for i in tl.static_range(1, PARTIALS):
        x += tl.load(partials + i * plane + row * stride + at, mask=there, other=0.0)
    p = tl.exp(x - tl.max(x, 0))
    p = p / tl.sum(p, 0)
    # Padding rows may be NaN, which has no largest; experts are taken all the same.
    p = tl.where(there, tl.where(p >= 0.0, p, 0.0), -1.0)
    place = tl.arange(0, CHOSEN)
    found = tl.zeros((CHOSEN,), tl.float32)
    ids = tl.zeros((CHOSEN,), tl.int32)
    for i in tl.static_range(TOP_K):
        most, best = tl.max(p, 0, return_indices=True, return_indices_tie_break_left=True)
        found = tl.where(place == i, most, found)
        ids = tl.where(place == i, best, ids)
        p = tl.where(at == best, -1.0, p)
    if NORMALIZE:
        found = found / tl.sum(found, 0)
    if scale is not None:
        found = found * tl.load(scale + ids)
    tl.store(shares + row * TOP_K + place, found, mask=place < TOP_K)
    tl.store(chosen + row * TOP_K + place, ids, mask=place < TOP_K)


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
        _route[(rows,)](
            (logits, logits.stride(0) if logits.ndim == 3 else 0, logits.stride(-2)), scale, shares, chosen,
            experts, TOP_K=top_k, NORMALIZE=normalize, PARTIALS=logits.shape[0] if logits.ndim == 3 else 1,
            BLOCK=block, CHOSEN=triton.next_power_of_2(top_k), num_warps=1 if block <= 256 else 4,
            enable_fp_fusion=False, **LAUNCH,
        )  # fmt: skip
    return shares, chosen
