"""Launchers of products: linear ops alone and stacked, and with a gate."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from olivine.backends.cuda import launch_rowwise, launch_tower_products
from olivine.backends.cuda.formats import Format
from olivine.backends.cuda.kernels.activations import ACTIVATIONS
from olivine.backends.cuda.kernels.gemm import gemm
from olivine.backends.cuda.kernels.gemv import gemv
from olivine.backends.cuda.kernels.gemv_pair import RowProduct, gemv_pair
from olivine.backends.cuda.lowering import Launch, Lowering
from olivine.backends.cuda.rows import Rows
from olivine.backends.cuda.tiles import gemv_tiles
from olivine.backends.cuda.weights import Planes
from olivine.plan import Value, ops
from olivine.plan.fused_ops import GateUp, LinearGate, LinearPair, StackedLinear


class Product:
    """x @ weight.T + bias. The columns are one value, or several one after another.

    Generated rows may have their result in several sums (split-K), if the reader adds them up. Output rows of
    a prompt are multiplied as generated rows are: they are few, and the head's weight is the largest.
    """

    def __init__(
        self,
        c: Lowering,
        x: Value,
        planes: Planes,
        bias: torch.Tensor | None,
        outs: Sequence[Value],
        dtype: torch.dtype,
    ) -> None:
        self.x, self.planes, self.outs = x, planes, outs
        self._bias, self._dtype = bias, dtype
        self._tiles = gemv_tiles(planes, outs[0].id in c.fused.split_k)
        self._takes_gemm = _takes_gemm(c, planes, outs[0])

    def __call__(self, rows: Rows) -> None:
        x, by_gemm = rows.operand(self.x.id), rows.prefill and self._takes_gemm
        result = self._result(rows, x, 1 if by_gemm else self._tiles.splits)  # prompts fill the device
        if by_gemm:
            gemm(x, self.planes, result, bias=self._bias, slabs=rows.slabs)
        else:
            inv_rms = rows.inv_rms.get(self.x.id)
            gemv(x, self.planes, result, self._tiles, inv_rms=inv_rms, bias=self._bias)

    def as_row_product(self, rows: Rows, x: torch.Tensor) -> RowProduct:
        """Of one generated row, to be launched with another product."""
        result = self._result(rows, x, self._tiles.splits)
        return RowProduct(x, self.planes, result, self._bias, self._tiles)

    def _result(self, rows: Rows, x: torch.Tensor, splits: int) -> torch.Tensor:
        """Memory for the result, whose columns are the values; the sums of a row lie together."""
        width, start = sum(out.width for out in self.outs), 0
        result = torch.empty((len(x), splits, width), dtype=self._dtype, device=x.device).transpose(0, 1)
        if splits == 1:
            result = result[0]
        for out in self.outs:
            rows.values[out.id] = result[..., start : start + out.width]
            start += out.width
        return result


def _takes_gemm(c: Lowering, planes: Planes, out: Value) -> bool:
    """Whether prompt rows of a product are multiplied by GEMM, which then wants the weight expanded."""
    if out.rows == "outputs":
        return False
    c.prompt_weights.append(planes)
    return True


def linear(c: Lowering, op: ops.Linear) -> Launch:
    if c.is_tower:
        return launch_tower_products.linear(c, op)
    return Product(c, op.x, c.matrix(op.weight), c.bias(op.bias), [op.out], c.dtype(op.out))


def stacked_linear(c: Lowering, op: StackedLinear) -> Launch:
    """The results are columns of one matrix, in float32."""
    if c.is_tower:
        return launch_tower_products.stacked_linear(c, op)
    return _stacked(c, op)


def _stacked(c: Lowering, op: StackedLinear) -> Product:
    biases = [c.vector(linear.bias) for linear in op.linears if linear.bias is not None]
    planes = c.stacked([linear.weight for linear in op.linears])
    return Product(c, op.x, planes, torch.cat(biases) if biases else None, op.outputs(), torch.float32)


def linear_pair(c: Lowering, op: LinearPair) -> Launch:
    """One launch for a generated row of quantized weights, and else two."""
    first, second = _stacked(c, op.first), _stacked(c, op.second)
    quantized = Format.FLOAT not in (first.planes.format, second.planes.format)

    def run(rows: Rows) -> None:
        x = rows.operand(op.x.id)
        if rows.prefill or len(x) != 1 or not quantized:
            first(rows)
            second(rows)
        else:
            inv_rms = rows.inv_rms.get(op.x.id)
            gemv_pair(first.as_row_product(rows, x), second.as_row_product(rows, x), inv_rms=inv_rms)

    return run


def gate_up(c: Lowering, op: GateUp) -> Launch:
    planes = c.interleaved(op.gate.weight, op.up.weight)
    tiles, activation = gemv_tiles(planes, False), ACTIVATIONS[op.activation.activation]
    out_value = op.activation.out
    takes_gemm = _takes_gemm(c, planes, out_value)

    def run(rows: Rows) -> None:
        x, out = rows.operand(op.x.id), c.empty(rows, out_value)
        if rows.prefill and takes_gemm:
            gemm(x, planes, out, activation=activation, slabs=rows.slabs)
        else:
            gemv(x, planes, out, tiles, inv_rms=rows.inv_rms.get(op.x.id), activation=activation)
        rows.values[out_value.id] = out

    return run


def linear_gate(c: Lowering, op: LinearGate) -> Launch:
    """In one launch where decode rows are multiplied with what is old enough; else in two."""
    product, gate = linear(c, op.linear), launch_rowwise.gate(c, op.gate)
    planes, bias = c.matrix(op.linear.weight), c.bias(op.linear.bias)
    tiles, activation, old = gemv_tiles(planes, False), ACTIVATIONS[op.gate.activation], c.is_old(op.up, op)

    def run(rows: Rows) -> None:
        if rows.prefill or not old:
            product(rows)
            gate(rows)
            del rows.values[op.linear.out.id]
            return
        x, up, out = rows.operand(op.x.id), rows.values[op.up.id], c.empty(rows, op.gate.out)
        inv_rms = rows.inv_rms.get(op.x.id)
        gemv(x, planes, out, tiles, inv_rms=inv_rms, bias=bias, activation=activation, up=up)
        rows.values[op.gate.out.id] = out

    return run
