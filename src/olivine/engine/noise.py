"""The noise of sampling: Gumbel variates by a hash of (seed, position, token), the same bits on every
backend.

There is no state: the same seed, position and token give the same number, in any batch and
order. The definition uses only operations that IEEE 754 fixes to the last bit (integer arithmetic, and
float32 add, subtract, multiply and divide, never fused), so a backend that follows it line by line has equal
noise.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

UInt32 = npt.NDArray[np.uint32]
Float32 = npt.NDArray[np.float32]

_MULTIPLIER = np.uint32(747796405)
_INCREMENT = np.uint32(2891336453)
_OUTPUT = np.uint32(277803737)

_LN2 = np.float32(0.6931471805599453)
# 2·atanh(s)/s in powers of s², for ln m = 2·atanh((m − 1) / (m + 1)) with m in [√½, √2): |s| ≤ 0.172.
_ATANH = tuple(np.float32(c) for c in (2.0, 2.0 / 3, 2.0 / 5, 2.0 / 7, 2.0 / 9))


def gumbel(seed: int, position: int | UInt32, tokens: UInt32) -> Float32:
    """Gumbel(0, 1) noise of each token at a position of a sequence. The whole 64-bit seed counts."""
    return gumbel_of_hash(hash_of(seed, position, tokens))


def hash_of(seed: int, position: int | UInt32, tokens: UInt32) -> UInt32:
    """Separate rounds: adding the inputs would make one position's noise a shifted copy of another's."""
    key = _mix(np.array([seed & 0xFFFFFFFF], np.uint32))
    key = _mix(key ^ np.uint32((seed >> 32) & 0xFFFFFFFF))
    key = _mix(key ^ np.asarray(position, np.uint32))
    return _mix(_mix(tokens) ^ key)


def gumbel_of_hash(h: UInt32) -> Float32:
    """−ln(−ln(1 − w)) with w = (h + ½) / 2³², uniform in (0, 1).

    −ln(1 − w) rather than −ln(w): the largest noise then comes from the smallest w, where float32 is finest,
    so even the tail that decides draws over a large vocabulary is not quantized.
    """
    w = (h.astype(np.float32) + np.float32(0.5)) * np.float32(2.0**-32)
    w = np.minimum(w, np.float32(1 - 2.0**-24))  # h near 2³² rounds to 1, and 1 has no logarithm here
    rest = np.float32(1) - w
    # ln(1 − w) loses w's low bits to the rounding of 1 − w; the quotient puts them back.
    exact = np.where(rest == 1, np.float32(1), rest)
    lost = np.float32(1) - exact
    with np.errstate(divide="ignore", invalid="ignore"):
        corrected = w * (-log(exact) / lost)
    return -log(np.where(rest == 1, w, corrected))


def log(x: Float32) -> Float32:
    """ln of positive normal float32, by exponent and an odd polynomial; every step rounded once."""
    bits = x.view(np.uint32)
    # Choose the exponent so that the mantissa lies in [√½, √2).
    exponent = ((bits - np.uint32(0x3F3504F3)).view(np.int32) >> 23).astype(np.int32)
    mantissa = (bits - (exponent << 23).view(np.uint32)).view(np.float32)
    s = (mantissa - np.float32(1)) / (mantissa + np.float32(1))
    t = s * s
    series = _ATANH[4]
    for coefficient in reversed(_ATANH[:4]):
        series = series * t + coefficient
    return exponent.astype(np.float32) * _LN2 + s * series


def _mix(x: UInt32) -> UInt32:
    """One round of the PCG output permutation over a linear congruential step."""
    with np.errstate(over="ignore"):
        state = x * _MULTIPLIER + _INCREMENT
        word = ((state >> ((state >> np.uint32(28)) + np.uint32(4))) ^ state) * _OUTPUT
    return (word >> np.uint32(22)) ^ word
