"""Launchers of what happens to rows by themselves: embeddings, norms, sums, gates, scales, views."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from olivine.backends.cuda import launch_towers
from olivine.backends.cuda.kernels import activations, branch_norms
from olivine.backends.cuda.kernels import norm as norms
from olivine.backends.cuda.kernels.embed import embed as launch_embed
from olivine.backends.cuda.kernels.heads import Angles, Rotary, rotary_angles
from olivine.backends.cuda.launch_attention import MOST_TOGETHER, heads_of
from olivine.backends.cuda.lowering import Launch, Lowering
from olivine.backends.cuda.rows import Rows
from olivine.plan import Value, ops
from olivine.plan.fused_ops import (
    AddNorm,
    AddNorms,
    LimitedActivate,
    LimitedGate,
    LimitedHeadNorm,
    ScaledNorm,
    TwoBranchAddNorm,
)


def prepare_angles(c: Lowering, rows: Rows) -> None:
    """The angles of all rotary embeddings, once a step."""
    missing = _missing_angles(c, rows)
    _keep_angles(rows, missing, rotary_angles(rows.positions, missing))


def _missing_angles(c: Lowering, rows: Rows) -> list[Rotary]:
    return [rotary for rotary in c.rotaries.values() if id(rotary) not in rows.angles]


def _keep_angles(rows: Rows, rotaries: Sequence[Rotary], made: Sequence[torch.Tensor]) -> None:
    for rotary, angles in zip(rotaries, made, strict=True):
        rows.angles[id(rotary)] = angles


def embed(c: Lowering, op: ops.Embed) -> Launch:
    table, count = c.matrix(op.weight), op.weight.shape[0]
    divided = op.tokens != count

    def run(rows: Rows) -> None:
        out, tokens = torch.empty((len(rows.tokens), op.out.width), device=c.device), rows.tokens
        if rows.injected is not None and op.pad is not None:
            tokens = tokens.index_fill(0, rows.injected[0], op.pad)
        missing = _missing_angles(c, rows)
        angles = Angles.of(rows.positions, missing) if missing else None
        if angles is not None:
            _keep_angles(rows, missing, angles.outs)
        if divided:
            mine = (tokens >= op.first) & (tokens < op.first + count)
            launch_embed((tokens - op.first) * mine, table, out, op.scale, angles)
            out *= mine[:, None]
        else:
            launch_embed(tokens, table, out, op.scale, angles)
        if rows.injected is not None and op.pad is None:
            if op.first == 0:
                out.index_copy_(0, *rows.injected)
            else:
                out.index_fill_(0, rows.injected[0], 0)  # the first rank's
        rows.values[op.out.id] = out

    return run


def rms_norm(c: Lowering, op: ops.RmsNorm) -> Launch:
    """Of rows; or of heads, or of what is wider than any head and taken for rows of their own."""
    norm, whole = c.norm(op), op.size == op.x.width
    if not whole and op.size <= MOST_TOGETHER:
        return heads_of(c, op.x, op.out, op.size, op, None)

    def run(rows: Rows) -> None:
        x = rows.values[op.x.id]
        if whole:
            _add_norm(c, rows, op.out, x, norm=norm)
            return
        out = c.empty(rows, op.out)
        norms.add_norm(x.contiguous().view(-1, op.size), norm=norm, out=out.view(-1, op.size))
        rows.values[op.out.id] = out

    return run


def limited_head_norm(c: Lowering, op: LimitedHeadNorm) -> Launch:
    """In one launch, where a program can have a whole head."""
    if op.norm.size <= MOST_TOGETHER:
        return heads_of(c, op.limit.x, op.norm.out, op.norm.size, op.norm, None, op.limit)
    limit, norm = launch_towers.clamp(c, op.limit), rms_norm(c, op.norm)

    def run(rows: Rows) -> None:
        limit(rows)
        norm(rows)
        del rows.values[op.limit.out.id]

    return run


def add(c: Lowering, op: ops.Add) -> Launch:
    return add_norm(c, AddNorm(None, op, None, None))


def _residual_scale(c: Lowering, op: AddNorm) -> norms.ResidualScale | None:
    if op.scale is None:
        return None
    weight = None if op.scale.weight is None else c.vector(op.scale.weight)
    return norms.ResidualScale(weight, op.scale.factor)


def add_norm(c: Lowering, op: AddNorm) -> Launch:
    if isinstance(op.norm, ops.LayerNorm):
        return launch_towers.add_layer_norm(c, op, op.norm)
    post, norm, scaled = c.norm(op.post), c.norm(op.norm), _residual_scale(c, op)
    branch_limits, limits = c.limits(op.branch_limit), c.limits(op.limit)

    def run(rows: Rows) -> None:
        # A residual stream is; what a plan adds otherwise may be columns of something wider.
        residual, terms = rows.values[op.residual.id].contiguous(), rows.values[op.branch.id]
        total = torch.empty(residual.shape, device=c.device)
        rows.values[op.total.id] = total
        given: dict[str, Any] = {"residual": residual, "total": total, "post_norm": post, "scale": scaled}
        given["branch_limits"] = branch_limits
        copy = c.rounded(rows, op.total)
        if op.normed is None:
            norms.add_norm(terms, rounded=(copy, None), **given)
        else:
            _add_norm(c, rows, op.normed, terms, copy, norm=norm, limits=limits, **given)

    return run


def add_norms(c: Lowering, op: AddNorms) -> Launch:
    assert isinstance(op.sum.norm, ops.RmsNorm)
    norm = c.norm(op.sum.norm)
    assert norm is not None
    weights = [norm, *(_scaled_norm(c, each) for each in op.more)]
    return _branch_norms(
        c, op.sum, [op.sum.branch], None, weights, [op.sum.norm.out, *(each.out for each in op.more)]
    )


def two_branch_add_norm(c: Lowering, op: TwoBranchAddNorm) -> Launch:
    assert not isinstance(op.sum.norm, ops.LayerNorm)
    first, second, norm = c.norm(op.first), c.norm(op.second), c.norm(op.sum.norm)
    assert first is not None and second is not None
    outs = [] if op.sum.norm is None else [op.sum.norm.out]
    weights = [] if norm is None else [norm]
    return _branch_norms(c, op.sum, [op.first.x, op.second.x], (first, second), weights, outs)


def _scaled_norm(c: Lowering, each: ScaledNorm) -> norms.NormWeight:
    norm = c.norm(each.norm)
    assert norm is not None
    if each.scale is None or each.scale.weight is None:
        return norm
    weight = (norm.weight.float() + norm.offset) * (c.vector(each.scale.weight).float() * each.scale.factor)
    return norms.NormWeight(weight, norm.eps, 0.0)


def _branch_norms(
    c: Lowering,
    op: AddNorm,
    branches: Sequence[Value],
    before: tuple[norms.NormWeight, norms.NormWeight] | None,
    weights: Sequence[norms.NormWeight],
    outs: Sequence[Value],
) -> Launch:
    post, scaled = c.norm(op.post), _residual_scale(c, op)

    def run(rows: Rows) -> None:
        residual = rows.values[op.residual.id].contiguous()
        rows.values[op.total.id] = total = torch.empty(residual.shape, device=c.device)
        made = [c.empty(rows, value) for value in outs]
        branch_norms.branch_norms(
            [rows.values[branch.id] for branch in branches], residual, total,
            branch_norms=before, post_norm=post, scale=scaled, norms=weights, outs=made,
        )  # fmt: skip
        rows.values.update({value.id: out for value, out in zip(outs, made, strict=True)})

    return run


def _add_norm(
    c: Lowering,
    rows: Rows,
    normed: Value,
    terms: torch.Tensor,
    total_copy: torch.Tensor | None = None,
    **rest: Any,
) -> None:
    """The kernel with a norm at its end, whose factor decode may leave to the product."""
    rows.values[normed.id] = out = c.empty(rows, normed)
    rest["rounded"] = total_copy, c.rounded(rows, normed)
    if rows.prefill or normed.id not in c.fused.deferred:
        norms.add_norm(terms, out=out, **rest)
    else:
        rows.inv_rms[normed.id] = inv_rms = torch.empty(len(out), device=c.device)
        norms.add_norm(terms, out=out, inv_rms=inv_rms, **rest)


def gate(c: Lowering, op: ops.Gate) -> Launch:
    return limited_gate(c, LimitedGate(None, None, op, None))


def limited_gate(c: Lowering, op: LimitedGate) -> Launch:
    limits = c.limits(op.gate_limit), c.limits(op.up_limit), c.limits(op.limit)

    def run(rows: Rows) -> None:
        gate, up = (rows.values[value.id] for value in op.operands())
        out = c.empty(rows, op.out)
        activations.gate(gate, up, out, op.gate.activation, limits)
        rows.values[op.out.id] = out

    return run


def limited_activate(c: Lowering, op: LimitedActivate) -> Launch:
    limits = c.limits(op.before), None, c.limits(op.limit)

    def run(rows: Rows) -> None:
        out = c.empty(rows, op.out)
        activations.gate(rows.values[op.x.id], None, out, op.activate.activation, limits)
        rows.values[op.out.id] = out

    return run


def scale(c: Lowering, op: ops.Scale) -> Launch:
    weight = None if op.weight is None else c.vector(op.weight).float() * op.factor

    def run(rows: Rows) -> None:
        rows.values[op.out.id] = rows.values[op.x.id] * (op.factor if weight is None else weight)

    return run


def columns(c: Lowering, op: ops.Columns) -> Launch:
    """No launch: the columns where they are."""

    def run(rows: Rows) -> None:
        rows.values[op.out.id] = rows.values[op.x.id][:, op.start : op.start + op.out.width]

    return run


def take_outputs(c: Lowering, op: ops.TakeOutputs) -> Launch:
    def run(rows: Rows) -> None:
        x = rows.values[op.x.id]
        rows.values[op.out.id] = x if rows.outputs is None else x.index_select(0, rows.outputs)

    return run


def softcap(c: Lowering, op: ops.Softcap) -> Launch:
    def run(rows: Rows) -> None:
        out = c.empty(rows, op.out)
        activations.softcap(rows.values[op.x.id].contiguous(), out, op.cap)
        rows.values[op.out.id] = out

    return run
