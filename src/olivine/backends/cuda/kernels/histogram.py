"""Where a filter cuts a row, without sorting it: a histogram of its z, in bins of equal width.

The cut of top-p, or of a large top-k, lies in one bin. All tokens above that bin are kept and all below
it are not; only its own tokens, few as a rule, have to be put in order (kernels/sampling.py). Slices hold
integers (numbers of tokens, or masses in units of 2⁻³²), whose sums are the same in any order.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from olivine.backends.cuda.kernels.noise import mass
from olivine.backends.cuda.kernels.pdl import LAUNCH, begin

BINS = 1 << 14  # 512 for each unit of z, from 0 to -32
NOTHING, TOKENS, MASS = 0, 1, 2  # what a row's histogram counts

_BINS: tl.constexpr = tl.constexpr(BINS)
_NOTHING: tl.constexpr = tl.constexpr(NOTHING)
_TOKENS: tl.constexpr = tl.constexpr(TOKENS)
_MASS: tl.constexpr = tl.constexpr(MASS)


@triton.jit
def bin_of(z):
    """Of z ≤ 0. The last bin has everything below -32: no mass, and no chance to be drawn, as the noise
    lies between -2.9 and 22.9."""
    return (tl.maximum(z, (1 - _BINS) / 512) * -512.0).to(tl.int32)


@triton.jit
def clear(histogram, BLOCK: tl.constexpr):
    """Of one row."""
    for start in range(0, _BINS, BLOCK):
        tl.store(histogram + start + tl.arange(0, BLOCK), tl.zeros((BLOCK,), tl.int64))


@triton.jit
def early_limit(V):
    """The tokens whose logits are loaded before it is known that they matter: all, if the logits of the rows
    are few and so in the L2 cache, or none."""
    return tl.where(tl.num_programs(1) <= 8, V, 0)


@triton.jit
def _count(logits, how, space, V, chunks, CHUNK: tl.constexpr):
    row = tl.program_id(1)
    chunk = tl.program_id(0)
    at = chunk * CHUNK + tl.arange(0, CHUNK)
    t = tl.load(how.temperature + row)
    begin()
    early = early_limit(V)
    x = tl.load(logits + row.to(tl.int64) * V + at, mask=at < early, other=float("-inf"))
    counted = tl.load(space.counted + row)
    peak = tl.load(space.peak + row)
    highest = tl.load(space.maxima + row * chunks + chunk)
    if (counted != _NOTHING) & (bin_of(tl.div_rn(highest - peak, t)) < _BINS - 1):
        if early == 0:
            x = tl.load(logits + row.to(tl.int64) * V + at, mask=at < V, other=float("-inf"))
        z = tl.div_rn(x - peak, t)
        place = bin_of(z)
        weight = tl.where(counted == _MASS, mass(z), 1)
        tl.atomic_add(
            space.histogram + row * _BINS + place, weight,
            mask=(place < _BINS - 1) & (weight > 0), sem="relaxed",
        )  # fmt: skip


@triton.jit
def _locate(how, space, GROUPS: tl.constexpr):
    row = tl.program_id(0)
    wanted = tl.load(how.top_k + row).to(tl.int64)
    p = tl.load(how.top_p + row)
    begin()
    counted = tl.load(space.counted + row)
    if counted != _NOTHING:
        size: tl.constexpr = _BINS // GROUPS
        histogram = space.histogram + row * _BINS
        g = tl.arange(0, GROUPS)
        i = tl.arange(0, size)
        groups = tl.sum(tl.load(histogram + g[:, None] * size + i[None, :]), 1)
        if counted == _MASS:
            wanted = tl.ceil(p * tl.sum(groups, 0).to(tl.float64)).to(tl.int64)
        # The group, and in it the bin, with which it is reached. Fewer than k tokens may be above -32.
        short = tl.cumsum(groups, 0) < wanted
        group = tl.minimum(tl.sum(short.to(tl.int32), 0), GROUPS - 1)
        above = tl.sum(tl.where(g < group, groups, 0), 0)
        bins = tl.load(histogram + group * size + i)
        short = above + tl.cumsum(bins, 0) < wanted
        place = group * size + tl.sum(short.to(tl.int32), 0)
        above += tl.sum(tl.where(short, bins, 0), 0)
        tl.store(space.listed_to + row, tl.minimum(place, _BINS - 2))
        if counted == _MASS:
            tl.store(space.kept_above + row, place)
            tl.store(space.wanted + row, wanted - above)


def cut(logits: torch.Tensor, how: object, space: object, chunk: int, chunks: int) -> None:
    """Finds the bin where each row is cut, if its histogram counts anything. `how` and `space` are those of
    kernels/sampling.py."""
    rows, vocabulary = logits.shape
    _count[(chunks, rows)](
        logits, how, space, vocabulary, chunks, CHUNK=chunk, enable_fp_fusion=False, **LAUNCH
    )
    _locate[(rows,)](how, space, GROUPS=256, num_warps=16, **LAUNCH)
