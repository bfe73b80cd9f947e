"""Plans by chance: legal plans of any ops in any order, with random weights and batches.

Half of what is drawn are pieces of real models (attention, gated MLPs, mixtures) with something odd about
them, so that fusing rules meet what they look for, and what only resembles it; the other half is any op of
any value. Values may be read once, often or never.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from olivine.backends import Batch, Program, Result
from olivine.dtypes import DTYPES, DType
from olivine.plan import Cache, Plan, Rotation, Trace, Value, trace
from olivine.tensor import Tensor
from oracles import running
from oracles.blocks import random_blocks

T = TypeVar("T")
VOCABULARY = 11
FLOATS = ("F32", "BF16", "F16")
BLOCKS = ("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "IQ4_NL")
SUPERBLOCKS = ("Q4_K", "Q5_K", "Q6_K")
Part = tuple[int, list[int], bool]  # sequence, tokens, whether they count as generated
Choose = Callable[[int, int], int]  # a number from the first to the last


@dataclass(frozen=True)
class Sizes:
    """How large a plan may be: Triton's interpreter is slow."""

    widths: tuple[int, ...] = (12, 16, 32, 32, 36, 64, 64, 256)
    heads: tuple[int, ...] = (2, 4, 6, 8, 16, 20, 32)
    pieces: int = 5
    steps: int = 3
    rows: tuple[int, ...] = (1, 1, 2, 3, 5, 34)
    sequences: int = 3
    inner: tuple[int, ...] = (8, 20, 32, 33)  # of gated MLPs
    generated: tuple[bool, ...] = (False, True)  # the kinds of rows, as often


LARGE = Sizes()
SMALL = Sizes(
    widths=(16, 32, 20),
    heads=(4, 8, 6),
    pieces=2,
    steps=2,
    rows=(1, 1, 2),
    inner=(8, 12),
    sequences=2,
    generated=(False, True, True, True),  # prompts are padded to 16 rows
)


@dataclass(frozen=True)
class Case:
    """A plan, its weights, and batches of a few sequences."""

    plan: Plan
    weights: dict[str, list[Tensor]]
    steps: list[tuple[list[Part], list[int]]]  # the rows of each batch, and which of them are wanted
    sequences: int

    def __repr__(self) -> str:
        types = ", ".join(
            f"{name} {'/'.join(str(part.dtype) for part in parts)}" for name, parts in self.weights.items()
        )
        return f"{self.plan}\n  weights: {types}\n  steps: {self.steps}"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self))  # which hypothesis shows of what fails

    @property
    def pages(self) -> list[int]:
        return [2 * self.sequences] * len(self.plan.groups)

    def batches(self, program: Program) -> list[Batch]:
        session = running.Session(program, self.sequences, 64)
        found = []
        for parts, wanted in self.steps:
            batch = session.batch(parts)
            found.append(replace(batch, outputs=np.array(wanted, np.int32)))
        return found

    def run(self, program: Program) -> list[Result]:
        return [program.step(batch) for batch in self.batches(program)]


def make(choose: Choose, sizes: Sizes) -> Case:
    builder = Builder(choose, sizes)
    plan = trace("random", builder.forward, None, builder.shapes)
    weights = builder.weights(plan)
    sequences = choose(1, sizes.sequences)
    steps = [builder.step(sequences) for _ in range(choose(1, sizes.steps))]
    return Case(plan, weights, steps, sequences)


def check_each(check: Callable[[Case], None], sizes: Sizes, count: int, seed: int) -> None:
    """Checks so many plans, the same for a seed; raises with a smaller one that fails, if one is found."""
    choose = random.Random(seed).randint
    for _ in range(count):
        case = make(choose, sizes)
        try:
            check(case)
        except Exception as error:
            shrink(check, sizes)
            raise AssertionError(f"no smaller plan failed than\n{case}") from error


def shrink(check: Callable[[Case], None], sizes: Sizes) -> None:
    """Raises with the smallest plan that hypothesis finds to fail, if it finds one: most of the plans that it
    tries are varied from a few, so that it sees less than plain random numbers do."""
    from hypothesis import HealthCheck, given, settings, strategies

    @strategies.composite
    def cases(draw: Callable[[Any], int]) -> Case:
        return make(lambda low, high: draw(strategies.integers(low, high)), sizes)

    @settings(max_examples=1000, database=None, deadline=None, suppress_health_check=list(HealthCheck))
    @given(cases())
    def each(case: Case) -> None:
        check(case)

    each()


