"""The launcher of mixtures of experts."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from olivine.backends.cuda.formats import Format
from olivine.backends.cuda.kernels import activations
from olivine.backends.cuda.kernels.activations import ACTIVATIONS
from olivine.backends.cuda.kernels.expert_blocks import expert_blocks
from olivine.backends.cuda.kernels.gemm import gemm
from olivine.backends.cuda.kernels.gemv import GemvExperts, gemv
from olivine.backends.cuda.kernels.gemv_pair import RowProduct, gemv_pair
from olivine.backends.cuda.kernels.routing import route
from olivine.backends.cuda.launch_products import Product
from olivine.backends.cuda.lowering import Launch, Lowering
from olivine.backends.cuda.rows import Route, Rows
from olivine.backends.cuda.tiles import GROUPED_DECODE_ROWS, GemvTiles, decode_block, expert_block, gemv_tiles
from olivine.backends.cuda.weights import Planes
from olivine.plan import ops


@dataclass(frozen=True)
class _Weight:
    """The weights of all experts, and their tiles for decode rows."""

    planes: Planes
    tiles: GemvTiles


class Mixture:
    """Experts are chosen as soon as the router's logits are there; their products run in the op's place."""

    def __init__(self, c: Lowering, op: ops.MoE) -> None:
        self._op, self._device = op, c.device
        self._experts, self._inner = op.gate.shape[:2]
        self._gate_up, self._down = _GateUp(c, op), _weight(c.matrix(op.down, self._experts))
        weights = (self._down, *self._gate_up.weights)
        self._is_float = any(weight.planes.format is Format.FLOAT for weight in weights)
        self._scale = None if op.scale is None else c.vector(op.scale).float()
        self._divided = op.router.width != self._experts
        if self._divided:  # another rank's experts have no share: any expert of this one stands in for them
            mine, self._scale = self._scale, torch.zeros(op.router.width, device=c.device)
            self._scale[op.first : op.first + self._experts] = 1.0 if mine is None else mine
        self._split = op.out.id in c.fused.split_k
        self._beside: Product | None = None

    def after(self, product: Launch) -> Launch:
        """The product that makes the router's logits, and the choice of experts."""

        def run(rows: Rows) -> None:
            product(rows)
            self._route(rows)

        return run

    def beside(self, c: Lowering, product: Product) -> Launch:
        """The product that comes just before, and is of other values: its own launch, or, for one generated
        row of quantized weights, a part of that of gate and up, which then need not wait for it."""
        if product.outs[0].rows != self._op.out.rows or product.x.id in c.fused.deferred:
            return product
        formats = {product.planes.format, *(weight.planes.format for weight in self._gate_up.weights)}
        if Format.FLOAT in formats or not self._gate_up.together:
            return product
        self._beside = product

        def run(rows: Rows) -> None:
            x = rows.operand(product.x.id)
            if rows.prefill or len(x) != 1:
                product(rows)
            else:
                rows.beside[product.outs[0].id] = x

        return run

    def _route(self, rows: Rows) -> Route:
        op, logits = self._op, rows.values[self._op.router.id]
        shares, ids = route(logits, op.top_k, normalize=op.normalize, scale=self._scale)
        if self._divided:
            ids = (ids - op.first).clamp(0, self._experts - 1)
        blocks = None
        if rows.prefill:
            size = expert_block(len(ids), self._experts, self._is_float, self._device)
            blocks = expert_blocks(ids, self._experts, size)
        elif len(ids) >= GROUPED_DECODE_ROWS * op.top_k:
            blocks = expert_blocks(ids, self._experts, decode_block(len(ids), self._experts))
        rows.routes[op.out.id] = found = Route(logits, shares, ids, blocks)
        return found

    def __call__(self, rows: Rows) -> None:
        op, x = self._op, rows.values[self._op.x.id]
        found = rows.routes.get(op.out.id)
        if found is None or found.logits is not rows.values[op.router.id]:
            found = self._route(rows)
        hidden = torch.empty((len(found.ids), self._inner), dtype=torch.bfloat16, device=self._device)
        if self._beside is not None and self._beside.outs[0].id in rows.beside:
            other = self._beside.as_row_product(rows, rows.beside.pop(self._beside.outs[0].id))
            self._gate_up.run_with(other, x, found, op.top_k, hidden)
        else:
            self._gate_up.run(rows.prefill, x, found, op.top_k, hidden)
        each = torch.empty((len(found.ids), op.out.width), device=self._device)
        # The product before waits for the choice of experts before it releases this one, and so it does with
        # another one beside it: this one starts when all programs of that launch have released.
        early = self._gate_up.together
        _product(rows.prefill, hidden, self._down, each, found, 1, row_scale=found.shares, early=early)
        terms = each.view(len(x), op.top_k, op.out.width).transpose(0, 1)
        rows.values[op.out.id] = terms if self._split else _added_up(terms)
        del rows.routes[op.out.id]


def _product(
    prefill: bool,
    x: torch.Tensor,
    weight: _Weight,
    out: torch.Tensor,
    chosen: Route,
    rows_per_input: int,
    activation: int | None = None,
    row_scale: torch.Tensor | None = None,
    early: bool = False,
) -> None:
    blocks = None if chosen.blocks is None else replace(chosen.blocks, rows_per_input=rows_per_input)
    if prefill:
        gemm(x, weight.planes, out, activation=activation, experts=blocks, row_scale=row_scale)
        return
    experts = blocks or GemvExperts(chosen.ids, rows_per_input, early)
    gemv(x, weight.planes, out, weight.tiles, inv_rms=row_scale, activation=activation, experts=experts)


def _added_up(terms: torch.Tensor) -> torch.Tensor:
    """In order."""
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total


def _weight(planes: Planes) -> _Weight:
    return _Weight(planes, gemv_tiles(planes, False))


class _GateUp:
    """hidden[i] = activation(x @ gate.T) · (x @ up.T) of the expert and of the input row of result row i.

    One product where gate and up can be interleaved, which they can unless a file mixes types; or two.
    """

    def __init__(self, c: Lowering, op: ops.MoE) -> None:
        experts, self._activation = op.gate.shape[0], op.activation
        self.together = c.interleaves(op.gate, op.up)
        if self.together:
            self.weights = [_weight(c.interleaved(op.gate, op.up, experts))]
        else:
            self.weights = [_weight(c.matrix(op.gate, experts)), _weight(c.matrix(op.up, experts))]

    def run(self, prefill: bool, x: torch.Tensor, chosen: Route, top_k: int, hidden: torch.Tensor) -> None:
        if self.together:
            activation = ACTIVATIONS[self._activation]
            _product(prefill, x, self.weights[0], hidden, chosen, top_k, activation)
            return
        gate, up = (torch.empty(hidden.shape, device=hidden.device) for _ in self.weights)
        for weight, out in zip(self.weights, (gate, up), strict=True):
            _product(prefill, x, weight, out, chosen, top_k)
        activations.gate(gate, up, hidden, self._activation)

    def run_with(
        self, other: RowProduct, x: torch.Tensor, chosen: Route, top_k: int, hidden: torch.Tensor
    ) -> None:
        """For one row, and another product in the same launch."""
        weight = self.weights[0]
        first = RowProduct(x, weight.planes, hidden, None, weight.tiles)
        gemv_pair(first, other, activation=ACTIVATIONS[self._activation], experts=(chosen.ids, top_k))
