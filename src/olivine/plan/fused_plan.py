"""A fused plan: the ops as a backend runs them, and in what form each value lies in memory.

The forms are facts of the fused ops, found here once, so that no kernel reads a value in a form that it does
not know:
- bfloat16: only products read it, and they would round it anyway; in a tower also what products make, unless
  it is part of the residual stream. All else is float32.
- deferred: rows of a norm that lack their factor 1 / rms. It lies beside them, and the products that read
  them multiply their results by it. A backend may do so or not.
- rounded: float32 as others need it, and once more in bfloat16, for the products that read it too. A backend
  may do so or not.
- split_k: the result of a product may lie there as several sums over parts of the columns, and that of a
  mixture as one of each expert; its reader adds them up. A backend may do so or not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from olivine.plan import ops, tower_ops
from olivine.plan.fused_ops import (
    AddNorm,
    AddNorms,
    GateUp,
    HeadNormRotate,
    LimitedActivate,
    LimitedGate,
    LimitedHeadNorm,
    LinearActivate,
    LinearGate,
    LinearPair,
    QueryAttention,
    StackedLinear,
    StoreAttention,
    TwoBranchAddNorm,
    WholeAttention,
    outputs_of,
)
from olivine.plan.ops import Op, Value
from olivine.plan.plan import Plan


@dataclass(frozen=True)
class FusedPlan:
    """The ops of a plan, some of them fused, and the forms of its values (by id). `plan.fuse` makes it."""

    plan: Plan
    ops: tuple[Op, ...]

    @cached_property
    def bfloat16(self) -> frozenset[int]:
        found = self._values(_can_be_bfloat16, _is_product_input)
        if self.plan.input is not None:
            # A clamp's input is, if its result is: from the last op to the first.
            for op in reversed(self.ops):
                for value in outputs_of(op):
                    readers = self._readers.get(value.id, [])
                    fine = readers and value.id not in self._results and isinstance(op, _MAKE_BRANCHES)
                    if fine and all(_reads_branch(reader, value, found) for reader in readers):
                        found |= {value.id}
        return found

    @cached_property
    def deferred(self) -> frozenset[int]:
        return self.bfloat16 & self._values(_can_be_deferred, _takes_factors)

    @cached_property
    def rounded(self) -> frozenset[int]:
        """Sums and norms of whole rows, which round what they have just made at no cost."""
        return frozenset(
            value.id
            for op in self.ops
            if _is_row_norm(op) or _is_sum(op)
            for value in outputs_of(op)
            if value.id not in self.bfloat16
            and any(_takes_factors(reader, value) for reader in self._readers.get(value.id, []))
        )

    @cached_property
    def split_k(self) -> frozenset[int]:
        """With one reader, or the parts would be added up again and again."""
        return frozenset(
            value for value in self._values(_can_be_split, _adds_up) if len(self._readers[value]) == 1
        )

    @cached_property
    def releases(self) -> tuple[tuple[int, ...], ...]:
        """For each op the values that nobody needs after it."""
        last: dict[int, int] = {}
        for index, op in enumerate(self.ops):
            for value in (*outputs_of(op), *op.inputs()):
                last[value.id] = index
        for result in self._results:
            last.pop(result, None)
        found: list[list[int]] = [[] for _ in self.ops]
        for value_id, index in last.items():
            found[index].append(value_id)
        return tuple(map(tuple, found))

    def __str__(self) -> str:
        lines = [f"fused plan {self.plan.name}: {len(self.ops)} ops of {len(self.plan.ops)}"]
        for op in self.ops:
            made = "; ".join(self._describe(value) for value in outputs_of(op))
            lines.append(f"  {op!s:<88} # {made}" if made else f"  {op}")
        return "\n".join(lines)

    def _describe(self, value: Value) -> str:
        forms = {
            "bf16": self.bfloat16,
            "also bf16": self.rounded,
            "factor deferred": self.deferred,
            "split-K": self.split_k,
        }
        named = [name for name, values in forms.items() if value.id in values]
        return ", ".join([f"{value.rows} × {value.width}", *named])

    @cached_property
    def _results(self) -> frozenset[int]:
        return frozenset((self.plan.hidden.id, self.plan.logits.id))

    @cached_property
    def _readers(self) -> dict[int, list[Op]]:
        """An op that reads a value twice is there twice."""
        found: dict[int, list[Op]] = {}
        for op in self.ops:
            for value in op.inputs():
                found.setdefault(value.id, []).append(op)
        return found

    def _values(self, made: Callable[[Op, Value], bool], read: Callable[[Op, Value], bool]) -> frozenset[int]:
        """Values that are read and no result, of an op that `made` takes and by ops that `read` takes."""
        found = set()
        for op in self.ops:
            for value in outputs_of(op):
                readers = self._readers.get(value.id, [])
                fine = readers and value.id not in self._results and made(op, value)
                if fine and all(read(reader, value) for reader in readers):
                    found.add(value.id)
        return frozenset(found)


_WRITE_BFLOAT16 = (
    ops.Linear, ops.RmsNorm, ops.LayerNorm, ops.Rope, ops.Attention, ops.Gate, ops.Activate, ops.Softcap,
    tower_ops.Clamp, tower_ops.RelativeAttention,
    GateUp, HeadNormRotate, LimitedActivate, LimitedGate, LimitedHeadNorm, LinearActivate, LinearGate,
    QueryAttention, StoreAttention, WholeAttention,
)  # fmt: skip


def _can_be_bfloat16(op: Op, value: Value) -> bool:
    """The residual stream, and all that is a mere view or a sum of others, stays in float32."""
    if isinstance(op, AddNorms | TwoBranchAddNorm):
        return value != op.sum.total
    return isinstance(op, _WRITE_BFLOAT16) or _is_norm_after_sum(op, value)


_MAKE_BRANCHES = (
    ops.Linear, ops.Gate, ops.RmsNorm, StackedLinear, LimitedActivate, LimitedGate, LimitedHeadNorm,
    tower_ops.Clamp, tower_ops.GridRope,
)  # fmt: skip


def _reads_branch(op: Op, value: Value, bfloat16: frozenset[int]) -> bool:
    """What lies between the products of a tower's layer: attention and gates, and sums as their second term.
    Not norms of heads, whose result is rounded again."""
    if isinstance(op, AddNorm):
        return value == op.branch and value != op.residual
    if isinstance(op, tower_ops.Clamp):
        return op.out.id in bfloat16
    return isinstance(op, WholeAttention | ops.Gate | LimitedGate | LimitedActivate)


def _is_product_input(op: Op, value: Value) -> bool:
    """A router's logits are compared with each other: rounded, another expert would win."""
    if isinstance(op, ops.MoE):
        return value == op.x and value != op.router
    return _takes_factors(op, value)


