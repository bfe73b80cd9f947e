"""From a fused plan to launches: one launcher for every plain op and one for every fused op.

A launcher is made once, when a model is compiled, and takes what it needs of the weights then; it runs for
every step. The plain ones are always there, so a plan that no fusing rule knows runs all the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from olivine.backends.cuda import (
    launch_attention,
    launch_mixture,
    launch_products,
    launch_ranks,
    launch_rowwise,
    launch_tower_products,
    launch_towers,
)
from olivine.backends.cuda.kernels.activations import ACTIVATIONS
from olivine.backends.cuda.lowering import Launch, Lowering, Maker
from olivine.backends.cuda.rows import Rows
from olivine.errors import ModelError
from olivine.plan import Plan, fused_ops, ops, rank_ops, tower_ops
from olivine.plan.ops import Op

RANK_OPS: dict[type[Op], Maker[Any]] = {
    rank_ops.AllReduce: launch_ranks.all_reduce,
    rank_ops.AllGather: launch_ranks.all_gather,
    rank_ops.Send: launch_ranks.send,
    rank_ops.Receive: launch_ranks.receive,
}
MAKERS: dict[type[Op], Maker[Any]] = {
    ops.Embed: launch_rowwise.embed,
    ops.RmsNorm: launch_rowwise.rms_norm,
    ops.Linear: launch_products.linear,
    ops.Rope: launch_attention.rope,
    ops.StoreKV: launch_attention.store_kv,
    ops.Attention: launch_attention.attention,
    ops.Gate: launch_rowwise.gate,
    ops.Add: launch_rowwise.add,
    ops.Scale: launch_rowwise.scale,
    ops.PositionScale: launch_attention.position_scale,
    ops.Columns: launch_rowwise.columns,
    ops.MoE: launch_mixture.Mixture,
    ops.TakeOutputs: launch_rowwise.take_outputs,
    ops.Softcap: launch_rowwise.softcap,
    ops.LayerNorm: launch_towers.layer_norm,
    ops.Activate: launch_towers.activate,
    tower_ops.Input: launch_towers.input,
    tower_ops.Clamp: launch_towers.clamp,
    tower_ops.Standardize: launch_towers.standardize,
    tower_ops.PositionEmbed: launch_towers.position_embed,
    tower_ops.GridRope: launch_towers.grid_rope,
    tower_ops.Pool: launch_towers.pool,
    tower_ops.Conv: launch_towers.conv,
    tower_ops.DepthwiseConv: launch_towers.depthwise_conv,
    tower_ops.RelativeAttention: launch_towers.relative_attention,
    **RANK_OPS,
    fused_ops.StackedLinear: launch_products.stacked_linear,
    fused_ops.LinearPair: launch_products.linear_pair,
    fused_ops.GateUp: launch_products.gate_up,
    fused_ops.LinearActivate: launch_tower_products.linear_activate,
    fused_ops.LinearGate: launch_products.linear_gate,
    fused_ops.LimitedActivate: launch_rowwise.limited_activate,
    fused_ops.LimitedGate: launch_rowwise.limited_gate,
    fused_ops.LimitedHeadNorm: launch_rowwise.limited_head_norm,
    fused_ops.AddNorm: launch_rowwise.add_norm,
    fused_ops.AddNorms: launch_rowwise.add_norms,
    fused_ops.TwoBranchAddNorm: launch_rowwise.two_branch_add_norm,
    fused_ops.HeadNormRotate: launch_attention.head_norm_rotate,
    fused_ops.QueryAttention: launch_attention.query_attention,
    fused_ops.StoreAttention: launch_attention.store_attention,
    fused_ops.WholeAttention: launch_attention.whole_attention,
}

MOST_HEAD = 512  # columns of a head that attention takes: its tiles must fit into shared memory
MOST_ROTATED = launch_attention.MOST_TOGETHER  # columns of a head that a rotation takes
MOST_NORM = 1 << 16  # columns that a norm takes: a program has all of them


@dataclass
class Step:
    """An op, what launches it, and the values that nobody reads after it."""

    op: Op
    run: Launch
    releases: tuple[int, ...]

    def __str__(self) -> str:
        return str(self.op)


def steps_of(lowering: Lowering) -> list[Step]:
    """The launches of a fused plan, in order."""
    fused = lowering.fused
    steps = [
        Step(op, MAKERS[type(op)](lowering, op), releases)
        for op, releases in zip(fused.ops, fused.releases, strict=True)
    ]
    products = {step.op.out.id: step for step in steps if isinstance(step.op, ops.Linear)}
    # What cannot wait for the mixture after it: a forward may end with the hidden states.
    urgent = {fused.plan.hidden.id} | {step.op.router.id for step in steps if isinstance(step.op, ops.MoE)}
    for before, step in pairwise(steps):
        if not isinstance(step.op, ops.MoE):
            continue
        assert isinstance(step.run, launch_mixture.Mixture)
        if step.op.router.id in products:
            product = products[step.op.router.id]
            product.run = step.run.after(product.run)
        if not isinstance(before.op, ops.Linear) or before.op.out.id in {*urgent, step.op.x.id}:
            continue
        if isinstance(before.run, launch_products.Product):
            before.run = step.run.beside(lowering, before.run)
    return steps


def refuse_unsupported(plan: Plan, alone: bool = True) -> None:
    """Raises where the kernels cannot run a plan, before anything of it is loaded; `alone`: without other
    ranks."""
    for op in plan.ops:
        if alone and type(op) in RANK_OPS:
            raise ModelError(f"{plan.name} is a part of a plan, and there are no other ranks")
        if type(op) not in MAKERS:
            raise ModelError(f"the CUDA backend has no {op.kind}; use device='cpu'")
        activation = getattr(op, "activation", None)
        if activation is not None and activation not in ACTIVATIONS:
            raise ModelError(f"the CUDA backend has no {op.kind} with {activation}; use device='cpu'")
        told = _limit(op)
        if told is not None:
            raise ModelError(f"the CUDA backend takes {told}; use device='cpu' ({op})")


def _limit(op: Op) -> str | None:
    """What an op asks too much of, and how much there is."""
    if isinstance(op, ops.Attention) and op.cache.head_dim > MOST_HEAD:
        return f"heads of at most {MOST_HEAD} columns, and {op.cache} has heads of {op.cache.head_dim}"
    if isinstance(op, ops.Rope) and op.rotation.head_dim > MOST_ROTATED:
        return f"rotary embeddings of at most {MOST_ROTATED} columns, and here are {op.rotation.head_dim}"
    if isinstance(op, ops.RmsNorm | ops.LayerNorm) and op.size > MOST_NORM:
        return f"norms of at most {MOST_NORM} columns, and here are {op.size}"
    return None


__all__ = ["MAKERS", "Lowering", "Rows", "Step", "refuse_unsupported", "steps_of"]
