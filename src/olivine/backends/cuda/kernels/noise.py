"""The noise of sampling and the fixed e^z, as engine/noise.py and engine/sampling.py define them.

Kernels that use these must be compiled with enable_fp_fusion=False: every operation is rounded.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def mix(x):
    """One round of the hash, on uint32."""
    state = x * 747796405 + 2891336453
    word = ((state >> ((state >> 28) + 4)) ^ state) * 277803737
    return (word >> 22) ^ word


@triton.jit
def key_of(seed_low, seed_high, position):
    """The part of the hash that all tokens of a draw share."""
    key = mix(seed_low.to(tl.uint32))
    key = mix(key ^ seed_high.to(tl.uint32))
    return mix(key ^ position.to(tl.uint32))


@triton.jit
def log(x):
    bits = x.to(tl.uint32, bitcast=True)
    exponent = (bits - 0x3F3504F3).to(tl.int32, bitcast=True) >> 23
    mantissa = (bits - (exponent << 23).to(tl.uint32, bitcast=True)).to(tl.float32, bitcast=True)
    s = tl.div_rn(mantissa - 1.0, mantissa + 1.0)
    t = s * s
    series = t * 0.2222222222222222 + 0.2857142857142857
    series = series * t + 0.4
    series = series * t + 0.6666666666666666
    series = series * t + 2.0
    return exponent.to(tl.float32) * 0.6931471805599453 + s * series


@triton.jit
def gumbel(key, token):
    """Gumbel noise of tokens, given the key of the draw."""
    h = mix(mix(token.to(tl.uint32)) ^ key)
    w = (h.to(tl.float32) + 0.5) * 2.3283064365386963e-10
    w = tl.minimum(w, 0.999999940395355224609375)
    rest = 1.0 - w
    # Where rest is 1, w needs no correction, which would divide 0 by 0: any other number will do.
    exact = tl.where(rest == 1.0, 0.5, rest)
    corrected = w * tl.div_rn(-log(exact), 1.0 - exact)
    return -log(tl.where(rest == 1.0, w, corrected))


@triton.jit
def mass(z):
    """2³² · e^z as an integer, for z ≤ 0."""
    z = tl.maximum(z, -32.0)
    n = _nearest(z * 1.44269504)
    r = (z - n * 0.693359375) - n * -2.12194440e-4
    series = r * 1.9875691500e-4 + 1.3981999507e-3
    series = series * r + 8.3334519073e-3
    series = series * r + 4.1665795894e-2
    series = series * r + 1.6666665459e-1
    series = series * r + 5.0000001201e-1
    series = (series * (r * r) + r) + 1.0
    bits = series.to(tl.int32, bitcast=True) + (n.to(tl.int32) << 23)
    e = bits.to(tl.float32, bitcast=True).to(tl.float64) * 4294967296.0
    # To the nearest integer, ties to even: exact, because e is far below 2⁵².
    return ((e + 4503599627370496.0) - 4503599627370496.0).to(tl.int64)


@triton.jit
def share_of(p, total):
    """The mass of which top-p keeps tokens: it keeps one if less comes before it."""
    return tl.ceil(p * total.to(tl.float64)).to(tl.int64)


@triton.jit
def _nearest(x):
    """The nearest integer, ties to even, of −2²² < x < 2²²."""
    return (x + 12582912.0) - 12582912.0