def _can_be_deferred(op: Op, value: Value) -> bool:
    """RMS norms of whole rows: one factor a row."""
    if isinstance(op, AddNorm) and (isinstance(op.norm, ops.LayerNorm) or op.limit is not None):
        return False
    return _is_row_norm(op) or _is_norm_after_sum(op, value)


def _takes_factors(op: Op, value: Value) -> bool:
    if isinstance(op, LinearGate):
        return value == op.x and value != op.up
    return isinstance(op, ops.Linear | LinearActivate | StackedLinear | LinearPair | GateUp)


def _can_be_split(op: Op, value: Value) -> bool:
    return isinstance(op, ops.Linear | ops.MoE)


def _adds_up(op: Op, value: Value) -> bool:
    """An RMS norm of whole rows, a sum with the value as a branch and no layer norm after it, and a mixture
    with the value as its router."""
    if isinstance(op, ops.Add):
        return value == op.b
    if isinstance(op, AddNorm):
        return value == op.branch and not isinstance(op.norm, ops.LayerNorm)
    if isinstance(op, AddNorms):
        return value == op.sum.branch
    if isinstance(op, TwoBranchAddNorm):
        return value in (op.first.x, op.second.x)
    if isinstance(op, ops.MoE):
        return value == op.router and value != op.x
    return _is_row_norm(op)


def _is_row_norm(op: Op) -> bool:
    return isinstance(op, ops.RmsNorm) and op.size == op.x.width


def _is_sum(op: Op) -> bool:
    return isinstance(op, ops.Add) or (isinstance(op, AddNorm) and not isinstance(op.norm, ops.LayerNorm))


def _is_norm_after_sum(op: Op, value: Value) -> bool:
    return isinstance(op, AddNorm) and value == op.normed
