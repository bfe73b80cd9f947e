"""Launchers of products: linear ops alone and stacked, gate and up, mixtures of experts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from olivine.backends.cuda import launch_tower_products
from olivine.backends.cuda.kernels import activations
from olivine.backends.cuda.kernels.activations import ACTIVATIONS
from olivine.backends.cuda.kernels.expert_blocks import ExpertBlocks
from olivine.backends.cuda.kernels.gemm import gemm
from olivine.backends.cuda.kernels.gemv import gemv
from olivine.backends.cuda.kernels.routing import route
from olivine.backends.cuda.lowering import Launch, Lowering
from olivine.backends.cuda.rows import Rows
from olivine.backends.cuda.tiles import gemv_tiles
from olivine.backends.cuda.weights import Planes
from olivine.plan import Value, ops
from olivine.plan.fused_ops import GateUp, StackedLinear

_GateUp = Callable[[Rows, torch.Tensor, torch.Tensor, torch.Tensor], None]  # of x, the experts, into the last


def linear(c: Lowering, op: ops.Linear) -> Launch:
    """Generated rows may have their result in several sums, where the reader adds them up."""
    if c.is_tower:
        return launch_tower_products.linear(c, op)
    bias = None if op.bias is None else c.vector(op.bias)
    split = op.out.id in c.fused.split_k
    return _product(c, op.x, c.matrix(op.weight), bias, [op.out], c.dtype(op.out), split)


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
) -> Launch:
    cut, width = gemv_tiles(planes, split), sum(out.width for out in outs)

    def run(rows: Rows) -> None:
        x, splits = rows.values[x_value.id], 1 if rows.prefill else cut.splits  # prompts fill the device
        result = torch.empty((splits, len(x), width), dtype=dtype, device=c.device)
        if rows.prefill:
            gemm(x, planes, result[0], bias=bias)
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

    def run(rows: Rows) -> None:
        x, out = rows.values[op.x.id], c.empty(rows, out_value)
        if rows.prefill:
            gemm(x, planes, out, activation=activation)
        else:
            gemv(x, planes, out, cut, inv_rms=rows.inv_rms.get(op.x.id), activation=activation)
        rows.values[out_value.id] = out

    return run


def mixture(c: Lowering, op: ops.MoE) -> Launch:
    experts, inner, k = op.gate.shape[0], op.gate.shape[1], op.top_k
    gate_up = _expert_gate_up(c, op)
    down = c.matrix(op.down, experts)
    down_cut = gemv_tiles(down, False)
    scale = None if op.scale is None else c.vector(op.scale).float()
    divided = op.router.width != experts
    if divided:  # another rank's experts have no share: any expert of this one stands in for them
        mine, scale = scale, torch.zeros(op.router.width, device=c.device)
        scale[op.first : op.first + experts] = 1.0 if mine is None else mine
    split = op.out.id in c.fused.split_k

    def run(rows: Rows) -> None:
        x = rows.values[op.x.id]
        shares, chosen = route(rows.values[op.router.id], k, normalize=op.normalize, scale=scale)
        if divided:
            chosen = (chosen - op.first).clamp(0, experts - 1)
        hidden = torch.empty((len(chosen), inner), dtype=torch.bfloat16, device=c.device)
        each = torch.empty((len(chosen), op.out.width), device=c.device)
        gate_up(rows, x, chosen, hidden)
        if rows.prefill:
            gemm(hidden, down, each, experts=ExpertBlocks(chosen, experts, 1))
            each *= shares[:, None]
        else:
            gemv(hidden, down, each, down_cut, inv_rms=shares, expert_ids=chosen)
        terms = each.view(len(x), k, op.out.width).transpose(0, 1)
        if not split:
            terms = _added_up(terms)
        rows.values[op.out.id] = terms

    return run


def _added_up(terms: torch.Tensor) -> torch.Tensor:
    """In order."""
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total


def _expert_gate_up(
    c: Lowering, op: ops.MoE
) -> Callable[[Rows, torch.Tensor, torch.Tensor, torch.Tensor], None]:
    """hidden[i] = activation(x @ gate.T) · (x @ up.T) of the expert chosen[i] and of row i // top_k of x.

    One product where gate and up can be interleaved, which they can unless a file mixes types; or two.
    """
    experts, k, activation = op.gate.shape[0], op.top_k, ACTIVATIONS[op.activation]
    together = c.interleaves(op.gate, op.up)
    if together:
        planes = [c.interleaved(op.gate, op.up, experts)]
    else:
        planes = [c.matrix(op.gate, experts), c.matrix(op.up, experts)]
    cuts = [gemv_tiles(each, False) for each in planes]

    def run(rows: Rows, x: torch.Tensor, chosen: torch.Tensor, hidden: torch.Tensor) -> None:
        outs = [hidden] if together else [torch.empty(hidden.shape, device=c.device) for _ in planes]
        fused = activation if together else None
        for weight, cut, out in zip(planes, cuts, outs, strict=True):
            if rows.prefill:
                gemm(x, weight, out, activation=fused, experts=ExpertBlocks(chosen, experts, k))
            else:
                gemv(x, weight, out, cut, activation=fused, expert_ids=chosen, rows_per_input=k)
        if not together:
            activations.gate(outs[0], outs[1], hidden, op.activation)

    return run
