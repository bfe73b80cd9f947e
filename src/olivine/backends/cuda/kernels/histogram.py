"""Where a filter cuts a row, without sorting it: a histogram of its z, in bins of equal width.

The cut of top-p, or of a large top-k, lies in one bin. All tokens above that bin are kept and all below
it are not; only its own tokens, few as a rule, have to be put in order (kernels/sampling.py). Bins hold
integers (numbers of tokens, or masses in units of 2⁻³²), whose sums are the same in any order. Tokens far
below the cut of top-p are added up before: most of a vocabulary has no bins of its own.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from olivine.backends.cuda.kernels.advance import OPEN
from olivine.backends.cuda.kernels.candidates import early_limit
from olivine.backends.cuda.kernels.noise import mass, share_of
from olivine.backends.cuda.kernels.pdl import LAUNCH, begin

BINS = 1 << 14  # 512 for each unit of z, from 0 to -32
NOTHING, TOKENS, MASS = 0, 1, 2  # what a row's histogram counts

_BINS: tl.constexpr = tl.constexpr(BINS)
_GROUPS: tl.constexpr = tl.constexpr(256)  # of bins, whose sums are searched first
_SIZE: tl.constexpr = tl.constexpr(BINS // 256)
_OPEN: tl.constexpr = tl.constexpr(OPEN)
_NOTHING: tl.constexpr = tl.constexpr(NOTHING)
_TOKENS: tl.constexpr = tl.constexpr(TOKENS)
_MASS: tl.constexpr = tl.constexpr(MASS)


@triton.jit
def bin_of(z):
    """Of z ≤ 0. The last bin is that of everything below -32, which has no mass, and no chance to be drawn,
    as the noise lies between -2.9 and 22.9."""
    return (tl.maximum(z, (1 - _BINS) / 512) * -512.0).to(tl.int32)


@triton.jit
def counted_of(k, p, t, V, chunks):
    """What the histogram of a row counts, as `needs_histogram` (kernels/sampling.py) says."""
    counted = tl.where(p < 1.0, _MASS, _NOTHING)
    counted = tl.where((k > 0) & (k < V), tl.where(k > chunks, _TOKENS, _NOTHING), counted)
    return tl.where(t > 0, counted, _NOTHING)


@triton.jit
def clear(histogram, chunk, SIZE: tl.constexpr):
    """A chunk's share of the bins of a row."""
    i = chunk * SIZE + tl.arange(0, SIZE)
    tl.store(histogram + i, tl.zeros((SIZE,), tl.int64), mask=i < _BINS)


@triton.jit
def _lowest_cut(counted, p, V):
    """The row is not cut below this z.

    The likeliest token alone has a mass of 1, and top-p leaves out 1 - p of all of it. A token below this z
    has less than (1 - p) / 2V, and by rounding half a unit more: above -20, where (1 - p) / 2V is more than
    eight units, V such tokens have less than what is left out.
    """
    lowest = tl.log((1.0 - p) * 0.5 / V).to(tl.float32)
    return tl.where((counted == _MASS) & (lowest > -20.0), lowest, -32.0)


@triton.jit
def _count(logits, how, space, ends, V, chunks, CHUNK: tl.constexpr, CHUNKS: tl.constexpr):
    row = tl.program_id(1)
    chunk = tl.program_id(0)
    at = chunk * CHUNK + tl.arange(0, CHUNK)
    c = tl.arange(0, CHUNKS)
    k, p = tl.load(how.top_k + row), tl.load(how.top_p + row)
    t = tl.load(how.temperature + row)
    counted = counted_of(k, p, t, V, chunks)
    lowest = _lowest_cut(counted, p, V)
    begin()
    early = early_limit(V)
    x = tl.load(logits + row.to(tl.int64) * V + at, mask=at < early, other=float("-inf"))
    m = tl.load(space.maxima + row * chunks + c, mask=c < chunks, other=float("-inf"))
    highest = tl.load(space.maxima + row * chunks + chunk)
    end = tl.load(ends + row)
    if (counted != _NOTHING) & (end == _OPEN):
        peak = tl.max(m, 0)
        if bin_of(tl.div_rn(highest - peak, t)) < _BINS - 1:
            if early == 0:
                x = tl.load(logits + row.to(tl.int64) * V + at, mask=at < V, other=float("-inf"))
            z = tl.div_rn(x - peak, t)
            place = bin_of(z)
            there = (z <= 0.0) & (place < _BINS - 1)  # no NaN
            weight = tl.where(there, tl.where(counted == _MASS, mass(z), 1), 0)
            near = (weight > 0) & (z >= lowest)
            bins = space.histogram + row * _BINS
            tl.atomic_add(bins + place, weight, mask=near, sem="relaxed")
            rest = tl.sum(tl.where(near, 0, weight), 0)  # into one bin that the cut is not in
            tl.atomic_add(bins + (_BINS - 1), rest, mask=rest > 0, sem="relaxed")


@triton.jit
def load_bins(histogram):
    return tl.load(histogram + tl.arange(0, _GROUPS)[:, None] * _SIZE + tl.arange(0, _SIZE)[None, :])


@triton.jit
def locate(histogram, bins, counted, k, p):
    """The bin in which a row is cut, the last where fewer than k tokens are above it; and of what is counted,
    as much as comes before it, and what is wanted in all. `bins` are those of its `histogram`."""
    g = tl.arange(0, _GROUPS)
    groups = tl.sum(bins, 1)
    wanted = tl.where(counted == _MASS, share_of(p, tl.sum(groups, 0)), k.to(tl.int64))
    # The group, and in it the bin, with which it is reached.
    short = tl.cumsum(groups, 0) < wanted
    group = tl.minimum(tl.sum(short.to(tl.int32), 0), _GROUPS - 1)
    above = tl.sum(tl.where(g < group, groups, 0), 0)
    own = tl.load(histogram + group * _SIZE + tl.arange(0, _SIZE))
    short = above + tl.cumsum(own, 0) < wanted
    place = tl.minimum(group * _SIZE + tl.sum(short.to(tl.int32), 0), _BINS - 1)
    return place, above + tl.sum(tl.where(short, own, 0), 0), wanted


def count(
    logits: torch.Tensor, how: object, space: object, ends: torch.Tensor, chunk: int, chunks: int
) -> None:
    """Fills the histograms of rows that need one. `how` and `space` are those of kernels/sampling.py."""
    rows, vocabulary = logits.shape
    _count[(chunks, rows)](
        logits, how, space, ends, vocabulary, chunks, CHUNK=chunk, CHUNKS=triton.next_power_of_2(chunks),
        enable_fp_fusion=False, **LAUNCH,
    )  # fmt: skip
