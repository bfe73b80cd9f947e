"""Fusing: from a plan to a fused plan, by rules that each state when they apply.

A rule is a function of one op (the one in whose place the fused op will run) that gives a fused op or None.
What no rule takes stays the plain op it is: a pattern that nobody thought of is slower, never wrong. So a
rule that is not sure gives None.

Three conditions come back in every rule:
- A value inside a fused op has one reader, and is no result of the plan: nobody else can ask for it.
- A fused op moves ops: to an earlier place only what needs nothing that is made in between, to a later place
  only what nobody needs in between.
- A weight that becomes a part of a larger matrix is read by one op of the plan: by itself it is gone then.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from olivine.plan import ops
from olivine.plan.fused_ops import (
    AddNorm,
    AddNorms,
    FusedOp,
    GateUp,
    HeadNormRotate,
    LimitedActivate,
    LimitedGate,
    LimitedHeadNorm,
    LinearActivate,
    LinearGate,
    LinearPair,
    QueryAttention,
    ScaledNorm,
    StackedLinear,
    StoreAttention,
    TwoBranchAddNorm,
    WholeAttention,
    outputs_of,
)
from olivine.plan.fused_plan import FusedPlan
from olivine.plan.ops import Op, Value, Weight
from olivine.plan.plan import Plan
from olivine.plan.tower_ops import Clamp

Alike = Callable[[Weight, Weight], bool]
Kind = TypeVar("Kind", bound=Op)


def fuse(plan: Plan, alike: Alike) -> FusedPlan:
    """The fused plan. `alike` tells whether the rows of two weights can stand in one matrix."""
    view = PlanView(plan, alike)
    runs_at: dict[int, FusedOp] = {}
    for rule in RULES:
        for op in plan.ops:
            if view.free(op) and (fused := rule(view, op)) is not None:
                view.claim(fused)
                runs_at[id(op)] = fused
    fused_ops = [runs_at.get(id(op), op) for op in plan.ops if id(op) in runs_at or view.free(op)]
    return FusedPlan(plan, tuple(_routers_first(fused_ops)))


def _routers_first(fused_ops: list[Op]) -> list[Op]:
    """Linear ops that make the logits of a router right after the op that makes their input: a backend then
    knows the experts before branches that run beside them."""
    routers = {op.router.id for op in fused_ops if isinstance(op, ops.MoE)}
    early = [op for op in fused_ops if isinstance(op, ops.Linear) and op.out.id in routers]
    found = [op for op in fused_ops if not any(op is router for router in early)]
    for op in early:
        at = next(i for i, other in enumerate(found) if op.x in outputs_of(other))
        found.insert(at + 1, op)
    return found


class PlanView:
    """What rules ask about a plan, and which of its ops are part of a fused op already."""

    def __init__(self, plan: Plan, alike: Alike) -> None:
        self.alike = alike
        self.is_tower = plan.input is not None
        self._place = {id(op): index for index, op in enumerate(plan.ops)}
        self._producer = {op.output.id: op for op in plan.ops if op.output is not None}
        self._readers: dict[int, list[Op]] = {}
        self._weight_reads: dict[str, int] = {}
        for op in plan.ops:
            for value in op.inputs():
                self._readers.setdefault(value.id, []).append(op)
            for weight in op.weights():
                self._weight_reads[weight.name] = self._weight_reads.get(weight.name, 0) + 1
        self._results = {plan.hidden.id, plan.logits.id}
        self._stores = [op for op in plan.ops if isinstance(op, ops.StoreKV)]
        self._attentions = [op for op in plan.ops if isinstance(op, ops.Attention)]
        self._claimed: set[int] = set()

    def free(self, op: Op) -> bool:
        return id(op) not in self._claimed

    def claim(self, fused: FusedOp) -> None:
        self._claimed.update(id(part) for part in fused.parts())

    def comes_before(self, first: Op, second: Op) -> bool:
        return self._place[id(first)] < self._place[id(second)]

    def readers(self, value: Value) -> list[Op]:
        """In the order of the plan; an op that reads it twice is there twice."""
        return self._readers.get(value.id, [])

    def only_reader(self, value: Value) -> Op | None:
        """The op that alone reads the value, and only once; None for results of the plan."""
        readers = self.readers(value)
        return readers[0] if len(readers) == 1 and value.id not in self._results else None

    def inner(self, kind: type[Kind], value: Value) -> Kind | None:
        """The op that makes the value, if it is of the kind, free, and its value has one reader."""
        op = self._producer.get(value.id)
        wanted = isinstance(op, kind) and self.free(op) and self.only_reader(value) is not None
        return op if wanted and isinstance(op, kind) else None

    def read_once(self, weight: Weight) -> bool:
        return self._weight_reads[weight.name] == 1

    def stores(self, cache: ops.Cache) -> list[ops.StoreKV]:
        return [op for op in self._stores if op.cache == cache]

    def attentions(self, cache: ops.Cache) -> list[ops.Attention]:
        return [op for op in self._attentions if op.cache == cache]


# ---- the rules


def store_attention(view: PlanView, op: Op) -> FusedOp | None:
    """Attention with the cache write before it, and the norms and rotations of heads before both.

    The cache is written by one op of the plan, before this attention, and no other attention reads it
    earlier: the write moves down to this attention. Of norms and rotations, those that `_heads_before` finds;
    but queries and keys are rotated alike, and both have a norm or neither has, or what they differ in stays
    plain. Of values only a norm: no rotation.
    """
    if not isinstance(op, ops.Attention) or view.is_tower:
        return None
    stores, attentions = view.stores(op.cache), view.attentions(op.cache)
    if len(stores) != 1 or not view.free(stores[0]) or not view.comes_before(stores[0], op):
        return None
    if any(view.comes_before(other, op) for other in attentions):
        return None
    (store,), size = stores, op.cache.head_dim
    q_norm, q_rope = _heads_before(view, op.q, size)
    k_norm, k_rope = _heads_before(view, store.k, size)
    if _rotation(q_rope) != _rotation(k_rope):
        q_norm = k_norm = q_rope = k_rope = None
    if (q_norm is None) != (k_norm is None):
        q_norm = k_norm = None
    v_norm = _head_norm(view, store.v, size)
    return StoreAttention(q_norm, k_norm, v_norm, q_rope, k_rope, store, op)


def whole_attention(view: PlanView, op: Op) -> FusedOp | None:
    """Attention of a tower that sees images whole, with the cache write before it: the last one of that cache
    before this attention, which no other attention reads. With the limits of its result."""
    if (
        not isinstance(op, ops.Attention)
        or not view.is_tower
        or op.window is not None
        or not op.bidirectional
    ):
        return None
    before = [store for store in view.stores(op.cache) if view.comes_before(store, op)]
    if not before or not view.free(before[-1]):
        return None
    others = [other for other in view.attentions(op.cache) if other is not op]
    until = [store for store in view.stores(op.cache) if view.comes_before(op, store)][:1]
    for other in others:
        if view.comes_before(before[-1], other) and not any(view.comes_before(s, other) for s in until):
            return None
    return WholeAttention(before[-1], op, _limit_after(view, op.out))


def query_attention(view: PlanView, op: Op) -> FusedOp | None:
    """Attention to a cache that another layer writes, with the norm and the rotation of its queries."""
    if not isinstance(op, ops.Attention):
        return None
    norm, rope = _heads_before(view, op.q, op.cache.head_dim)
    return None if norm is None and rope is None else QueryAttention(norm, rope, op)


def head_norm_rotate(view: PlanView, op: Op) -> FusedOp | None:
    """A rotation of heads with the norm before it. The norm is of exactly those heads."""
    if not isinstance(op, ops.Rope):
        return None
    norm = _head_norm(view, op.x, op.rotation.head_dim)
    return None if norm is None else HeadNormRotate(norm, op)


def gate_up(view: PlanView, op: Op) -> FusedOp | None:
    """Gate, up and activation. Both are linear ops of one value, different ones, without bias, whose weights
    are alike and read by nobody else, and whose results only the activation reads. Runs at the first."""
    if not isinstance(op, ops.Linear):
        return None
    activation = view.only_reader(op.out)
    if not isinstance(activation, ops.Gate):
        return None
    gate, up = view.inner(ops.Linear, activation.gate), view.inner(ops.Linear, activation.up)
    if gate is None or up is None or gate is up or gate.x != up.x:
        return None
    if gate.bias is not None or up.bias is not None:
        return None
    if not (view.read_once(gate.weight) and view.read_once(up.weight) and view.alike(gate.weight, up.weight)):
        return None
    return GateUp(gate, up, activation)


def linear_pair(view: PlanView, op: Op) -> FusedOp | None:
    """Linear ops of one value (q, k and v) as in `stacked_linear`, whose weights are of two kinds: v is often
    stored with more bits. Not the router of a mixture, which other ops wait for. Runs at the first."""
    if not isinstance(op, ops.Linear) or view.is_tower:
        return None
    group = [other for other in _linears_beside(view, op) if not _is_router(view, other)]
    first = tuple(other for other in group if view.alike(other.weight, op.weight))
    second = tuple(other for other in group if other not in first)
    if op not in first or not second or not all(view.alike(second[0].weight, o.weight) for o in second):
        return None
    return LinearPair(StackedLinear(first), StackedLinear(second))


def stacked_linear(view: PlanView, op: Op) -> FusedOp | None:
    """Linear ops of one value (q, k and v), whose weights are alike and read by nobody else; all of them have
    a bias or none has. Runs at the first."""
    if not isinstance(op, ops.Linear):
        return None
    group = tuple(other for other in _linears_beside(view, op) if view.alike(other.weight, op.weight))
    return StackedLinear(group) if len(group) > 1 else None


def linear_activate(view: PlanView, op: Op) -> FusedOp | None:
    """A linear op of a tower and the activation that alone reads its result. Runs at the first."""
    if not isinstance(op, ops.Linear) or not view.is_tower:
        return None
    reader = view.only_reader(op.out)
    return LinearActivate(op, reader) if isinstance(reader, ops.Activate) and view.free(reader) else None


def linear_gate(view: PlanView, op: Op) -> FusedOp | None:
    """A gate with the linear op whose result it alone reads, and only as its gate. The linear op moves down
    to it. Not in a tower."""
    if not isinstance(op, ops.Gate) or view.is_tower:
        return None
    linear = view.inner(ops.Linear, op.gate)
    return None if linear is None else LinearGate(linear, op)


def limited_gate(view: PlanView, op: Op) -> FusedOp | None:
    """A gate with the limits of its operands, which it alone reads, and of its result."""
    if not isinstance(op, ops.Gate):
        return None
    limits = view.inner(Clamp, op.gate), view.inner(Clamp, op.up), _limit_after(view, op.out)
    return None if limits == (None, None, None) else LimitedGate(*limits[:2], op, limits[2])


def limited_activate(view: PlanView, op: Op) -> FusedOp | None:
    """An activation with the limits of what it alone reads, and of its result."""
    if not isinstance(op, ops.Activate):
        return None
    before, after = view.inner(Clamp, op.x), _limit_after(view, op.out)
    return None if before is None and after is None else LimitedActivate(before, op, after)


def limited_head_norm(view: PlanView, op: Op) -> FusedOp | None:
    """A norm of heads in a tower, with the limits of what it alone reads."""
    if not isinstance(op, ops.RmsNorm) or not view.is_tower or op.size == op.x.width:
        return None
    limit = view.inner(Clamp, op.x)
    return None if limit is None else LimitedHeadNorm(limit, op)


def two_branch_add_norm(view: PlanView, op: Op) -> FusedOp | None:
    """What `add_norm` takes, with the norm of a sum before it, whose terms both have a norm of their own.
    Each of these values has one reader."""
    found = add_norm(view, op)
    if found is None or found.post is None or _is_limited(found):
        return None
    join = view.inner(ops.Add, found.branch)
    if join is None:
        return None
    first, second = (_row_norm(view.inner(ops.RmsNorm, term)) for term in (join.a, join.b))
    return None if first is None or second is None else TwoBranchAddNorm(first, second, join, found)


def add_norms(view: PlanView, op: Op) -> FusedOp | None:
    """What `add_norm` takes, with more than one norm after it: of whole rows and the same eps, each of which
    a vector may scale that alone reads it. They move up to the sum, which is all that they need."""
    found = add_norm(view, op)
    if found is None or not isinstance(found.norm, ops.RmsNorm) or _is_limited(found):
        return None
    others = (_row_norm(reader) for reader in view.readers(found.total) if view.free(reader))
    more = [
        ScaledNorm(norm, _vector_scale(view, norm))
        for norm in others
        if norm is not None and norm is not found.norm and norm.eps == found.norm.eps
        if not _comes_before_a_sum(view, norm)
    ]
    return AddNorms(found, tuple(more[: MOST_NORMS - 1])) if more else None


def add_norm(view: PlanView, op: Op) -> AddNorm | None:
    """A sum with the norm of its second term before it, and a scale and a norm after it.

    All norms are of whole rows. The one before is read by this sum alone; the scale is by one number, and
    alone reads the sum. The norm after is the first of those that read the sum (which others may read too),
    unless it is itself a norm before a sum: that one takes it. A layer norm after it, where there is nothing
    else. Beside RMS norms, the limits before the first and after the last, of values that nobody else reads.
    """
    if not isinstance(op, ops.Add):
        return None
    post = _row_norm(view.inner(ops.RmsNorm, op.b))
    scale = view.only_reader(op.out)
    if not (isinstance(scale, ops.Scale) and view.free(scale) and _is_one_number(scale)):
        scale = None
    total = op.out if scale is None else scale.out
    after = (_row_norm(reader) for reader in view.readers(total) if view.free(reader))
    norm = next((norm for norm in after if norm is not None and not _comes_before_a_sum(view, norm)), None)
    if post is None and scale is None and norm is None:
        after_sum = (reader for reader in view.readers(op.out) if isinstance(reader, ops.LayerNorm))
        whole = (reader for reader in after_sum if view.free(reader) and reader.size == op.out.width)
        layer_norm = next(whole, None)
        return None if layer_norm is None else AddNorm(None, op, None, layer_norm)
    before = view.inner(Clamp, op.b if post is None else post.x)
    return AddNorm(post, op, scale, norm, before, None if norm is None else _limit_after(view, norm.out))


MOST_NORMS = 3  # of one sum, in one op
# Attention comes first: a norm of the only head of a row is one of heads there, and of a row everywhere else.
RULES: tuple[Callable[[PlanView, Op], FusedOp | None], ...] = (
    whole_attention,
    store_attention,
    query_attention,
    head_norm_rotate,
    gate_up,
    linear_activate,
    linear_pair,
    stacked_linear,
    linear_gate,
    limited_gate,
    limited_activate,
    limited_head_norm,
    two_branch_add_norm,
    add_norms,
    add_norm,
)


# ---- what rules have in common


def _heads_before(view: PlanView, value: Value, size: int) -> tuple[ops.RmsNorm | None, ops.Rope | None]:
    """The norm and then the rotation of heads that make a value; either may be missing."""
    rope = view.inner(ops.Rope, value)
    if rope is None:
        return _head_norm(view, value, size), None
    if rope.rotation.head_dim != size:
        return None, None
    return _head_norm(view, rope.x, size), rope


def _head_norm(view: PlanView, value: Value, size: int) -> ops.RmsNorm | None:
    """The norm that makes the value, if it is one of exactly these heads: neither of rows nor of parts."""
    norm = view.inner(ops.RmsNorm, value)
    return norm if norm is not None and norm.size == size else None


def _linears_beside(view: PlanView, op: ops.Linear) -> list[ops.Linear]:
    """This linear op and others of the same value, whose weights nobody else reads; with a bias, if it has
    one, and else without. Empty, if somebody else reads its weight."""
    if not view.read_once(op.weight):
        return []
    return [
        other
        for other in view.readers(op.x)
        if isinstance(other, ops.Linear)
        and view.free(other)
        and view.read_once(other.weight)
        and (other.bias is None) == (op.bias is None)
    ]


def _is_router(view: PlanView, op: ops.Linear) -> bool:
    return any(isinstance(reader, ops.MoE) and reader.router == op.out for reader in view.readers(op.out))


def _limit_after(view: PlanView, value: Value) -> Clamp | None:
    """The clamp that alone reads a value."""
    reader = view.only_reader(value)
    return reader if isinstance(reader, Clamp) and view.free(reader) else None


def _row_norm(op: Op | None) -> ops.RmsNorm | None:
    return op if isinstance(op, ops.RmsNorm) and op.size == op.x.width else None


def _rotation(rope: ops.Rope | None) -> tuple[ops.Rotation, Weight | None] | None:
    return None if rope is None else (rope.rotation, rope.divisors)


def _is_one_number(scale: ops.Scale) -> bool:
    return scale.weight is None or scale.weight.shape == (1,)


def _is_limited(sum: AddNorm) -> bool:
    return sum.branch_limit is not None or sum.limit is not None


def _vector_scale(view: PlanView, norm: ops.RmsNorm) -> ops.Scale | None:
    """The scale by a vector that alone reads the norm."""
    scale = view.only_reader(norm.out)
    if not isinstance(scale, ops.Scale) or not view.free(scale) or scale.weight is None:
        return None
    return scale if scale.weight.shape == (norm.out.width,) else None


def _comes_before_a_sum(view: PlanView, norm: ops.RmsNorm) -> bool:
    reader = view.only_reader(norm.out)
    return isinstance(reader, ops.Add) and reader.b == norm.out
