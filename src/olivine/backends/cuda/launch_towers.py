"""Launchers of what towers have: norms with a mean, activations without a gate, convolutions, coordinates.

A tower runs once an image or sound, not once a token: what reads and writes each element once is left to
torch. Every sum has one order whatever the batch, so that an image has the same bits alone and beside others.
"""

from __future__ import annotations

import numpy as np
import torch

from olivine.backends.cuda.formats import Format
from olivine.backends.cuda.kernels import activations, towers
from olivine.backends.cuda.kernels.embed import embed
from olivine.backends.cuda.kernels.gemm import gemm
from olivine.backends.cuda.lowering import Launch, Lowering
from olivine.backends.cuda.rows import Rows
from olivine.backends.cuda.weights import Planes, repack
from olivine.plan import Weight, ops, tower_ops
from olivine.plan.fused_ops import AddNorm


def input(c: Lowering, op: tower_ops.Input) -> Launch:
    def run(rows: Rows) -> None:
        assert rows.tower is not None
        rows.values[op.out.id] = rows.tower.embeddings * op.scale + op.shift

    return run


def layer_norm(c: Lowering, op: ops.LayerNorm) -> Launch:
    weight = c.vector(op.weight)
    bias = c.bias(op.bias)

    def run(rows: Rows) -> None:
        out = c.empty(rows, op.out)
        towers.layer_norm(rows.values[op.x.id].contiguous(), weight, bias, out, op.eps)
        rows.values[op.out.id] = out

    return run


def add_layer_norm(c: Lowering, op: AddNorm, norm: ops.LayerNorm) -> Launch:
    weight = c.vector(norm.weight)
    bias = c.bias(norm.bias)

    def run(rows: Rows) -> None:
        residual, branch = rows.values[op.residual.id].contiguous(), rows.values[op.branch.id].contiguous()
        total, out = torch.empty(residual.shape, device=c.device), c.empty(rows, norm.out)
        towers.layer_norm(residual, weight, bias, out, norm.eps, branch, total)
        rows.values[op.total.id], rows.values[norm.out.id] = total, out

    return run


def activate(c: Lowering, op: ops.Activate) -> Launch:
    def run(rows: Rows) -> None:
        out = c.empty(rows, op.out)
        activations.gate(rows.values[op.x.id], None, out, op.activation)
        rows.values[op.out.id] = out

    return run


def clamp(c: Lowering, op: tower_ops.Clamp) -> Launch:
    limits = c.limits(op)
    assert limits is not None

    def run(rows: Rows) -> None:
        out = c.empty(rows, op.out)
        towers.clamp(rows.values[op.x.id], limits, out)
        rows.values[op.out.id] = out

    return run


def standardize(c: Lowering, op: tower_ops.Standardize) -> Launch:
    mean, scale = c.vector(op.mean).float(), c.vector(op.scale).float()

    def run(rows: Rows) -> None:
        rows.values[op.out.id] = (rows.values[op.x.id] - mean) * scale

    return run


def position_embed(c: Lowering, op: tower_ops.PositionEmbed) -> Launch:
    table = c.matrix(op.table)

    def run(rows: Rows) -> None:
        assert rows.tower is not None
        columns, lines = rows.tower.coordinates.unbind(1)
        found = torch.empty((len(columns), op.out.width), device=c.device)
        embed(op.start + columns * op.strides[0] + lines * op.strides[1], table, found, 1.0)
        rows.values[op.out.id] = rows.values[op.x.id] + found

    return run


def grid_rope(c: Lowering, op: tower_ops.GridRope) -> Launch:
    rotation = op.rotation
    frequencies = torch.from_numpy(np.array(rotation.frequencies, np.float32)).to(c.device)

    def run(rows: Rows) -> None:
        assert rows.tower is not None
        if rotation not in rows.tower.angles:
            angles = rows.tower.coordinates[:, :, None] * frequencies  # [T, 2, pairs]
            cos, sin = torch.cos(angles) * rotation.magnitude, torch.sin(angles) * rotation.magnitude
            rows.tower.angles[rotation] = cos, sin
        out = c.empty(rows, op.out)
        given = rows.values[op.x.id], rows.tower.angles[rotation], out
        towers.grid_rope(*given, rotation.head_dim, rotation.interleaved)
        rows.values[op.out.id] = out

    return run


