"""The ops of towers in NumPy and float32, as defined by their docstrings in `plan/tower_ops.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from olivine.backends.base import Batch
from olivine.backends.reference.kernels import rope, softmax
from olivine.plan import Value, Weight, tower_ops
from olivine.plan.ops import Op

Float32 = npt.NDArray[np.float32]
_Values = Callable[[Value], Float32]
_Weights = Callable[[Weight], Float32]
_Run = Callable[[Any, Batch, _Values, _Weights], Float32]


def _input(op: tower_ops.Input, batch: Batch, at: _Values, weight: _Weights) -> Float32:
    assert batch.embeddings is not None
    return batch.embeddings * np.float32(op.scale) + np.float32(op.shift)


def _clamp(op: tower_ops.Clamp, batch: Batch, at: _Values, weight: _Weights) -> Float32:
    x = at(op.x)
    if op.low is not None:
        x = np.maximum(x, weight(op.low))
    return x if op.high is None else np.minimum(x, weight(op.high))


def _standardize(op: tower_ops.Standardize, batch: Batch, at: _Values, weight: _Weights) -> Float32:
    return (at(op.x) - weight(op.mean)) * weight(op.scale)


def _position_embed(op: tower_ops.PositionEmbed, batch: Batch, at: _Values, weight: _Weights) -> Float32:
    assert batch.coordinates is not None
    table = weight(op.table).reshape(-1, op.out.width)
    return at(op.x) + table[op.start + batch.coordinates @ np.array(op.strides)]


def _grid_rope(op: tower_ops.GridRope, batch: Batch, at: _Values, weight: _Weights) -> Float32:
    assert batch.coordinates is not None
    half = op.rotation.head_dim
    parts = at(op.x).reshape(len(batch.tokens), -1, 2, half).copy()
    for axis in (0, 1):
        flat = parts[:, :, axis].reshape(len(parts), -1)
        parts[:, :, axis] = rope(flat, batch.coordinates[:, axis], op.rotation, None).reshape(
            len(parts), -1, half
        )
    return parts.reshape(len(parts), -1)


def _pool(op: tower_ops.Pool, batch: Batch, at: _Values, weight: _Weights) -> Float32:
    x = at(op.x)
    rows = [x[first : first + op.size].mean(axis=0, dtype=np.float32) for first in batch.outputs]
    return np.array(rows, np.float32).reshape(len(rows), op.out.width)


def _before(batch: Batch, x: Float32, back: int) -> Float32:
    """The rows that come `back` rows earlier in the same sequence, or 0."""
    moved = np.zeros_like(x)
    if back < len(x):
        moved[back:] = x[: len(x) - back]
    moved[batch.positions < back] = 0
    return moved


def _conv(op: tower_ops.Conv, batch: Batch, at: _Values, weight: _Weights) -> Float32:
    assert batch.coordinates is not None
    outs, channels = op.weight.shape[:2]
    frequencies = op.x.width // (op.steps * channels)
    # Steps become fewer, so that of 3 valid frames 2 steps of 2 are valid.
    valid = -(-batch.coordinates[:, 0] * op.steps // op.frames)
    x = at(op.x).reshape(-1, op.steps, frequencies, channels)
    x = np.where((np.arange(op.steps) < valid[:, None])[:, :, None, None], x, np.float32(0))
    # One step before the row, and a 0 on each side of the frequencies.
    padded = np.zeros((len(x), op.steps + 1, frequencies + 2, channels), np.float32)
    padded[:, 1:, 1:-1] = x
    padded[:, 0, 1:-1] = _before(batch, x[:, -1], 1)
    kernel = weight(op.weight)
    out = np.zeros((len(x), op.steps // 2, frequencies // 2, outs), np.float32)
    for time in range(3):
        for frequency in range(3):
            part = padded[:, time : time + op.steps - 1 : 2, frequency : frequency + frequencies - 1 : 2]
            out += part @ kernel[:, :, time, frequency].T
    return out.reshape(len(x), op.out.width)


def _depthwise_conv(op: tower_ops.DepthwiseConv, batch: Batch, at: _Values, weight: _Weights) -> Float32:
    x, kernel = at(op.x), weight(op.weight)
    size = kernel.shape[1]
    terms = [_before(batch, x, size - 1 - m) * kernel[:, m] for m in range(size)]
    return np.sum(terms, axis=0, dtype=np.float32)


def _relative_attention(
    op: tower_ops.RelativeAttention, batch: Batch, at: _Values, weight: _Weights
) -> Float32:
    shape = (-1, op.heads, op.out.width // op.heads)
    q, k, v = at(op.q), at(op.k), at(op.v)
    relative = weight(op.relative)
    scores = np.full((len(q), op.heads, len(relative)), -np.inf, np.float32)
    for back, key in enumerate(relative):
        found = (q.reshape(shape) * (_before(batch, k, back) + key).reshape(shape)).sum(-1)
        seen = batch.positions >= back
        scores[seen, :, back] = np.tanh(found[seen] / np.float32(op.cap)) * np.float32(op.cap)
    shares = softmax(scores)
    out = np.zeros_like(q).reshape(shape)
    for back in range(len(relative)):
        out += shares[:, :, back, None] * _before(batch, v, back).reshape(shape)
    return out.reshape(q.shape)


RUN: dict[type[Op], _Run] = {
    tower_ops.Input: _input,
    tower_ops.Clamp: _clamp,
    tower_ops.Standardize: _standardize,
    tower_ops.PositionEmbed: _position_embed,
    tower_ops.GridRope: _grid_rope,
    tower_ops.Pool: _pool,
    tower_ops.Conv: _conv,
    tower_ops.DepthwiseConv: _depthwise_conv,
    tower_ops.RelativeAttention: _relative_attention,
}
