"""Fused ops: each stands for a few plain ops that one kernel (or a fixed pair of them) runs together.

A fused op holds the plain ops it stands for, so what it computes needs no second definition: its `parts`, one
after another. `plan/fuse.py` makes them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from olivine.plan import ops
from olivine.plan.ops import Cache, Op, Value, Weight
from olivine.plan.tower_ops import Clamp


@dataclass(frozen=True)
class FusedOp(Op):
    """The base of fused ops. Values that only its parts read exist nowhere else."""

    def parts(self) -> tuple[Op, ...]:
        """The plain ops, in an order in which they could run."""
        raise NotImplementedError

    def outputs(self) -> tuple[Value, ...]:
        """The values that other ops can read."""
        raise NotImplementedError

    def inputs(self) -> Iterator[Value]:
        made = {part.output.id for part in self.parts() if part.output is not None}
        for part in self.parts():
            yield from (value for value in part.inputs() if value.id not in made)

    def weights(self) -> Iterator[Weight]:
        for part in self.parts():
            yield from part.weights()

    def __str__(self) -> str:
        words: dict[str, None] = {str(value): None for value in self.inputs()}
        words |= {str(cache): None for part in self.parts() if (cache := _cache_of(part)) is not None}
        words |= {str(weight): None for weight in self.weights()}
        made = ", ".join(str(value) for value in self.outputs())
        parts = " + ".join(part.kind for part in self.parts())
        return f"{made} = {self.kind}({', '.join(words)}: {parts})"


@dataclass(frozen=True)
class StackedLinear(FusedOp):
    """Linear ops of one value as one product: their weights are the rows of one matrix."""

    linears: tuple[ops.Linear, ...]

    @property
    def x(self) -> Value:
        return self.linears[0].x

    def parts(self) -> tuple[Op, ...]:
        return self.linears

    def outputs(self) -> tuple[Value, ...]:
        return tuple(linear.out for linear in self.linears)

    def inputs(self) -> Iterator[Value]:
        yield self.x


@dataclass(frozen=True)
class LinearPair(FusedOp):
    """Linear ops of one value whose weights are of two kinds: a product of each, side by side."""

    first: StackedLinear
    second: StackedLinear

    @property
    def x(self) -> Value:
        return self.first.x

    def parts(self) -> tuple[Op, ...]:
        return *self.first.parts(), *self.second.parts()

    def outputs(self) -> tuple[Value, ...]:
        return *self.first.outputs(), *self.second.outputs()

    def inputs(self) -> Iterator[Value]:
        yield self.x


@dataclass(frozen=True)
class GateUp(FusedOp):
    """activation(x @ gate.T) · (x @ up.T) as one product: the weights' rows are interleaved."""

    gate: ops.Linear
    up: ops.Linear
    activation: ops.Gate

    @property
    def x(self) -> Value:
        return self.gate.x

    def parts(self) -> tuple[Op, ...]:
        return self.gate, self.up, self.activation

    def outputs(self) -> tuple[Value, ...]:
        return (self.activation.out,)

    def inputs(self) -> Iterator[Value]:
        yield self.x


@dataclass(frozen=True)
class LinearActivate(FusedOp):
    """activation(x @ weight.T + bias) as one product."""

    linear: ops.Linear
    activate: ops.Activate

    def parts(self) -> tuple[Op, ...]:
        return self.linear, self.activate

    def outputs(self) -> tuple[Value, ...]:
        return (self.activate.out,)


@dataclass(frozen=True)
class LinearGate(FusedOp):
    """activation(x @ weight.T + bias) · up as one product, where up was made elsewhere."""

    linear: ops.Linear
    gate: ops.Gate

    @property
    def x(self) -> Value:
        return self.linear.x

    @property
    def up(self) -> Value:
        return self.gate.up

    def parts(self) -> tuple[Op, ...]:
        return self.linear, self.gate

    def outputs(self) -> tuple[Value, ...]:
        return (self.gate.out,)