class Builder:
    """Draws a plan op by op. `shapes` is what the trace knows of the checkpoint, and grows with the plan."""

    def __init__(self, choose: Choose, sizes: Sizes) -> None:
        self.number, self._sizes = choose, sizes
        self.shapes: dict[str, tuple[int, ...]] = {"table.weight": (VOCABULARY, 0)}
        self._values: list[Value] = []
        self._caches: list[Cache] = []
        self._names: dict[tuple[int, ...], list[str]] = {}
        self._norms: set[str] = set()
        self._small: set[str] = set()  # weights that lie around 0 where an offset of 1 is added
        self._length = [0] * sizes.sequences

    # ---- choices

    def one_of(self, *options: T) -> T:
        return options[self.number(0, len(options) - 1)]

    def rarely(self) -> bool:
        return self.number(0, 5) == 5

    def value(self, fits: Callable[[Value], bool] = lambda value: True) -> Value | None:
        """A value that was made, more likely one of the last."""
        found = [value for value in self._values if fits(value)]
        if not found:
            return None
        if self.number(0, 2) < 2:
            found = found[-3:]
        return found[-1 - self.number(0, len(found) - 1)]

    def token_value(self) -> Value:
        found = self.value(lambda value: value.rows == "tokens")
        assert found is not None
        return found

    def any_value(self) -> Value:
        found = self.value()
        assert found is not None
        return found

    def name(self, *shape: int) -> str:
        """Of a weight of this shape: mostly a new one, else one that some op has already."""
        known = self._names.setdefault(shape, [])
        if known and self.rarely():
            return self.one_of(*known)
        known.append(f"w{sum(map(len, self._names.values()))}")
        return known[-1]

    def divisor(self, width: int, even: bool = False) -> int:
        found = [d for d in range(2, width + 1) if width % d == 0 and not (even and d % 2)]
        return self.one_of(*found)

    def keep(self, value: Value) -> Value:
        self._values.append(value)
        return value

    # ---- the plan

    def forward(self, t: Trace, _: None) -> None:
        self._t = t
        self._width = self.one_of(*self._sizes.widths)
        self.shapes["table.weight"] = (VOCABULARY, self._width)
        x = self.keep(t.embed("table", self._width, scale=self.one_of(1.0, 2.0)))
        for _ in range(self.number(1, self._sizes.pieces)):
            self.one_of(*PIECES)(self)
        if self.number(0, 2) == 2:  # the end of a model, where rows are those that are wanted
            self.keep(t.take_outputs(self.token_value()))
            for _ in range(self.number(1, 2)):
                self.one_of(Builder.mlp, Builder.mixture, Builder.any_op)(self)
        x = self.end(x)
        t.finish(hidden=x[0], logits=x[1])

    def end(self, x: Value) -> tuple[Value, Value]:
        """What nobody reads yet is mostly added up, so that a mistake anywhere shows in the results."""
        t = self._t
        read = {value.id for op in t._record.ops for value in op.inputs()}
        left = [value for value in self._values if value.id not in read and not self.rarely()]
        for value in left:
            if value.rows == "tokens" and value.id != x.id:
                if value.width != x.width:
                    value = t.linear(value, self.name(x.width, value.width), x.width)
                x = t.add(x, value)
        if x.rows == "tokens":
            x = t.take_outputs(x)
        for value in left:
            if value.rows == "outputs":
                x = t.add(x, t.linear(value, self.name(x.width, value.width), x.width))
        hidden = self.norm(x, x.width) if self.number(0, 2) else x
        if self.rarely():
            return hidden, self.value(lambda value: value.rows == "outputs") or hidden
        if hidden.width == self._width and self.number(0, 1):
            return hidden, t.linear(hidden, "table", VOCABULARY)
        return hidden, t.linear(hidden, self.name(13, hidden.width), 13)

    def linear(self, x: Value, width: int) -> Value:
        name = self.name(width, x.width)
        if self.number(0, 3) == 3:
            self.shapes[f"{name}.bias"] = (width,)
        return self.keep(self._t.linear(x, name, width))

    def norm(self, x: Value, size: int) -> Value:
        eps, offset = self.one_of(1e-6, 1e-5, 1e-2), self.one_of(0.0, 1.0)
        if self.rarely():
            return self.keep(self._t.rms_norm(x, None, eps, size=size))
        name = self.name(size, int(offset), 0, 0)  # a family of its own, by its offset
        self._norms.add(f"{name}.weight")
        if offset:
            self._small.add(f"{name}.weight")
        return self.keep(self._t.rms_norm(x, name, eps, size=size, offset=offset))

    def norm_size(self, width: int, head: int | None) -> int | None:
        """None, of heads, of the row, or of anything that divides it."""
        return self.one_of(None, head, head, width, self.divisor(width))

    def normed(self, x: Value, size: int | None) -> Value:
        return x if size is None else self.norm(x, size)

    def some_norm(self, x: Value, head: int | None = None) -> Value:
        return self.normed(x, self.norm_size(x.width, head))

    def rotation(self, size: int) -> Rotation:
        """Of heads of that size, mostly of all their columns."""
        base = self.one_of(100.0, 10.0)
        unrotated = 2 * self.number(0, size // 2 - 1) if self.rarely() else 0
        frequencies = tuple(base ** (-2 * i / size) for i in range((size - unrotated) // 2))
        return Rotation(frequencies, self.one_of(1.0, 1.0, 1.25), self.one_of(False, False, True), unrotated)

    def rotated(self, x: Value, rotation: Rotation, divided: bool) -> Value:
        divisors = None
        if divided:
            divisors = f"divisors{len(rotation.frequencies)}.weight"
            self.shapes[divisors] = (len(rotation.frequencies),)
        return self.keep(self._t.rope(x, rotation, divisors=divisors))

    def rotated_heads(self, x: Value, d: int, usual: tuple[Rotation, bool] | None, same: bool) -> Value:
        """Queries or keys, rotated as usual in this layer; or, unless `same`, in a way of their own."""
        if same:
            return x if usual is None else self.rotated(x, *usual)
        match self.number(0, 3):
            case 0:
                return x
            case 1 if usual is not None:
                return self.rotated(x, *usual)
            case 2 if d % 2 == 0:
                return self.rotated(x, self.rotation(self.divisor(d, True)), self.rarely())
        return x if d % 2 else self.rotated(x, self.rotation(d), self.rarely())

    # ---- pieces of models

    def attention(self) -> None:
        """Norm, projections, norms and rotations of heads, cache, attention, output, sum."""
        t, x = self._t, self.token_value()
        h = self.some_norm(x)
        d, groups = self.one_of(*self._sizes.heads), self.one_of(1, 1, 2)
        donors = [cache for cache in self._caches if cache.id in t._record.written]
        if donors and self.number(0, 2) == 2:
            cache = self.one_of(*donors)
            d, groups = cache.head_dim, cache.kv_heads
        else:
            cache = t.cache(groups, d, self.one_of(None, None, 1, 3, 40))
            self._caches.append(cache)
        # As in most models, queries and keys go through the same; or each through something of its own.
        same = self.number(0, 2) < 2
        rotation = (self.rotation(d), self.rarely()) if d % 2 == 0 and self.number(0, 3) < 3 else None
        size = self.norm_size(d * groups, d)
        q = self.linear(h, d * groups * self.one_of(1, 2, 3))
        q = self.normed(q, size) if same else self.some_norm(q, d)
        if cache.id not in t._record.written:
            k = self.linear(self.one_of(h, h, h, self.token_value()), groups * d)
            v = k if self.rarely() else self.linear(self.one_of(h, h, h, self.token_value()), groups * d)
            k = self.normed(k, size) if same else self.some_norm(k, d)
            v = self.norm(v, d) if self.rarely() else v
            k = self.rotated_heads(k, d, rotation, same)
            v = self.rotated(v, *rotation) if rotation is not None and self.rarely() else v
            t.store(cache, k, v)
            if self.rarely():
                self.any_op()
        q = self.rotated_heads(q, d, rotation, same)
        if self.rarely():
            q = self.keep(t.position_scale(q, beta=0.5, length=self.one_of(1, 3, 16)))
        a = self.keep(t.attention(q, cache, scale=self.one_of(d**-0.5, 1.0 / d)))
        self.join(x, a)
        if self.number(0, 3) == 3:  # a layer that has only queries
            q = self.some_norm(self.linear(self.token_value(), d * groups), d)
            q = self.rotated_heads(q, d, rotation, same)
            self.join(x, self.keep(t.attention(q, cache, scale=1.0 / d)))

    def mlp(self) -> None:
        t, x = self._t, self.any_value()
        h, inner = self.some_norm(x), self.one_of(*self._sizes.inner)
        gate = self.linear(h, inner)
        up = gate if self.rarely() else self.linear(self.one_of(h, h, h, h, x), inner)
        m = self.keep(t.gate(gate, up, self.one_of("silu", "gelu_tanh")))
        self.join(x, m)

    def mixture(self) -> None:
        t, x = self._t, self.any_value()
        h, experts = self.some_norm(x), self.number(2, 4)
        router = self.value(lambda value: value.rows == h.rows and 2 <= value.width <= 8)
        if router is None or not self.rarely():
            router = self.linear(self.one_of(h, x), experts)
        experts, inner = router.width, self.one_of(8, *self._sizes.inner)
        gate, up = self.name(experts, inner, h.width), self.name(experts, inner, h.width)
        scale = None
        if self.rarely():
            scale = f"{self.name(experts, 0)}.scale"
            self._norms.add(scale)
        m = t.moe(
            h, router, width=inner, top_k=self.number(1, experts), normalize=self.one_of(True, False),
            activation=self.one_of("silu", "gelu_tanh", "relu", "sigmoid"), gate=gate, up=up,
            down=self.name(experts, h.width, inner), scale=scale,
        )  # fmt: skip
        self.join(x, self.keep(m))

    def join(self, x: Value, branch: Value) -> Value:
        """A residual sum with perhaps a norm before it, a scale and norms after it, in either order."""
        t = self._t
        if branch.width != x.width or self.number(0, 3):
            branch = self.linear(branch, x.width)
        if self.number(0, 2) == 2:
            branch = self.norm(branch, self.one_of(x.width, x.width, self.divisor(x.width)))
        y = self.keep(t.add(*((branch, x) if self.rarely() else (x, branch))))
        if self.rarely():
            y = self.scaled(y)
        return self.norm(y, y.width) if self.rarely() else y

    def scaled(self, x: Value) -> Value:
        size = self.one_of(0, 1, x.width)
        name = None
        if size:
            name = f"{self.name(size, 0, 0)}.scale"
            self._norms.add(name)
        return self.keep(self._t.scale(x, name, size=size or 1, factor=self.one_of(0.5, 1.0, -1.25)))

    # ---- any op of any value

    def any_op(self) -> None:
        t, x = self._t, self.any_value()
        match self.number(0, 11):
            case 0:
                self.norm(x, self.divisor(x.width))
            case 1:
                for _ in range(self.number(1, 3)):
                    self.linear(x, self.one_of(self._width, 7, *self._sizes.inner))
            case 2:
                other = self.value(lambda value: (value.rows, value.width) == (x.rows, x.width)) or x
                self.keep(t.add(x, other))
            case 3:
                other = self.value(lambda value: (value.rows, value.width) == (x.rows, x.width)) or x
                self.keep(t.gate(x, other, self.one_of("silu", "gelu_tanh")))
            case 4:
                self.scaled(x)
            case 5:
                start = self.number(0, x.width - 2)
                self.keep(t.columns(x, start, self.number(2, x.width - start)))
            case 6:
                self.keep(t.softcap(x, self.one_of(2.0, 30.0)))
            case 7:
                self.keep(t.take_outputs(self.token_value()))
            case 8:
                x = self.token_value()
                if x.width % 2 == 0:
                    rotation = self.rotation(self.divisor(x.width, even=True))
                    self.rotated(self.some_norm(x, rotation.head_dim), rotation, self.rarely())
            case 9:
                width = self.one_of(self._width, 16, 20)
                name = self.name(VOCABULARY, width)
                self.shapes[f"{name}.weight"] = (VOCABULARY, width)
                self.keep(t.embed(name, width, scale=0.5, pad=self.one_of(None, 0)))
            case 10:
                size = self.divisor(x.width)
                if size > 3:  # of fewer columns, a rounding decides which is larger
                    name = self.name(size)
                    self.shapes[f"{name}.bias"] = (size,)
                    self.keep(t.layer_norm(x, name, 0.01, size=size))
            case 11:
                activation = self.one_of("silu", "gelu_tanh", "relu", "sigmoid")
                other = self.value(lambda value: (value.rows, value.width) == (x.rows, x.width))
                self.keep(t.activate(x, activation) if other is None else t.gate(x, other, activation))

    # ---- weights and batches

    def weights(self, plan: Plan) -> dict[str, list[Tensor]]:
        """Random weights; most have the type that was drawn for the plan."""
        common = self.one_of(*FLOATS, *BLOCKS, *SUPERBLOCKS)
        rng = np.random.default_rng(self.number(0, 1 << 16))
        found = {}
        for weight in plan.weights:
            shapes = [weight.shape]
            if len(weight.shape) == 3 and self.rarely():  # experts that a file stores one by one
                shapes = [weight.shape[1:]] * weight.shape[0]
            found[weight.name] = [
                self._tensor(weight.name, shape, DTYPES[self._type(shape, common)], rng) for shape in shapes
            ]
        return found

    def _type(self, shape: tuple[int, ...], common: str) -> str:
        kind = self.one_of(*FLOATS, "Q8_0", "Q4_0") if self.rarely() else common
        if len(shape) == 1 and kind not in FLOATS:
            kind = "F32"
        return "BF16" if shape[-1] % DTYPES[kind].block_size else kind

    def _tensor(self, name: str, shape: tuple[int, ...], dtype: DType, rng: np.random.Generator) -> Tensor:
        if name.startswith("divisors") or name in self._norms:
            values = rng.uniform(0.6, 1.4, shape) - (name in self._small)
        elif len(shape) == 1:
            values = rng.standard_normal(shape) * 0.5
        elif dtype.name not in FLOATS:
            rows = int(np.prod(shape[:-1]))
            raw = random_blocks(dtype.name, (rows, shape[-1]), rng, scale=shape[-1] ** -0.5)
            return Tensor(name, dtype, shape, np.ascontiguousarray(raw).reshape(-1).view(np.uint8))
        else:
            values = rng.standard_normal(shape) * (1.0 if name == "table.weight" else shape[-1] ** -0.5)
        return Tensor(name, dtype, shape, _stored(values.astype(np.float32), dtype.name))

    def step(self, sequences: int) -> tuple[list[Part], list[int]]:
        """Rows of some sequences, of one kind or of both, and those of them that are wanted, in any order."""
        parts: list[Part] = []
        for sequence in range(sequences):
            for _ in range(self.one_of(0, 1, 1, 1, 2)):
                count = min(self.one_of(*self._sizes.rows), 60 - self._length[sequence])
                if count > 0:
                    tokens = [self.number(0, VOCABULARY - 1) for _ in range(min(count, 5))]
                    parts.append((sequence, (tokens * count)[:count], self.one_of(*self._sizes.generated)))
                    self._length[sequence] += count
        if not parts:
            parts.append((0, [1], True))
            self._length[0] += 1
        rows = sum(len(tokens) for _, tokens, _ in parts)
        match self.number(0, 4):
            case 0:
                wanted = [rows - 1]
            case 1:
                wanted = list(range(rows))[::-2]
            case _:
                wanted = list(range(rows))
        return parts, wanted


PIECES: Sequence[Callable[[Builder], object]] = (
    Builder.attention,
    Builder.attention,
    Builder.mlp,
    Builder.mixture,
    Builder.any_op,
    Builder.any_op,
    Builder.any_op,
)


def _stored(values: np.ndarray, kind: str) -> np.ndarray:
    if kind == "BF16":
        bits = values.view(np.uint32)
        return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype("<u2").reshape(-1).view(np.uint8)
    return values.astype("<f2" if kind == "F16" else "<f4").reshape(-1).view(np.uint8)
