"""The token of a list that is drawn: of those that top-k, top-p and min-p keep, the one whose logit with
noise is largest. What top-k and top-p keep is a beginning of the list in order, so that only that token's
place is needed; if they do not keep it, the next largest is tried."""

from __future__ import annotations

import triton
import triton.language as tl

from olivine.backends.cuda.kernels.candidates import LOWEST, packed_of, ranks_of, token_of, turned
from olivine.backends.cuda.kernels.noise import gumbel, mass, share_of

_MASS_BITS: tl.constexpr = tl.constexpr(48)  # more than the mass of a short list has
_MASS: tl.constexpr = tl.constexpr((1 << 48) - 1)


@triton.jit
def _likeliest(noisy, packed):
    """The largest of them, and where it is in the order of the list; of equal ones the lowest token."""
    best = tl.max(noisy, 0)
    return best, turned(tl.max(tl.where(noisy == best, turned(packed), LOWEST), 0))


@triton.jit
def draw_short(z, token, n, k, p, wanted, log_min, key, SIZE: tl.constexpr):
    """The token drawn from a list of up to SIZE tokens, and its z with noise."""
    there = tl.arange(0, SIZE) < n
    packed = tl.where(there, packed_of(z, token), LOWEST)
    masses = tl.where(there, mass(z) + (_MASS + 1), 0)  # with a count of one above them
    noisy = tl.where(there & (z >= log_min), z + gumbel(key, token), float("-inf"))
    if (p < 1.0) & (wanted < 0):
        among = masses
        if k < n:
            among = tl.where(ranks_of(packed) < k, masses, 0)
        wanted = share_of(p, tl.sum(among, 0) & _MASS)
    best, chosen = float("-inf"), tl.full((), LOWEST, tl.int64)
    settled = n == 0
    while settled == 0:
        best, chosen = _likeliest(noisy, packed)
        before = tl.sum(tl.where(packed > chosen, masses, 0), 0)
        kept = ((before >> _MASS_BITS) < k) & ((p >= 1.0) | ((before & _MASS) < wanted))
        settled = kept | (best == float("-inf"))
        noisy = tl.where(packed > chosen, noisy, float("-inf"))
    return best, token_of(chosen)


@triton.jit
def _before(values, ids, n, place, BLOCK: tl.constexpr):
    """How many candidates come before a place in the order of the list, and their mass."""
    number = tl.zeros((BLOCK,), tl.int32)
    total = tl.zeros((BLOCK,), tl.int64)
    for start in range(0, n, BLOCK):
        i = start + tl.arange(0, BLOCK)
        z = tl.load(values + i, mask=i < n, other=float("-inf"))
        token = tl.load(ids + i, mask=i < n, other=0)
        comes_first = (i < n) & (packed_of(z, token) > place)
        number += comes_first.to(tl.int32)
        total += tl.where(comes_first, mass(z), 0)
    return tl.sum(number, 0), tl.sum(total, 0)


@triton.jit
def _mass_of_top_k(values, ids, n, k, BLOCK: tl.constexpr):
    """Of the first k candidates, up to a place that is found by bisection."""
    low = tl.full((), -2139095041 << 32, tl.int64)  # -inf: all come before it
    high = tl.full((), 1 << 32, tl.int64)  # above 0: none does
    number, total = _before(values, ids, n, low, BLOCK)
    while number > k:
        middle = low + (high - low) // 2
        found, found_mass = _before(values, ids, n, middle, BLOCK)
        if found >= k:
            low, number, total = middle, found, found_mass
        else:
            high = middle
    return total


@triton.jit
def _likeliest_before(values, ids, n, place, log_min, key, BLOCK: tl.constexpr):
    """`_likeliest` of the candidates that come before a place."""
    best = tl.full((BLOCK,), float("-inf"), tl.float32)
    chosen = tl.full((BLOCK,), LOWEST, tl.int64)
    for start in range(0, n, BLOCK):
        i = start + tl.arange(0, BLOCK)
        z = tl.load(values + i, mask=i < n, other=float("-inf"))
        token = tl.load(ids + i, mask=i < n, other=0)
        packed = packed_of(z, token)
        kept = (i < n) & (packed > place) & (z >= log_min)
        noisy = tl.where(kept, z + gumbel(key, token), float("-inf"))
        better = (noisy > best) | ((noisy == best) & (turned(packed) > turned(chosen)))
        chosen = tl.where(better, packed, chosen)
        best = tl.maximum(best, noisy)
    return _likeliest(best, chosen)


@triton.jit
def draw_long(values, ids, n, k, p, wanted, log_min, key, BLOCK: tl.constexpr):
    """As `draw_short`, from a list of any length."""
    if (p < 1.0) & (wanted < 0):
        wanted = share_of(p, _mass_of_top_k(values, ids, n, k, BLOCK))
    best, chosen = float("-inf"), tl.full((), LOWEST, tl.int64)
    settled = n == 0
    while settled == 0:
        best, chosen = _likeliest_before(values, ids, n, chosen, log_min, key, BLOCK)
        number, total = _before(values, ids, n, chosen, BLOCK)
        kept = (number < k) & ((p >= 1.0) | (total < wanted))
        settled = kept | (best == float("-inf"))
    return best, token_of(chosen)