@dataclass(frozen=True)
class LimitedGate(FusedOp):
    """A gated activation with the limits of its operands and of its result."""

    gate_limit: Clamp | None
    up_limit: Clamp | None
    gate: ops.Gate
    limit: Clamp | None  # of the result

    @property
    def out(self) -> Value:
        return self.gate.out if self.limit is None else self.limit.out

    def operands(self) -> tuple[Value, Value]:
        """Before their limits."""
        gate, up = self.gate_limit, self.up_limit
        return self.gate.gate if gate is None else gate.x, self.gate.up if up is None else up.x

    def parts(self) -> tuple[Op, ...]:
        return _present(self.gate_limit, self.up_limit, self.gate, self.limit)

    def outputs(self) -> tuple[Value, ...]:
        return (self.out,)


@dataclass(frozen=True)
class LimitedActivate(FusedOp):
    """An activation with the limits of its operand and of its result."""

    before: Clamp | None
    activate: ops.Activate
    limit: Clamp | None  # of the result

    @property
    def x(self) -> Value:
        return self.activate.x if self.before is None else self.before.x

    @property
    def out(self) -> Value:
        return self.activate.out if self.limit is None else self.limit.out

    def parts(self) -> tuple[Op, ...]:
        return _present(self.before, self.activate, self.limit)

    def outputs(self) -> tuple[Value, ...]:
        return (self.out,)


@dataclass(frozen=True)
class LimitedHeadNorm(FusedOp):
    """The norm of each head, whose columns are limited before."""

    limit: Clamp
    norm: ops.RmsNorm

    def parts(self) -> tuple[Op, ...]:
        return self.limit, self.norm

    def outputs(self) -> tuple[Value, ...]:
        return (self.norm.out,)


@dataclass(frozen=True)
class AddNorm(FusedOp):
    """residual + branch, with limits and the norm of the branch before, a scale, the norm of the sum and its
    limits after it. With a layer norm after it, there is none of the others."""

    post: ops.RmsNorm | None  # of the branch
    add: ops.Add
    scale: ops.Scale | None  # of the sum, by one number
    norm: ops.RmsNorm | ops.LayerNorm | None  # of the sum
    branch_limit: Clamp | None = None
    limit: Clamp | None = None  # of the norm

    @property
    def residual(self) -> Value:
        return self.add.a

    @property
    def branch(self) -> Value:
        value = self.add.b if self.post is None else self.post.x
        return value if self.branch_limit is None else self.branch_limit.x

    @property
    def total(self) -> Value:
        return self.add.out if self.scale is None else self.scale.out

    @property
    def normed(self) -> Value | None:
        if self.limit is not None:
            return self.limit.out
        return None if self.norm is None else self.norm.out

    def parts(self) -> tuple[Op, ...]:
        return _present(self.branch_limit, self.post, self.add, self.scale, self.norm, self.limit)

    def outputs(self) -> tuple[Value, ...]:
        return (self.total,) if self.normed is None else (self.total, self.normed)


@dataclass(frozen=True)
class ScaledNorm:
    """A norm of rows, which a vector may scale: as one norm with another weight."""

    norm: ops.RmsNorm
    scale: ops.Scale | None

    @property
    def out(self) -> Value:
        return self.norm.out if self.scale is None else self.scale.out


@dataclass(frozen=True)
class AddNorms(FusedOp):
    """A sum with the norm of its branch before it, and several norms of the sum after it: a layer with
    parallel branches has one for each."""

    sum: AddNorm  # with a norm after it
    more: tuple[ScaledNorm, ...]  # of the same eps

    def parts(self) -> tuple[Op, ...]:
        return (*self.sum.parts(), *(part for each in self.more for part in _present(each.norm, each.scale)))

    def outputs(self) -> tuple[Value, ...]:
        return (*self.sum.outputs(), *(each.out for each in self.more))


