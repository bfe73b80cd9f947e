"""Tracing: a model's `forward` runs once with a `Trace`, and each call it makes becomes an op of the plan."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TypeVar

from olivine.plan import ops, tower_ops
from olivine.plan.ops import Activation, Cache, Op, Rotation, Rows, Value, Weight
from olivine.plan.plan import Plan

Shapes = Mapping[str, tuple[int, ...]]
Config = TypeVar("Config")


class _Record:
    """The state that all scopes of one trace share."""

    def __init__(self, shapes: Shapes, context: int, biases: Collection[str]) -> None:
        self.shapes = shapes
        self.biases = biases
        self.context = context
        self.ops: list[Op] = []
        self.weights: dict[str, Weight] = {}
        self.caches: list[Cache] = []
        self.written: set[int] = set()  # caches that this step has written
        self.is_tower = False
        self.values = 0
        self.results: tuple[Value, Value] | None = None


class Trace:
    """The interface that a model's `forward` is written against.

    Weights are named by GGUF's tensor names without `.weight`; `scope` puts a prefix before them. A few facts
    are in the file and not in the configuration (the size of the vocabulary, whether there are biases or a
    separate LM head): `has` and `rows_of` look them up.
    """

    def __init__(self, record: _Record, prefix: str = "") -> None:
        self._record = record
        self._prefix = prefix

    def scope(self, prefix: str) -> Trace:
        """The same trace, with `prefix.` before every weight name."""
        return Trace(self._record, f"{self._prefix}{prefix}.")

    def has(self, name: str) -> bool:
        """Whether the checkpoint has this tensor (full name within the scope, such as `attn_q.bias`)."""
        return self._prefix + name in self._record.shapes

    def rows_of(self, name: str) -> int:
        """The rows of the checkpoint's tensor, or 0 if there is none (loading then reports it)."""
        shape = self._record.shapes.get(self._prefix + name)
        return shape[0] if shape else 0

    @property
    def context(self) -> int:
        """The longest sequence that the plan is for. Keys stay in their cache as they were rotated, so what
        depends on how long a sequence gets is decided here, once."""
        return self._record.context

    def cache(self, kv_heads: int, head_dim: int, window: int | None = None) -> Cache:
        """Declares a layer's KV cache. Its memory belongs to the backend, its pages to the engine."""
        cache = Cache(len(self._record.caches), kv_heads, head_dim, window)
        self._record.caches.append(cache)
        return cache

    def embed(self, name: str, width: int, *, scale: float = 1.0, pad: int | None = None) -> Value:
        """A row of the table for each token. `pad`: the token for rows with an injected embedding."""
        weight = self._weight(f"{name}.weight", (self.rows_of(f"{name}.weight"), width))
        return self._emit(ops.Embed, width, "tokens", weight=weight, scale=scale, pad=pad)

    def linear(self, x: Value, name: str, width: int) -> Value:
        """A projection to `width` columns, with a bias if the checkpoint has one, or must have one."""
        weight = self._weight(f"{name}.weight", (width, x.width))
        biased = name in self._record.biases or self.has(f"{name}.bias")
        bias = self._weight(f"{name}.bias", (width,)) if biased else None
        return self._emit(ops.Linear, width, x.rows, x=x, weight=weight, bias=bias)

    def rms_norm(
        self, x: Value, name: str | None, eps: float, *, size: int = 0, offset: float = 0.0
    ) -> Value:
        """Normalizes the whole row, or each group of `size` columns (a head); without a name, no weight."""
        size = size or x.width
        _require(x.width % size == 0, f"rms_norm of {x.width} columns in groups of {size}")
        weight = None if name is None else self._weight(f"{name}.weight", (size,))
        return self._emit(ops.RmsNorm, x.width, x.rows, x=x, weight=weight, size=size, eps=eps, offset=offset)

    def layer_norm(self, x: Value, name: str, eps: float, *, size: int = 0) -> Value:
        """Normalizes the row, or each group of `size` columns, with a bias if the checkpoint has one."""
        size = size or x.width
        _require(x.width % size == 0, f"layer_norm of {x.width} columns in groups of {size}")
        weight = self._weight(f"{name}.weight", (size,))
        bias = self._weight(f"{name}.bias", (size,)) if self.has(f"{name}.bias") else None
        return self._emit(ops.LayerNorm, x.width, x.rows, x=x, weight=weight, bias=bias, size=size, eps=eps)

    def rope(self, x: Value, rotation: Rotation, *, divisors: str | None = None) -> Value:
        """Rotates every head. `divisors` is a full tensor name: all layers share one vector."""
        _require(x.width % rotation.head_dim == 0, f"rope of {x.width} columns, heads of {rotation.head_dim}")
        _require(x.rows == "tokens", "rope of rows that have a position")
        weight = None
        if divisors is not None:
            weight = self._shared(divisors, (len(rotation.frequencies),))
        return self._emit(ops.Rope, x.width, x.rows, x=x, rotation=rotation, divisors=weight)

    def store(self, cache: Cache, k: Value, v: Value) -> None:
        """Stores this step's keys and values; `attention` on the same cache then sees them."""
        _require(k.width == v.width == cache.kv_heads * cache.head_dim, "keys and values fit their cache")
        _require(k.rows == v.rows == "tokens", "keys and values of rows that have a position")
        # Otherwise a row's result would depend on the step in which the rows before it came. The sequences of
        # a tower are whole in one step, so that its layers can share a cache.
        again = cache.id in self._record.written and not self._record.is_tower
        _require(not again, f"{cache} is written once a step")
        self._record.written.add(cache.id)
        self._record.ops.append(ops.StoreKV(k=k, v=v, cache=cache))

    def attention(self, q: Value, cache: Cache, *, scale: float, bidirectional: bool = False) -> Value:
        """Attends to the cache. `bidirectional`: rows of an image see the whole of it, if a batch says so."""
        heads, rest = divmod(q.width, cache.head_dim)
        _require(rest == 0 and heads % cache.kv_heads == 0, "query heads are a multiple of KV heads")
        _require(q.rows == "tokens", "queries of rows that have a position")
        _require(cache.id in self._record.written, f"{cache} is written before it is attended to")
        return self._emit(
            ops.Attention, q.width, q.rows, q=q, cache=cache, heads=heads, scale=scale, window=cache.window,
            bidirectional=bidirectional,
        )  # fmt: skip

    def gate(self, gate: Value, up: Value, activation: Activation) -> Value:
        _require(gate.width == up.width and gate.rows == up.rows, "gate and up have one shape")
        return self._emit(ops.Gate, gate.width, gate.rows, gate=gate, up=up, activation=activation)

    def activate(self, x: Value, activation: Activation) -> Value:
        return self._emit(ops.Activate, x.width, x.rows, x=x, activation=activation)

    def add(self, a: Value, b: Value) -> Value:
        _require(a.width == b.width and a.rows == b.rows, "the terms of a sum have one shape")
        return self._emit(ops.Add, a.width, a.rows, a=a, b=b)

    def scale(self, x: Value, name: str | None = None, *, size: int = 1, factor: float = 1.0) -> Value:
        """Multiplies by a constant and, with a full name, by a weight of one element or one per column."""
        _require(size in (1, x.width), f"a scale of {size} elements for {x.width} columns")
        weight = None if name is None else self._weight(name, (size,))
        return self._emit(ops.Scale, x.width, x.rows, x=x, weight=weight, factor=factor)

    def position_scale(self, x: Value, *, beta: float, length: int) -> Value:
        """Scales each row by its position, in steps of `length` tokens; the first step's factor is 1."""
        _require(x.rows == "tokens" and length > 0, "position_scale of rows that have a position")
        return self._emit(ops.PositionScale, x.width, x.rows, x=x, beta=beta, length=length)

    def columns(self, x: Value, start: int, width: int) -> Value:
        _require(start >= 0 and start + width <= x.width, f"columns {start}… of {x.width}")
        return self._emit(ops.Columns, width, x.rows, x=x, start=start)

    def moe(
        self,
        x: Value,
        router: Value,
        *,
        width: int,
        top_k: int,
        normalize: bool,
        activation: Activation,
        gate: str = "ffn_gate_exps",
        up: str = "ffn_up_exps",
        down: str = "ffn_down_exps",
        scale: str | None = None,
    ) -> Value:
        """`router.width` experts with an inner width of `width`; each row is routed to `top_k` of them.

        `scale` is the full name of a factor for each expert's output.
        """
        experts = router.width
        _require(x.rows == router.rows, "a router has the rows of what it routes")
        _require(0 < top_k <= experts, f"{top_k} of {experts} experts are used")
        return self._emit(
            ops.MoE,
            x.width,
            x.rows,
            x=x,
            router=router,
            gate=self._weight(f"{gate}.weight", (experts, width, x.width)),
            up=self._weight(f"{up}.weight", (experts, width, x.width)),
            down=self._weight(f"{down}.weight", (experts, x.width, width)),
            scale=None if scale is None else self._weight(scale, (experts,)),
            top_k=top_k,
            normalize=normalize,
            activation=activation,
        )

    def take_outputs(self, x: Value) -> Value:
        """Keeps only the output rows: those whose logits are computed."""
        _require(x.rows == "tokens", "outputs are taken of token rows")
        return self._emit(ops.TakeOutputs, x.width, "outputs", x=x)

    def softcap(self, x: Value, cap: float) -> Value:
        return self._emit(ops.Softcap, x.width, x.rows, x=x, cap=cap)

    def finish(self, *, hidden: Value, logits: Value | None = None) -> None:
        """Names the results of the step; the last thing a `forward` does. A tower has no logits."""
        _require((logits is None) == self._record.is_tower, "a decoder has logits, and a tower has none")
        if logits is None:
            logits = Value(self._record.values, "outputs", 0)
        _require(hidden.rows == logits.rows == "outputs", "the results have the rows that are asked for")
        self._record.results = (hidden, logits)

    # ---- what only towers do

    def input(self, width: int, *, scale: float = 1.0, shift: float = 0.0) -> Value:
        """The rows of a tower: patches or pieces of sound."""
        self._record.is_tower = True
        return self._emit(tower_ops.Input, width, "tokens", scale=scale, shift=shift)

    def clamp(self, x: Value, low: str | None, high: str | None) -> Value:
        """Limits every element. The limits are full names of weights of one element."""
        found = [None if name is None else self._weight(name, (1,)) for name in (low, high)]
        return self._emit(tower_ops.Clamp, x.width, x.rows, x=x, low=found[0], high=found[1])

    def standardize(self, x: Value, mean: str, scale: str) -> Value:
        """Subtracts and multiplies by weights of one element a column, given by their full names."""
        both = {"mean": self._weight(mean, (x.width,)), "scale": self._weight(scale, (x.width,))}
        return self._emit(tower_ops.Standardize, x.width, x.rows, x=x, **both)

    def position_embed(
        self, x: Value, name: str, shape: tuple[int, ...], *, strides: tuple[int, int], start: int = 0
    ) -> Value:
        """Adds the row of a table that a row's coordinates name."""
        _require(x.rows == "tokens" and shape[-1] == x.width, "a table of positions has rows like x")
        table = self._weight(f"{name}.weight", shape)
        operands = {"x": x, "table": table, "start": start, "strides": strides}
        return self._emit(tower_ops.PositionEmbed, x.width, x.rows, **operands)

    def grid_rope(self, x: Value, rotation: Rotation) -> Value:
        """Rotates the halves of every head by a row's two coordinates."""
        _require(x.rows == "tokens", "grid_rope of rows that have coordinates")
        _require(x.width % (2 * rotation.head_dim) == 0, f"heads of two halves of {rotation.head_dim}")
        return self._emit(tower_ops.GridRope, x.width, x.rows, x=x, rotation=rotation)

    def pool(self, x: Value, size: int) -> Value:
        """The mean of every `size` rows: these are the outputs."""
        _require(x.rows == "tokens" and size > 0, "token rows are pooled")
        return self._emit(tower_ops.Pool, x.width, "outputs", x=x, size=size)

    def conv(
        self, x: Value, name: str, channels: int, out_channels: int, *, steps: int, frames: int
    ) -> Value:
        """Halves time and frequency of rows with `steps` steps × frequencies × channels."""
        frequencies, rest = divmod(x.width, steps * channels)
        _require(rest == 0 and steps % 2 == frequencies % 2 == 0, f"conv of {x.width} columns in halves")
        _require(x.rows == "tokens" and frames % steps == 0, "conv of rows that have steps")
        width = steps // 2 * (frequencies // 2) * out_channels
        weight = self._weight(f"{name}.weight", (out_channels, channels, 3, 3))
        return self._emit(tower_ops.Conv, width, x.rows, x=x, weight=weight, steps=steps, frames=frames)

    def depthwise_conv(self, x: Value, name: str, size: int) -> Value:
        """A causal convolution of each column over `size` rows."""
        _require(x.rows == "tokens" and size > 0, "depthwise_conv of rows that have an order")
        weight = self._weight(f"{name}.weight", (x.width, size))
        return self._emit(tower_ops.DepthwiseConv, x.width, x.rows, x=x, weight=weight)

    def relative_attention(
        self, q: Value, k: Value, v: Value, relative: str, *, heads: int, span: int, cap: float
    ) -> Value:
        """Attends to the last `span` rows, with `relative` keys for how far back a row lies."""
        _require(q.width == k.width == v.width and q.width % heads == 0, "as many heads of q, k and v")
        _require(q.rows == k.rows == v.rows == "tokens", "queries of rows that have an order")
        weight = self._weight(f"{relative}.weight", (span, q.width))
        return self._emit(
            tower_ops.RelativeAttention, q.width, q.rows, q=q, k=k, v=v, relative=weight, heads=heads, cap=cap
        )

    def _weight(self, name: str, shape: tuple[int, ...]) -> Weight:
        return self._shared(self._prefix + name, shape)

    def _shared(self, name: str, shape: tuple[int, ...]) -> Weight:
        weight = Weight(name, shape)
        known = self._record.weights.setdefault(weight.name, weight)
        _require(known == weight, f"{weight.name} is used as {known.shape} and as {shape}")
        return known

    def _emit(self, make: Callable[..., Op], width: int, rows: Rows, **operands: object) -> Value:
        out = Value(self._record.values, rows, width)
        self._record.values += 1
        self._record.ops.append(make(out=out, **operands))
        return out


def trace(
    name: str,
    forward: Callable[[Trace, Config], None],
    config: Config,
    shapes: Shapes,
    *,
    context: int = 1 << 31,
    biases: Collection[str] = (),
) -> Plan:
    """Runs `forward` once over a checkpoint's tensor shapes (by canonical name) and returns the plan.
    `biases`: the projections that have one, whether or not the checkpoint has the tensor."""
    record = _Record(shapes, context, biases)
    forward(Trace(record), config)
    if record.results is None:
        raise ValueError(f"the forward of {name} ended without `finish`")
    hidden, logits = record.results
    return Plan(name, tuple(record.ops), tuple(record.weights.values()), tuple(record.caches), hidden, logits)


def _require(condition: bool, what: str) -> None:
    """Raises for a bug in a model file; not for a user's error."""
    if not condition:
        raise ValueError(f"a plan needs: {what}")
