"""Launchers of a tower's products, by cuBLAS.

A tower has prefill rows only, so its weights need no tiles for GEMV and lie row after row in BF16. In which
order cuBLAS sums may depend on the number of rows: so each sequence of the batch is multiplied by itself, and
an image has the same bits alone and beside others.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from olivine.backends.cuda.kernels import activations
from olivine.backends.cuda.lowering import Launch, Lowering
from olivine.backends.cuda.rows import Rows
from olivine.plan import Value, Weight, ops
from olivine.plan.fused_ops import LinearActivate, StackedLinear


def linear(c: Lowering, op: ops.Linear) -> Launch:
    return _product(c, op.x, [op.weight], [op.bias], [op.out])


def stacked_linear(c: Lowering, op: StackedLinear) -> Launch:
    """The results are columns of one matrix."""
    linears = op.linears
    return _product(c, op.x, [each.weight for each in linears], [each.bias for each in linears], op.outputs())


def linear_activate(c: Lowering, op: LinearActivate) -> Launch:
    linear, activation, out = op.linear, op.activate.activation, op.activate.out
    dtype = c.dtype(out)
    weight, bias = c.bfloat16_matrix([linear.weight]), _bias(c, [linear.bias], dtype)
    fused = activation == "gelu_tanh" and bias is not None and dtype == torch.bfloat16

    def run(rows: Rows) -> None:
        y = _products(rows, linear.x, weight, bias, dtype, fused)
        if not fused:
            activations.gate(y, None, y, activation)
        rows.values[out.id] = y

    return run


def _product(
    c: Lowering,
    x: Value,
    weights: Sequence[Weight],
    biases: Sequence[Weight | None],
    outs: Sequence[Value],
) -> Launch:
    dtypes = {c.dtype(out) for out in outs}
    dtype = dtypes.pop() if len(dtypes) == 1 else torch.float32
    weight, bias = c.bfloat16_matrix(weights), _bias(c, biases, dtype)

    def run(rows: Rows) -> None:
        y, start = _products(rows, x, weight, bias, dtype), 0
        for out in outs:
            rows.values[out.id] = y[:, start : start + out.width]
            start += out.width

    return run


def _products(
    rows: Rows,
    x_value: Value,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    dtype: torch.dtype,
    gelu: bool = False,
) -> torch.Tensor:
    """Of each sequence by itself."""
    assert rows.tower is not None
    x, start = rows.operand(x_value.id).to(torch.bfloat16), 0
    y = torch.empty((len(x), len(weight)), dtype=dtype, device=x.device)
    for length in rows.tower.lengths if x_value.rows == "tokens" else rows.tower.output_lengths:
        product(x[start : start + length], weight, bias, y[start : start + length], gelu)
        start += length
    return y


def product(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, out: torch.Tensor, gelu: bool
) -> None:
    """out = x @ weight.T + bias with operands in BF16, sums in float32 and a bias of out's type; or gelu_tanh
    of that."""
    if x.device.type == "cpu":  # beside Triton's interpreter
        y = x.float() @ weight.float().T
        y = y if bias is None else y + bias.float()
        out.copy_(torch.nn.functional.gelu(y, approximate="tanh") if gelu else y)
    elif out.dtype == torch.float32:
        torch.mm(x, weight.T, out_dtype=torch.float32, out=out)
        if bias is not None:
            out.add_(bias)
    elif bias is None:
        torch.mm(x, weight.T, out=out)
    elif gelu:
        torch._addmm_activation(bias, x, weight.T, use_gelu=True, out=out)
    else:
        torch.addmm(bias, x, weight.T, out=out)


def _bias(c: Lowering, biases: Sequence[Weight | None], dtype: torch.dtype) -> torch.Tensor | None:
    found = [c.vector(bias).to(dtype) for bias in biases if bias is not None]
    return torch.cat(found) if found else None