@dataclass(frozen=True)
class TwoBranchAddNorm(FusedOp):
    """A sum whose branch is that of two branches, each with a norm of its own; and the norm of their sum, a
    scale and the norm of the total as in `AddNorm`."""

    first: ops.RmsNorm
    second: ops.RmsNorm
    join: ops.Add  # of both
    sum: AddNorm  # of the residual and the norm of the joined branches

    def parts(self) -> tuple[Op, ...]:
        return (self.first, self.second, self.join, *self.sum.parts())

    def outputs(self) -> tuple[Value, ...]:
        return self.sum.outputs()


@dataclass(frozen=True)
class HeadNormRotate(FusedOp):
    """The norm of each head and its rotation."""

    norm: ops.RmsNorm
    rope: ops.Rope

    def parts(self) -> tuple[Op, ...]:
        return self.norm, self.rope

    def outputs(self) -> tuple[Value, ...]:
        return (self.rope.out,)


@dataclass(frozen=True)
class QueryAttention(FusedOp):
    """Attention to a cache that is written elsewhere, with the norm and the rotation of its queries."""

    norm: ops.RmsNorm | None
    rope: ops.Rope | None
    attention: ops.Attention

    @property
    def q(self) -> Value:
        return _source(self.attention.q, self.norm, self.rope)

    def parts(self) -> tuple[Op, ...]:
        return _present(self.norm, self.rope, self.attention)

    def outputs(self) -> tuple[Value, ...]:
        return (self.attention.out,)


@dataclass(frozen=True)
class StoreAttention(FusedOp):
    """Norm and rotation of queries and keys, norm of values, the cache write, and attention.

    Queries and keys are rotated alike, and either both have a norm or neither has. A backend may do all of it
    in one kernel for decode, or write the cache first and attend then.
    """

    q_norm: ops.RmsNorm | None
    k_norm: ops.RmsNorm | None
    v_norm: ops.RmsNorm | None
    q_rope: ops.Rope | None
    k_rope: ops.Rope | None
    store: ops.StoreKV
    attention: ops.Attention

    @property
    def q(self) -> Value:
        return _source(self.attention.q, self.q_norm, self.q_rope)

    @property
    def k(self) -> Value:
        return _source(self.store.k, self.k_norm, self.k_rope)

    @property
    def v(self) -> Value:
        return _source(self.store.v, self.v_norm, None)

    def parts(self) -> tuple[Op, ...]:
        norms = (self.q_norm, self.k_norm, self.v_norm)
        return _present(*norms, self.q_rope, self.k_rope, self.store, self.attention)

    def outputs(self) -> tuple[Value, ...]:
        return (self.attention.out,)


@dataclass(frozen=True)
class WholeAttention(FusedOp):
    """Attention to the keys and values of the same rows, as a tower has it: sequences are whole in a batch,
    so nobody reads the cache later, and it need not be written."""

    store: ops.StoreKV
    attention: ops.Attention
    limit: Clamp | None = None  # of the result

    @property
    def out(self) -> Value:
        return self.attention.out if self.limit is None else self.limit.out

    def parts(self) -> tuple[Op, ...]:
        return _present(self.store, self.attention, self.limit)

    def outputs(self) -> tuple[Value, ...]:
        return (self.out,)


def outputs_of(op: Op) -> tuple[Value, ...]:
    """The values that a plain or fused op makes for others."""
    if isinstance(op, FusedOp):
        return op.outputs()
    return () if op.output is None else (op.output,)


def parts_of(op: Op) -> tuple[Op, ...]:
    """The plain ops that a plain or fused op stands for."""
    return op.parts() if isinstance(op, FusedOp) else (op,)


def _source(value: Value, norm: ops.RmsNorm | None, rope: ops.Rope | None) -> Value:
    """Where a value of heads comes from, before its norm and its rotation."""
    if norm is not None:
        return norm.x
    return value if rope is None else rope.x


def _present(*parts: Op | None) -> tuple[Op, ...]:
    return tuple(part for part in parts if part is not None)


def _cache_of(op: Op) -> Cache | None:
    return op.cache if isinstance(op, ops.StoreKV | ops.Attention) else None
