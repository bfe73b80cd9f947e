"""Launchers of products: linear ops alone and stacked, and with a gate."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from olivine.backends.cuda import launch_rowwise, launch_tower_products
from olivine.backends.cuda.formats import Format
from olivine.backends.cuda.kernels.activations import ACTIVATIONS
from olivine.backends.cuda.kernels.gemm import gemm
from olivine.backends.cuda.kernels.gemv import gemv
from olivine.backends.cuda.kernels.gemv_alone import AloneProduct, gemv_pair
from olivine.backends.cuda.lowering import Launch, Lowering
from olivine.backends.cuda.rows import Rows
from olivine.backends.cuda.tiles import gemv_tiles
from olivine.backends.cuda.weights import Planes
from olivine.plan import Value, ops
from olivine.plan.fused_ops import GateUp, LinearGate, LinearPair, StackedLinear


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
    planes, bias = _stack(c, op)
    return _product(c, op.x, planes, bias, op.outputs(), torch.float32, False)


def _stack(c: Lowering, op: StackedLinear) -> tuple[Planes, torch.Tensor | None]:
    planes = c.stacked([linear.weight for linear in op.linears])
    biases = [c.vector(linear.bias) for linear in op.linears if linear.bias is not None]
    return planes, torch.cat(biases) if biases else None


def linear_pair(c: Lowering, op: LinearPair) -> Launch:
    """One launch for a generated row of quantized weights, and else two."""
    both = (op.first, op.second)
    weights = [_stack(c, each) for each in both]
    products = [
        _product(c, op.x, planes, bias, each.outputs(), torch.float32, False)
        for each, (planes, bias) in zip(both, weights, strict=True)
    ]
    cuts = [gemv_tiles(planes, False) for planes, _ in weights]
    quantized = all(planes.format is not Format.FLOAT for planes, _ in weights)

    def run(rows: Rows) -> None:
        x = rows.operand(op.x.id)
        if rows.prefill or len(x) != 1 or not quantized:
            for product in products:
                product(rows)
            return
        outs = [torch.empty((1, planes.n), device=c.device) for planes, _ in weights]
        first, second = (
            AloneProduct(x, planes, out, bias, cut)
            for (planes, bias), out, cut in zip(weights, outs, cuts, strict=True)
        )
        gemv_pair(first, second, inv_rms=rows.inv_rms.get(op.x.id))
        for each, out in zip(both, outs, strict=True):
            _hand_out(rows, each.outputs(), out)

    return run


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
        x, splits = rows.operand(x_value.id), 1 if many else cut.splits  # prompts fill the device
        result = torch.empty((splits, len(x), width), dtype=dtype, device=c.device)
        if many:
            gemm(x, planes, result[0], bias=bias, slabs=rows.slabs)
        else:
            gemv(x, planes, result, cut, inv_rms=rows.inv_rms.get(x_value.id), bias=bias)
        _hand_out(rows, outs, result if splits > 1 else result[0])

    return run


def _hand_out(rows: Rows, outs: Sequence[Value], result: torch.Tensor) -> None:
    """The columns of a product, each value its own."""
    start = 0
    for out in outs:
        rows.values[out.id] = result[..., start : start + out.width]
        start += out.width


def gate_up(c: Lowering, op: GateUp) -> Launch:
    planes = c.interleaved(op.gate.weight, op.up.weight)
    cut, activation = gemv_tiles(planes, False), ACTIVATIONS[op.activation.activation]
    out_value = op.activation.out
    c.prompt_weights.append(planes)

    def run(rows: Rows) -> None:
        x, out = rows.operand(op.x.id), c.empty(rows, out_value)
        if rows.prefill:
            gemm(x, planes, out, activation=activation, slabs=rows.slabs)
        else:
            gemv(x, planes, out, cut, inv_rms=rows.inv_rms.get(op.x.id), activation=activation)
        rows.values[out_value.id] = out

    return run


def linear_gate(c: Lowering, op: LinearGate) -> Launch:
    """In one launch where decode rows are multiplied with what is old enough; else in two."""
    product, gate = linear(c, op.linear), launch_rowwise.gate(c, op.gate)
    planes, bias = c.matrix(op.linear.weight), None if op.linear.bias is None else c.vector(op.linear.bias)
    cut, activation, old = gemv_tiles(planes, False), ACTIVATIONS[op.gate.activation], c.is_old(op.up, op)

    def run(rows: Rows) -> None:
        if rows.prefill or not old:
            product(rows)
            gate(rows)
            del rows.values[op.linear.out.id]
            return
        x, up, out = rows.operand(op.x.id), rows.values[op.up.id], c.empty(rows, op.gate.out)
        inv_rms = rows.inv_rms.get(op.x.id)
        gemv(x, planes, out, cut, inv_rms=inv_rms, bias=bias, activation=activation, up=up)
        rows.values[op.gate.out.id] = out

    return run