def pool(c: Lowering, op: tower_ops.Pool) -> Launch:
    def run(rows: Rows) -> None:
        x = rows.values[op.x.id]
        first = torch.arange(len(x), device=c.device) if rows.outputs is None else rows.outputs
        # Padding among the outputs is row 0; it must not reach beyond the rows.
        terms = (x.index_select(0, (first + i).clamp(max=len(x) - 1)) for i in range(op.size))
        rows.values[op.out.id] = sum(terms, torch.zeros((), device=c.device)) / op.size

    return run


def conv(c: Lowering, op: tower_ops.Conv) -> Launch:
    """The nine inputs of each result side by side, and one product."""
    outs, channels = op.weight.shape[:2]
    planes = _matrix(c, op.weight)
    frequencies, steps = op.x.width // (op.steps * channels), torch.arange(op.steps, device=c.device)

    def run(rows: Rows) -> None:
        assert rows.tower is not None
        x = rows.values[op.x.id].reshape(-1, op.steps, frequencies, channels)
        frames = rows.tower.coordinates[:, :1] * op.steps
        valid = steps < torch.div(frames + op.frames - 1, op.frames, rounding_mode="floor")
        x = torch.where(valid[:, :, None, None], x, 0.0)
        padded = torch.zeros(
            (len(x), op.steps + 1, frequencies + 2, channels), dtype=torch.bfloat16, device=c.device
        )
        padded[:, 1:, 1:-1] = x
        padded[:, 0, 1:-1] = _before(rows, x[:, -1], 1)
        patches = padded.unfold(1, 3, 2).unfold(2, 3, 2)  # [T, steps / 2, frequencies / 2, C, 3, 3]
        patches = patches.reshape(-1, 9 * channels)
        out = torch.empty((len(patches), planes.n), device=c.device)
        gemm(patches, planes, out)
        rows.values[op.out.id] = out[:, :outs].reshape(len(x), op.out.width)

    return run


def depthwise_conv(c: Lowering, op: tower_ops.DepthwiseConv) -> Launch:
    size = op.weight.shape[1]
    weight = c.vector(op.weight).float().view(-1, size)

    def run(rows: Rows) -> None:
        x = rows.values[op.x.id]
        terms = (_before(rows, x, size - 1 - m) * weight[:, m] for m in range(size))
        rows.values[op.out.id] = sum(terms, torch.zeros((), device=c.device))

    return run


def relative_attention(c: Lowering, op: tower_ops.RelativeAttention) -> Launch:
    relative = c.vector(op.relative).view(op.relative.shape)

    def run(rows: Rows) -> None:
        q, k, v = (rows.values[value.id].contiguous() for value in (op.q, op.k, op.v))
        out = c.empty(rows, op.out)
        towers.relative_attention(q, k, v, relative, rows.positions, out, op.heads, op.cap)
        rows.values[op.out.id] = out

    return run


def _matrix(c: Lowering, weight: Weight) -> Planes:
    """A weight of several axes as a matrix with a row for each of the first."""
    values = c.vector(weight).view(weight.shape[0], -1)
    return repack(Planes(Format.FLOAT, len(values), values.shape[1], values.clone()))


def _before(rows: Rows, x: torch.Tensor, back: int) -> torch.Tensor:
    """The rows that come `back` rows earlier in the same sequence, or 0."""
    if back == 0:
        return x
    moved = torch.zeros_like(x)
    moved[back:] = x[: max(0, len(x) - back)]
    there = (rows.positions >= back).view(-1, *[1] * (x.dim() - 1))
    return torch.where(there, moved, 0.0)
