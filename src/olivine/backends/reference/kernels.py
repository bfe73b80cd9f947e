"""Every op of the plan in NumPy and float32, as defined by its docstring in `plan/ops.py`."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from olivine.plan.ops import Activation, Rotation

Float32 = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int32]


def rms_norm(x: Float32, weight: Float32 | None, size: int, eps: float, offset: float) -> Float32:
    groups = x.reshape(len(x), x.shape[1] // size, size)
    mean = np.mean(np.square(groups), axis=-1, keepdims=True, dtype=np.float32)
    scaled = groups / np.sqrt(mean + np.float32(eps))
    if weight is not None:
        scaled = scaled * (weight + np.float32(offset))
    return scaled.reshape(x.shape).astype(np.float32, copy=False)


def layer_norm(x: Float32, weight: Float32, bias: Float32 | None, size: int, eps: float) -> Float32:
    groups = x.reshape(len(x), x.shape[1] // size, size)
    centred = groups - groups.mean(axis=-1, keepdims=True, dtype=np.float32)
    variance = np.mean(np.square(centred), axis=-1, keepdims=True, dtype=np.float32)
    scaled = centred / np.sqrt(variance + np.float32(eps)) * weight
    return (scaled if bias is None else scaled + bias).reshape(x.shape).astype(np.float32, copy=False)


def linear(x: Float32, weight: Float32, bias: Float32 | None) -> Float32:
    y: Float32 = x @ weight.T
    return y if bias is None else y + bias


def rope(x: Float32, positions: Ints, rotation: Rotation, divisors: Float32 | None) -> Float32:
    frequencies = np.array(rotation.frequencies, dtype=np.float32)  # [n]
    if divisors is not None:
        frequencies = frequencies / divisors
    angles = positions.astype(np.float32)[:, None] * frequencies  # [T, n]
    cos = (np.cos(angles) * np.float32(rotation.magnitude))[:, None, :]
    sin = (np.sin(angles) * np.float32(rotation.magnitude))[:, None, :]
    heads = x.reshape(len(x), x.shape[1] // rotation.head_dim, rotation.head_dim)  # [T, heads, d]
    half = len(frequencies)
    first = np.s_[..., 0 : 2 * half : 2] if rotation.interleaved else np.s_[..., :half]
    second = np.s_[..., 1 : 2 * half : 2] if rotation.interleaved else np.s_[..., half : 2 * half]
    a, b = heads[first], heads[second]
    rotated = heads.copy()
    rotated[first] = a * cos - b * sin
    rotated[second] = a * sin + b * cos
    return rotated.reshape(x.shape)


def position_scale(x: Float32, positions: Ints, beta: float, length: int) -> Float32:
    steps = (positions // length).astype(np.float32)
    return x * (1 + np.float32(beta) * np.log(1 + steps))[:, None]


def visible(q_at: Ints, last: Ints, k_at: Ints, window: int | None) -> npt.NDArray[np.bool_]:
    """Which keys at positions k_at the queries at q_at see, each up to its last. [n, m]"""
    seen = k_at[None, :] <= last[:, None]
    return seen if window is None else seen & (q_at[:, None] - k_at[None, :] < window)


def attention(q: Float32, k: Float32, v: Float32, visible: npt.NDArray[np.bool_], scale: float) -> Float32:
    """One sequence: queries [n, H, d], keys and values [m, G, d], visible [n, m] → [n, H · d]."""
    n, heads, _ = q.shape
    q_per_kv = heads // k.shape[1]
    k, v = np.repeat(k, q_per_kv, axis=1), np.repeat(v, q_per_kv, axis=1)  # [m, H, d]
    scores = np.einsum("nhd,mhd->hnm", q, k, optimize=True) * np.float32(scale)
    scores = np.where(visible, scores, np.float32(-np.inf))
    return np.einsum("hnm,mhd->nhd", softmax(scores), v, optimize=True).reshape(n, -1)


def softmax(x: Float32) -> Float32:
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def gate(gate: Float32, up: Float32, activation: Activation) -> Float32:
    return ACTIVATIONS[activation](gate) * up


def softcap(x: Float32, cap: float) -> Float32:
    return np.tanh(x / np.float32(cap)) * np.float32(cap)


def route(logits: Float32, top_k: int, normalize: bool) -> tuple[Ints, Float32]:
    """The experts of each row and their weights: both [T, top_k]. Ties go to the lowest index."""
    probabilities = softmax(logits)
    chosen = np.argsort(-probabilities, axis=-1, kind="stable")[:, :top_k].astype(np.int32)
    weights = np.take_along_axis(probabilities, chosen, axis=-1)
    return chosen, weights / weights.sum(axis=-1, keepdims=True) if normalize else weights


def _silu(x: Float32) -> Float32:
    with np.errstate(over="ignore"):  # exp(-x) = inf for a very negative x gives the right limit, 0
        return x / (1 + np.exp(-x))


def _gelu_tanh(x: Float32) -> Float32:
    inner = np.float32(np.sqrt(2 / np.pi)) * (x + np.float32(0.044715) * x * x * x)
    return np.float32(0.5) * x * (1 + np.tanh(inner))


def _relu(x: Float32) -> Float32:
    return np.maximum(x, np.float32(0))


def _sigmoid(x: Float32) -> Float32:
    with np.errstate(over="ignore"):
        return np.float32(1) / (1 + np.exp(-x))


ACTIVATIONS: dict[Activation, Callable[[Float32], Float32]] = {
    "silu": _silu,
    "gelu_tanh": _gelu_tanh,
    "relu": _relu,
    "sigmoid": _sigmoid,
}


def _bf16(x: Float32) -> Float32:
    """Rounded to bfloat16, ties to even."""
    bits = x.view(np.uint32)
    return (((bits + 0x7FFF + (bits >> 16 & 1)) >> 16) << 16).astype(np.uint32).view(np.float32)


def _q8(x: Float32) -> Float32:
    """Rounded to int8 with a scale for each 32: Q8_0 with float32 scales."""
    blocks = x.reshape(*x.shape[:-1], -1, 32)
    largest = np.abs(blocks).max(-1, keepdims=True)
    inverse = np.divide(127, largest, out=np.zeros_like(largest), where=largest > 0)
    return (np.rint(blocks * inverse) * (largest / np.float32(127))).reshape(x.shape).astype(np.float32)


# Keys and values after a round trip through the cache type.
CACHE_ROUNDING: dict[str, Callable[[Float32], Float32]] = {"F32": lambda x: x, "BF16": _bf16, "Q8_0": _q8}
