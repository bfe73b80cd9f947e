"""Launchers of products: linear ops alone and stacked, gate and up."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from olivine.backends.cuda import launch_tower_products
from olivine.backends.cuda.kernels.activations import ACTIVATIONS
from olivine.backends.cuda.kernels.gemm import gemm
from olivine.backends.cuda.kernels.gemv import gemv
from olivine.backends.cuda.lowering import Launch, Lowering
from olivine.backends.cuda.rows import Rows
from olivine.backends.cuda.tiles import gemv_tiles
from olivine.backends.cuda.weights import Planes
from olivine.plan import Value, ops
from olivine.plan.fused_ops import GateUp, StackedLinear


def linear(c: Lowering, op: ops.Linear) -> Launch:
    """Generated rows may have their result in several sums, where the reader adds them up.

    The head takes the output rows of a prompt as it takes generated ones: they are few, and its weight is the
    largest.
    """
    if c.is_tower:
        return launch_tower_products.linear(c, op)
    bias = None if op.bias is None else c.vector(op.bias)
    split, few = op.out.id in c.fused.split_k, op.out.rows == "outputs"
    return _product(c, op.x, c.matrix(op.weight), bias, [op.out], c.dtype(op.out), split, few)


def stacked_linear(c: Lowering, op: StackedLinear) -> Launch:
    """The results are columns of one matrix, in float32."""
    if c.is_tower:
        return launch_tower_products.stacked_linear(c, op)
    planes = c.stacked([linear.weight for linear in op.linears])
    biases = [c.vector(linear.bias) for linear in op.linears if linear.bias is not None]
    bias = torch.cat(biases) if biases else None
    return _product(c, op.x, planes, bias, op.outputs(), torch.float32, False)


def _product(
    c: Lowering,
    x_value: Value,
    planes: Planes,
    bias: torch.Tensor | None,
    outs: Sequence[Value],
    dtype: torch.dtype,
    split: bool,
    few: bool = False,
) -> Launch:
    cut, width = gemv_tiles(planes, split), sum(out.width for out in outs)
    if not few:
        c.prompt_weights.append(planes)

    def run(rows: Rows) -> None:
        many = rows.prefill and not few
        x, splits = rows.values[x_value.id], 1 if many else cut.splits  # prompts fill the device
        result = torch.empty((splits, len(x), width), dtype=dtype, device=c.device)
        if many:
            gemm(x, planes, result[0], bias=bias, slabs=rows.slabs)
        else:
            gemv(x, planes, result, cut, inv_rms=rows.inv_rms.get(x_value.id), bias=bias)
        terms, start = result if splits > 1 else result[0], 0
        for out in outs:
            rows.values[out.id] = terms[..., start : start + out.width]
            start += out.width

    return run


def gate_up(c: Lowering, op: GateUp) -> Launch:
    planes = c.interleaved(op.gate.weight, op.up.weight)
    cut, activation = gemv_tiles(planes, False), ACTIVATIONS[op.activation.activation]
    out_value = op.activation.out
    c.prompt_weights.append(planes)

    def run(rows: Rows) -> None:
        x, out = rows.values[op.x.id], c.empty(rows, out_value)
        if rows.prefill:
            gemm(x, planes, out, activation=activation, slabs=rows.slabs)
        else:
            gemv(x, planes, out, cut, inv_rms=rows.inv_rms.get(op.x.id), activation=activation)
        rows.values[out_value.id] = out

    return run
