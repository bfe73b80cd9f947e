"""Fused plans in NumPy: a fused op does what its kernel does, and values lie as the fused plan says.

So a rule that fuses what it must not shows as a wrong number or an error, without a GPU: a norm of heads is
one of the cache's heads whatever the plan's norm was, queries are rotated as keys are, a deferred norm lacks
its factor for whoever does not know of it, split-K sums are a matrix too many, weights that were stacked are
gone, and so are values after their last reader.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from olivine.backends import Batch, Result
from olivine.backends.base import Weights
from olivine.backends.reference import ReferenceProgram, kernels
from olivine.plan import Plan, Value, Weight, fused_ops, ops
from olivine.plan.clamps import limits_of
from olivine.plan.fuse import fuse
from olivine.plan.fused_plan import FusedPlan
from olivine.plan.tower_ops import Clamp

Alike = Callable[[Weight, Weight], bool]


def of_one_type(weights: Weights) -> Alike:
    """Weights are alike if their storage types are."""
    return lambda a, b: weights[a.name][0].dtype == weights[b.name][0].dtype


class FusedProgram(ReferenceProgram):
    """A plan that is fused before it runs. `alike` may be anything: what is stacked is up to the backend."""

    def __init__(self, plan: Plan, weights: Weights, *, alike: Alike | None = None, **options: Any) -> None:
        super().__init__(plan, weights, **options)
        self.fused = fuse(plan, alike or of_one_type(weights))
        stacked = (fused_ops.StackedLinear, fused_ops.LinearPair, fused_ops.GateUp)
        gone = {
            weight.name
            for op in self.fused.ops
            if isinstance(op, stacked)
            for weight in op.weights()
            if len(weight.shape) == 2
        }
        self._stacked = {name: weights[name] for name in gone}
        self._weights = {name: parts for name, parts in weights.items() if name not in gone}
        self._held: dict[int, np.ndarray] = {}
        self._factors: dict[int, np.ndarray] = {}

    def step(self, batch: Batch, *, logits: bool = True) -> Result:
        batch.check(self.plan, self.plan.vocabulary, self.page_counts, self.page_size)
        self._held, self._factors = {}, {}
        for op, releases in zip(self.fused.ops, self.fused.releases, strict=True):
            self._run_op(op, batch)
            for value in releases:
                del self._held[value]
        hidden, found = self._held[self.plan.hidden.id], self._held[self.plan.logits.id]
        return Result(hidden, found if logits else found[:, :0])

    # ---- values in their forms

    def _read(self, value: Value, *, bfloat16: bool = False, split_k: bool = False) -> np.ndarray:
        """A value for a reader that takes these forms. (The factor of a deferred norm is asked for apart.)"""
        assert bfloat16 or value.id not in self.fused.bfloat16, f"{value} is rounded, and not for its reader"
        assert split_k or value.id not in self.fused.split_k, (
            f"{value} is in parts, and its reader adds none up"
        )
        x = self._held[value.id]
        return x.sum(0) if x.ndim == 3 else x

    def _normed(self, op: ops.RmsNorm | ops.LayerNorm, x: np.ndarray) -> None:
        """A norm of whole rows, as the kernel of sums and norms has it."""
        assert op.size == x.shape[1]
        if isinstance(op, ops.LayerNorm):
            assert op.out.id not in self.fused.deferred
            centred = x - x.mean(1, keepdims=True)
            y = centred / np.sqrt(np.square(centred).mean(1, keepdims=True) + np.float32(op.eps))
            bias = self._maybe(op.bias)
            self._held[op.out.id] = y * self._dense(op.weight) + (0 if bias is None else bias)
            return
        if op.out.id not in self.fused.deferred:
            self._held[op.out.id] = kernels.rms_norm(x, self._maybe(op.weight), op.size, op.eps, op.offset)
            return
        weight = self._maybe(op.weight)
        self._factors[op.out.id] = 1 / np.sqrt(np.mean(np.square(x), axis=1) + np.float32(op.eps))
        self._held[op.out.id] = x if weight is None else x * (weight + np.float32(op.offset))

    def _limited(self, limit: Clamp | None, x: np.ndarray) -> np.ndarray:
        if limit is None:
            return x
        low, high = limits_of(limit, lambda weight: float(self._dense(weight).item()))
        return np.clip(x, np.float32(low), np.float32(high))

    def _product(
        self, x: Value, weight: np.ndarray, bias: np.ndarray | None, split: bool = False
    ) -> np.ndarray:
        rows = self._read(x, bfloat16=True)
        half = rows.shape[1] // 2 if split else rows.shape[1]
        parts = [rows[:, part] @ weight[:, part].T for part in (np.s_[:half], np.s_[half:])]
        if x.id in self._factors:
            parts = [part * self._factors[x.id][:, None] for part in parts]
        if bias is not None:
            parts[0] = parts[0] + bias
        return np.stack(parts) if split else parts[0]

    def _decoded(self, weight: Weight) -> np.ndarray:
        """A weight that is part of a larger matrix."""
        plain, self._weights = self._weights, self._stacked
        try:
            return self._dense(weight)
        finally:
            self._weights = plain
            self._kept.pop(weight.name, None)

    # ---- the ops

    def _run_op(self, op: ops.Op, batch: Batch) -> None:
        match op:
            case ops.Linear():
                weight, bias = self._dense(op.weight), self._maybe(op.bias)
                self._held[op.out.id] = self._product(op.x, weight, bias, op.out.id in self.fused.split_k)
            case ops.RmsNorm() if op.size == op.x.width:
                self._normed(op, self._read(op.x, split_k=True))
            case ops.Add():
                self._held[op.out.id] = self._read(op.a) + self._read(op.b, split_k=True)
            case ops.MoE():
                router = self._read(op.router, split_k=True)
                made = self._moe(op, self._read(op.x, bfloat16=True), router)
                split = op.out.id in self.fused.split_k  # one sum an expert: here two halves of each
                self._held[op.out.id] = np.stack([made / 2, made / 2]) if split else made
            case fused_ops.StackedLinear():
                weight = np.concatenate([self._decoded(linear.weight) for linear in op.linears])
                biases = [self._dense(linear.bias) for linear in op.linears if linear.bias is not None]
                y = self._product(op.x, weight, np.concatenate(biases) if biases else None)
                ends = np.cumsum([linear.out.width for linear in op.linears])
                for linear, part in zip(op.linears, np.split(y, ends[:-1], axis=1), strict=True):
                    self._held[linear.out.id] = part
            case fused_ops.LinearPair():
                self._run_op(op.first, batch)
                self._run_op(op.second, batch)
            case fused_ops.GateUp():
                gate, up = (
                    self._product(op.x, self._decoded(part.weight), None) for part in (op.gate, op.up)
                )
                self._held[op.activation.out.id] = kernels.gate(gate, up, op.activation.activation)
            case fused_ops.LinearGate():
                gate = self._product(op.x, self._dense(op.linear.weight), self._maybe(op.linear.bias))
                y = kernels.gate(gate, self._read(op.up), op.gate.activation)
                self._held[op.gate.out.id] = y
            case fused_ops.LimitedGate():
                gate, up = (self._read(value) for value in op.operands())
                gate, up = self._limited(op.gate_limit, gate), self._limited(op.up_limit, up)
                y = kernels.gate(gate, up, op.gate.activation)
                self._held[op.out.id] = self._limited(op.limit, y)
            case fused_ops.LimitedActivate():
                y = self._limited(op.before, self._read(op.x))
                y = kernels.gate(y, np.ones_like(y), op.activate.activation)
                self._held[op.out.id] = self._limited(op.limit, y)
            case fused_ops.LimitedHeadNorm():
                y, norm = self._limited(op.limit, self._read(op.limit.x)), op.norm
                y = kernels.rms_norm(y, self._maybe(norm.weight), norm.size, norm.eps, norm.offset)
                self._held[norm.out.id] = y
            case fused_ops.AddNorm():
                self._add_norm(op, self._read(op.branch, split_k=not isinstance(op.norm, ops.LayerNorm)))
            case fused_ops.AddNorms():
                self._add_norm(op.sum, self._read(op.sum.branch, split_k=True))
                assert isinstance(op.sum.norm, ops.RmsNorm)
                y = self._held[op.sum.total.id]
                for each in op.more:  # which have the factor of the first
                    made = kernels.rms_norm(
                        y, self._maybe(each.norm.weight), y.shape[1], op.sum.norm.eps, each.norm.offset
                    )
                    if each.scale is not None:
                        assert each.scale.weight is not None and each.scale.weight.shape == (y.shape[1],)
                        made = made * (self._dense(each.scale.weight) * np.float32(each.scale.factor))
                    self._held[each.out.id] = made
            case fused_ops.TwoBranchAddNorm():
                branches = []
                for norm in (op.first, op.second):
                    x = self._read(norm.x, split_k=True)
                    weight = self._maybe(norm.weight)
                    branches.append(kernels.rms_norm(x, weight, x.shape[1], norm.eps, norm.offset))
                self._add_norm(op.sum, branches[0] + branches[1])
            case fused_ops.HeadNormRotate():
                size = op.rope.rotation.head_dim
                x = self._heads(self._read(op.norm.x), size, op.norm, op.rope, batch)
                self._held[op.rope.out.id] = x
            case fused_ops.QueryAttention():
                q = self._heads(self._read(op.q), op.attention.cache.head_dim, op.norm, op.rope, batch)
                self._held[op.attention.out.id] = self._attend(op.attention, batch, q)
            case fused_ops.StoreAttention():
                self._store_attention(op, batch)
            case _:
                made = self._run(op, batch, self._read)
                if op.output is not None and made is not None:
                    self._held[op.output.id] = np.array(made, np.float32)

    def _add_norm(self, op: fused_ops.AddNorm, y: np.ndarray) -> None:
        """`y` is the branch, before its limit and its norm."""
        y = self._limited(op.branch_limit, y)
        if op.post is not None:
            weight = self._maybe(op.post.weight)
            y = kernels.rms_norm(y, weight, y.shape[1], op.post.eps, op.post.offset)
        y = self._read(op.residual) + y
        if op.scale is not None:
            weight = self._maybe(op.scale.weight)
            y = y * (np.float32(op.scale.factor) * (1 if weight is None else weight.reshape(())))
        self._held[op.total.id] = y
        if op.norm is not None:
            self._normed(op.norm, y)
        if op.norm is not None and op.limit is not None:
            self._held[op.limit.out.id] = self._limited(op.limit, self._held.pop(op.norm.out.id))

    def _store_attention(self, op: fused_ops.StoreAttention, batch: Batch) -> None:
        assert (op.q_norm is None) == (op.k_norm is None)
        size, rope = op.attention.cache.head_dim, op.k_rope  # the kernel has one rotation for both
        k = self._heads(self._read(op.k), size, op.k_norm, rope, batch)
        v = self._heads(self._read(op.v), size, op.v_norm, None, batch)
        self._store(op.attention.cache, batch, k, v)
        q = self._heads(self._read(op.q), size, op.q_norm, rope, batch)
        self._held[op.attention.out.id] = self._attend(op.attention, batch, q)

    def _heads(
        self, x: np.ndarray, size: int, norm: ops.RmsNorm | None, rope: ops.Rope | None, batch: Batch
    ) -> np.ndarray:
        """Norm and rotation of heads of one size."""
        if norm is not None:
            x = kernels.rms_norm(x, self._maybe(norm.weight), size, norm.eps, norm.offset)
        if rope is not None:
            assert rope.rotation.head_dim == size
            x = kernels.rope(x, batch.positions, rope.rotation, self._maybe(rope.divisors))
        return x


def patterns(plan: FusedPlan) -> set[str]:
    """What a fused plan consists of: plain ops, those of them that have rows of outputs, and what fused ops
    have as parts."""
    found = set()
    for op in plan.ops:
        if isinstance(op, fused_ops.FusedOp):
            found |= {f"{op.kind}: {part.kind}" for part in op.parts()}
        else:
            found.add(op.kind)
        if any(value.rows == "outputs" for value in fused_ops.outputs_of(op)):
            found |= {f"{part.kind} of outputs" for part in fused_ops.parts_of(op)}
    return found


def check_order(fused: FusedPlan) -> None:
    """Every op of the plan is there once and reads what is made before it; caches change in their order."""
    plain = [part for op in fused.ops for part in fused_ops.parts_of(op)]
    assert sorted(map(id, plain)) == sorted(map(id, fused.plan.ops))
    made: set[int] = set()
    for op in fused.ops:
        assert {value.id for value in op.inputs()} <= made, f"{op} reads what is not there"
        made |= {value.id for value in fused_ops.outputs_of(op)}
    results = (fused.plan.hidden, fused.plan.logits) if fused.plan.input is None else (fused.plan.hidden,)
    assert {result.id for result in results} <= made
    place = {id(op): index for index, op in enumerate(plain)}
    keeping = [op for op in fused.plan.ops if isinstance(op, ops.StoreKV | ops.Attention)]
    for index, first in enumerate(keeping):
        for second in keeping[index + 1 :]:
            both_read = isinstance(first, ops.Attention) and isinstance(second, ops.Attention)
            assert both_read or first.cache != second.cache or place[id(first)] < place[id(second)]
