"""The closed set of operations a plan is made of, and their operands: values, weights and caches.

Shapes are rows by width. T rows enter a step (one a token); R of them are outputs, whose logits are computed.
Every value has either T or R rows and a fixed width, so a plan is known in full before the first token.
Letters as everywhere: D model width, H query heads, G key/value heads, d head size, V vocabulary.

The plan says what is computed; a backend decides how. `backends/reference` is the definition. What only
towers have is in `tower_ops.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Literal

Activation = Literal["silu", "gelu_tanh", "relu", "sigmoid"]
Rows = Literal["tokens", "outputs"]


@dataclass(frozen=True)
class Value:
    """The output of an op: a matrix with one row per token (or per output row) and `width` columns."""

    id: int
    rows: Rows
    width: int

    def __str__(self) -> str:
        return f"%{self.id}"


@dataclass(frozen=True)
class Weight:
    """A parameter by name. Its storage type belongs to the checkpoint and is not part of the plan."""

    name: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Cache:
    """A layer's KV cache: a key and a value per KV head and token, for `window` tokens or for all.

    `group`: that of the whole plan, where this is a part's. Caches of two groups never share page tables.
    """

    id: int
    kv_heads: int
    head_dim: int
    window: int | None
    group: int = 0

    def __str__(self) -> str:
        return f"cache{self.id}"


@dataclass(frozen=True)
class Rotation:
    """A rotary embedding: rotates pair i of a head by position · frequencies[i], and scales by `magnitude`.

    The n pairs are (i, i + n), or (2i, 2i + 1) where `interleaved`; the last `unrotated` columns of a head
    stay as they are.
    """

    frequencies: tuple[float, ...]
    magnitude: float = 1.0
    interleaved: bool = False
    unrotated: int = 0

    @property
    def head_dim(self) -> int:
        return 2 * len(self.frequencies) + self.unrotated

    def __str__(self) -> str:
        style = "interleaved" if self.interleaved else "halves"
        scaled = "" if self.magnitude == 1.0 else f", ×{self.magnitude:.4g}"
        part = f", {2 * len(self.frequencies)} of {self.head_dim} columns" if self.unrotated else ""
        return f"[{style}, f1={self.frequencies[min(1, len(self.frequencies) - 1)]:.6g}{scaled}{part}]"


@dataclass(frozen=True)
class Op:
    """One kernel call. Subclasses list their operands and, in `out`, the value they compute (if any)."""

    @property
    def kind(self) -> str:
        """The op's name, as it is printed."""
        return _snake(type(self).__name__)

    @property
    def output(self) -> Value | None:
        out = getattr(self, "out", None)
        assert out is None or isinstance(out, Value)
        return out

    def inputs(self) -> Iterator[Value]:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, Value) and field.name != "out":
                yield value

    def weights(self) -> Iterator[Weight]:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, Weight):
                yield value

    def __str__(self) -> str:
        words = []
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name == "out" or value is None or value == field.default:
                continue
            plain = isinstance(value, Value | Weight | Cache)
            words.append(str(value) if plain else f"{field.name}={_short(value)}")
        call = f"{self.kind}({', '.join(words)})"
        return call if self.output is None else f"{self.output} = {call}"


@dataclass(frozen=True)
class Embed(Op):
    """out[t] = weight[token t] · scale; a row with an injected embedding takes that instead, unscaled.

    With `pad`, such a row takes that token's row of the table. A rank of a divided plan has some of the
    table's `vocabulary` rows, from `first` on: other tokens are zero, and injected rows too unless it is 0.
    """

    out: Value
    weight: Weight
    scale: float
    pad: int | None
    first: int = 0
    vocabulary: int = 0  # 0: as many as the weight has rows

    @property
    def tokens(self) -> int:
        """How many token ids there are."""
        return self.vocabulary or self.weight.shape[0]


@dataclass(frozen=True)
class RmsNorm(Op):
    """Each group of `size` consecutive columns: x / sqrt(mean(x²) + eps) · (weight + offset), if weighted."""

    out: Value
    x: Value
    weight: Weight | None
    size: int
    eps: float
    offset: float


@dataclass(frozen=True)
class LayerNorm(Op):
    """Each group of `size` consecutive columns: (x - mean(x)) / sqrt(variance(x) + eps) · weight + bias."""

    out: Value
    x: Value
    weight: Weight
    bias: Weight | None
    size: int
    eps: float


@dataclass(frozen=True)
class Linear(Op):
    """out = x @ weight.T + bias."""

    out: Value
    x: Value
    weight: Weight
    bias: Weight | None


@dataclass(frozen=True)
class Rope(Op):
    """Rotates every head of x by its row's position. `divisors`, if any, divide the frequencies."""

    out: Value
    x: Value
    rotation: Rotation
    divisors: Weight | None


@dataclass(frozen=True)
class StoreKV(Op):
    """Writes each row's keys and values into the cache at the row's sequence and position."""

    k: Value
    v: Value
    cache: Cache


@dataclass(frozen=True)
class Attention(Op):
    """Each head of each row attends to its sequence's cached positions p with 0 ≤ position − p < window.

    If `bidirectional`, a batch's `last` says up to where a row sees: p ≤ last, and position − p < window.
    scores = scale · q·k, softmax in float32; query head h reads KV head h // (H / G).
    """

    out: Value
    q: Value
    cache: Cache
    heads: int
    scale: float
    window: int | None
    bidirectional: bool = False


@dataclass(frozen=True)
class Gate(Op):
    """out = activation(gate) · up."""

    out: Value
    gate: Value
    up: Value
    activation: Activation


@dataclass(frozen=True)
class Activate(Op):
    """out = activation(x)."""

    out: Value
    x: Value
    activation: Activation


@dataclass(frozen=True)
class Add(Op):
    """out = a + b."""

    out: Value
    a: Value
    b: Value


@dataclass(frozen=True)
class Scale(Op):
    """out = x · weight · factor. The weight, if any, has one element or one per column."""

    out: Value
    x: Value
    weight: Weight | None
    factor: float


@dataclass(frozen=True)
class PositionScale(Op):
    """out = x · (1 + beta · ln(1 + ⌊position / length⌋)): queries of long contexts, kept from flattening."""

    out: Value
    x: Value
    beta: float
    length: int


@dataclass(frozen=True)
class Columns(Op):
    """out = the columns of x from `start` on, as many as out has."""

    out: Value
    x: Value
    start: int


@dataclass(frozen=True)
class MoE(Op):
    """A mixture of experts, each a gated MLP with weights gate, up [E, F, D] and down [E, D, F].

    Softmax over all E router logits; the `top_k` largest (ties: lowest index); divided by their sum if
    `normalize`; out = Σ probability · scale[expert] · expert(x), with a scale of 1 if there is none.
    A rank of a divided plan has some of the router's experts, from `first` on, and adds up those alone.
    """

    out: Value
    x: Value
    router: Value
    gate: Weight
    up: Weight
    down: Weight
    scale: Weight | None
    top_k: int
    normalize: bool
    activation: Activation
    first: int = 0


@dataclass(frozen=True)
class TakeOutputs(Op):
    """Keeps the output rows: those whose logits are computed."""

    out: Value
    x: Value


@dataclass(frozen=True)
class Softcap(Op):
    """out = cap · tanh(x / cap)."""

    out: Value
    x: Value
    cap: float


def _short(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _snake(name: str) -> str:
    return "".join(
        f"_{c.lower()}" if c.isupper() and i and not name[i - 1].isupper() else c.lower()
        for i, c in enumerate(name)
    )
