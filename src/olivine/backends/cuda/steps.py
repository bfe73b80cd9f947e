"""What a plan becomes: a list of steps, each a launch or two, with neighboring ops fused.

Fused are: linear ops of one value (q, k and v) into one product; gate, up and activation; norm and rotation
of heads with the cache write and, for generated rows, with attention; a residual sum with the norms around
it. `str` of a step names what it does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeGuard

import numpy as np
import torch

from olivine.backends.base import Weights
from olivine.backends.cuda.kernels.activations import ACTIVATIONS, gate, softcap
from olivine.backends.cuda.kernels.decode_attention import Projected, Scratch, decode_attention
from olivine.backends.cuda.kernels.embed import embed
from olivine.backends.cuda.kernels.expert_blocks import ExpertBlocks
from olivine.backends.cuda.kernels.gemm import gemm
from olivine.backends.cuda.kernels.gemv import gemv
from olivine.backends.cuda.kernels.heads import (
    HeadTransform,
    QkvTransform,
    Rotary,
    rotary_angles,
    store_kv,
    transform_heads,
)
from olivine.backends.cuda.kernels.norm import NormWeight, ResidualScale, add_norm
from olivine.backends.cuda.kernels.paged import PagedCache, RowPlaces
from olivine.backends.cuda.kernels.prefill_attention import prefill_attention
from olivine.backends.cuda.tiles import gemv_tiles
from olivine.backends.cuda.weights import Planes, interleave, repack, stack, vector
from olivine.plan import Plan, Rotation, Value, Weight, ops

FRESH_ROWS = 16  # generated rows, up to which attention turns and stores them by itself


@dataclass
class Rows:
    """The rows of a step on the device: all of prompts, or all generated."""

    tokens: torch.Tensor
    positions: torch.Tensor
    sequences: torch.Tensor
    outputs: torch.Tensor | None  # which rows' logits are wanted; None: those of all
    tables: list[torch.Tensor]
    prompt: bool
    tiles: torch.Tensor | None  # of prompt attention
    longest: int  # the highest position of a generated row, at most
    scratch: Scratch
    alone: bool  # whether each generated row is the only row of its sequence
    injected: tuple[torch.Tensor, torch.Tensor] | None = None
    values: dict[int, torch.Tensor] = field(default_factory=dict)
    factors: dict[int, torch.Tensor] = field(default_factory=dict)  # that norms left to the products
    angles: dict[int, torch.Tensor] = field(default_factory=dict)  # of the rotations, each made once a step

    def count(self, rows: str) -> int:
        return len(self.tokens) if rows == "tokens" or self.outputs is None else len(self.outputs)

    def turns(self, chain: HeadTransform) -> torch.Tensor | None:
        """The angles of the chain's rotation."""
        return None if chain.rotary is None else self.angles[id(chain.rotary)]


@dataclass
class Step:
    """Something to launch, and the values that nobody reads after it."""

    name: str
    run: Callable[[Rows], None]
    over: list[int] = field(default_factory=list)

    def __str__(self) -> str:
        return self.name


class Lowering:
    """Makes the steps of a plan."""

    def __init__(
        self,
        plan: Plan,
        found: dict[str, Planes],
        weights: Weights,
        caches: dict[int, tuple[torch.Tensor, torch.Tensor]],
        device: torch.device,
    ) -> None:
        self._plan, self._found, self._weights, self._caches, self._device = (
            plan,
            found,
            weights,
            caches,
            device,
        )
        self._producer = {op.output.id: op for op in plan.ops if op.output is not None}
        self._readers: dict[int, list[ops.Op]] = {}
        for op in plan.ops:
            for value in op.inputs():
                self._readers.setdefault(value.id, []).append(op)
        self._group = {cache.id: i for i, group in enumerate(plan.groups) for cache in group.caches}
        self._turns: dict[tuple[Rotation, str | None], Rotary] = {}
        self._stacked: dict[str, Planes] = {}
        self._done: set[int] = set()
        self._stored: set[int] = set()  # caches that an attention has written already
        self._reads: list[list[int]] = []
        self.steps: list[Step] = []

    def lower(self) -> list[Step]:
        for op in self._plan.ops:
            if id(op) in self._done:
                continue
            self._done.add(id(op))
            self._emit(op)
        self._mark_ends()
        return self.steps

    def _emit(self, op: ops.Op) -> None:
        match op:
            case ops.Embed():
                self._embed(op)
            case ops.Linear():
                self._linear(op)
            case ops.RmsNorm() if not self._of_heads(op):
                self._norm(op)
            case ops.RmsNorm() | ops.Rope():
                if self._lone(op.out):
                    self._heads(op)
            case ops.StoreKV():
                pass  # the attention after it stores
            case ops.Attention():
                self._attention(op)
            case ops.Gate():
                self._gate(op)
            case ops.Add():
                self._add(op)
            case ops.Scale():
                self._scale(op)
            case ops.Columns():
                self._columns(op)
            case ops.MoE():
                self._mixture(op)
            case ops.TakeOutputs():
                self._take(op)
            case ops.Softcap():
                self._softcap(op)
            case _:
                raise NotImplementedError(f"the CUDA backend has no {type(op).__name__}")

    # ---- what steps are made of

    def _step(self, name: str, reads: list[Value], run: Callable[[Rows], None]) -> None:
        self.steps.append(Step(name, run))
        self._reads.append([value.id for value in reads])

    def _mark_ends(self) -> None:
        """Each value is let go after the last step that reads it; what it held goes back to the allocator."""
        kept = {self._plan.hidden.id, self._plan.logits.id}
        last: dict[int, int] = {}
        for index, reads in enumerate(self._reads):
            for value in reads:
                last[value] = index
        for value, index in last.items():
            if value not in kept:
                self.steps[index].over.append(value)

    def _dtype(self, value: Value) -> torch.dtype:
        """bfloat16 for what only products read, float32 for all else: a router's logits are compared."""
        readers = self._readers.get(value.id, [])
        products = all(
            isinstance(r, ops.Linear) or (isinstance(r, ops.MoE) and value.id == r.x.id) for r in readers
        )
        result = value.id in (self._plan.hidden.id, self._plan.logits.id)
        return torch.bfloat16 if products and not result and value.id in self._readers else torch.float32

    def _empty(self, rows: Rows, value: Value) -> torch.Tensor:
        shape = (rows.count(value.rows), value.width)
        return torch.empty(shape, dtype=self._dtype(value), device=self._device)

    def _norm_of(self, op: ops.RmsNorm) -> NormWeight:
        if op.weight is None:
            return NormWeight(torch.ones(op.size, device=self._device), op.eps, 0.0)
        return NormWeight(vector(self._found, op.weight), op.eps, op.offset)

    def _turn(self, op: ops.Rope) -> Rotary:
        key = (op.rotation, None if op.divisors is None else op.divisors.name)
        if key not in self._turns:
            frequencies = np.array(op.rotation.frequencies, np.float32)
            if op.divisors is not None:
                from olivine.backends.reference import dequantize  # rare, and slow to import

                frequencies = frequencies / dequantize(self._weights[op.divisors.name][0])
            on_device = torch.from_numpy(frequencies).to(self._device)
            self._turns[key] = Rotary(on_device, op.rotation.magnitude, op.rotation.interleaved)
        return self._turns[key]

    def _only_reader(self, value: Value) -> ops.Op | None:
        readers = self._readers.get(value.id, [])
        return readers[0] if len(readers) == 1 else None

    # ---- the ops

    def _embed(self, op: ops.Embed) -> None:
        table = self._matrix(op.weight)

        def run(rows: Rows) -> None:
            out, tokens = torch.empty((len(rows.tokens), op.out.width), device=self._device), rows.tokens
            if rows.injected is not None and op.pad is not None:
                tokens = tokens.index_fill(0, rows.injected[0], op.pad)
            # Angles come first: attention fetches them before it waits (see kernels/pdl.py).
            for turn in self._turns.values():
                if id(turn) not in rows.angles:
                    rows.angles[id(turn)] = rotary_angles(rows.positions, turn)
            embed(tokens, table, out, op.scale)
            if rows.injected is not None and op.pad is None:
                out.index_copy_(0, *rows.injected)
            rows.values[op.out.id] = out

        self._step("embed", [], run)

    def _linear(self, op: ops.Linear) -> None:
        together = [
            o for o in self._readers[op.x.id] if isinstance(o, ops.Linear) and id(o) not in self._done
        ]
        together.insert(0, op)
        follower = self._only_reader(op.out)
        if isinstance(follower, ops.Gate) and self._gated(op, follower, together):
            return
        alike = [o for o in together if self._planes(o).stacks_with(self._planes(op))]
        biases = {o.bias is not None for o in alike}
        if len(alike) > 1 and len(biases) == 1:
            self._done.update(id(o) for o in alike)
            self._products(alike)
        else:
            self._products([op])

    def _planes(self, op: ops.Linear) -> Planes:
        return self._found[op.weight.name]

    def _gated(self, op: ops.Linear, follower: ops.Gate, together: list[ops.Linear]) -> bool:
        """Gate and up in one product, if that can be."""
        pair = {o.out.id: o for o in together}
        first, second = pair.get(follower.gate.id), pair.get(follower.up.id)
        if first is None or second is None or self._only_reader(second.out) is not follower:
            return False
        if first.bias is not None or second.bias is not None:
            return False
        if not self._planes(first).stacks_with(self._planes(second)):
            return False
        self._done.update((id(first), id(second), id(follower)))
        planes = repack(interleave(self._found.pop(first.weight.name), self._found.pop(second.weight.name)))
        cut, activation = gemv_tiles(planes, False), ACTIVATIONS[follower.activation]

        def run(rows: Rows) -> None:
            x, out = rows.values[op.x.id], self._empty(rows, follower.out)
            if rows.prompt:
                gemm(x, planes, out, activation=activation)
            else:
                gemv(x, planes, out, cut, inv_rms=rows.factors.get(op.x.id), activation=activation)
            rows.values[follower.out.id] = out

        self._step("gate_up", [op.x], run)
        return True

    def _products(self, group: list[ops.Linear]) -> None:
        """Products of one value with the rows of several weights; their results are columns of one matrix."""
        first = group[0]
        planes = self._stack([op.weight for op in group])
        bias = None
        if first.bias is not None:
            bias = torch.cat([vector(self._found, op.bias) for op in group if op.bias is not None])
        width = sum(op.out.width for op in group)
        cut = gemv_tiles(planes, len(group) == 1 and self._summed(first.out))
        starts = np.cumsum([0, *(op.out.width for op in group)]).tolist()
        dtype = self._dtype(first.out) if len(group) == 1 else torch.float32

        def run(rows: Rows) -> None:
            x, splits = rows.values[first.x.id], 1 if rows.prompt else cut.splits  # prompts fill the device
            out = torch.empty((splits, len(x), width), dtype=dtype, device=self._device)
            if rows.prompt:
                gemm(x, planes, out[0], bias=bias)
            else:
                gemv(x, planes, out, cut, inv_rms=rows.factors.get(first.x.id), bias=bias)
            terms = out if splits > 1 else out[0]
            for op, start in zip(group, starts, strict=False):
                rows.values[op.out.id] = terms[..., start : start + op.out.width]

        self._step(f"linear×{len(group)}", [first.x], run)

    def _stack(self, weights: list[Weight]) -> Planes:
        """The weights in one matrix; the separate ones are given up."""
        if len(weights) == 1:
            return self._matrix(weights[0])
        return repack(stack([self._found.pop(weight.name) for weight in weights]))

    def _matrix(self, weight: Weight, experts: int = 1) -> Planes:
        """A weight as products and lookups read it; one that several ops read is there once."""
        found = self._found[weight.name] = repack(self._found[weight.name], experts)
        return found

    def _summed(self, value: Value) -> bool:
        """Whether only a residual sum reads the value (perhaps through a norm), which can add up splits."""
        reader = self._only_reader(value)
        if isinstance(reader, ops.RmsNorm) and reader.size == value.width:
            return isinstance(self._only_reader(reader.out), ops.Add)
        return isinstance(reader, ops.Add) and reader.b.id == value.id

    def _deferred(self, norm: ops.RmsNorm) -> bool:
        """Whether the factor of a norm can wait until after the products that read it."""
        readers = self._readers.get(norm.out.id, [])
        return self._dtype(norm.out) == torch.bfloat16 and all(isinstance(r, ops.Linear) for r in readers)

    def _norm(self, op: ops.RmsNorm) -> None:
        after = self._only_reader(op.out)
        if isinstance(after, ops.Add) and after.b.id == op.out.id:
            return  # the sum does it
        norm = self._norm_of(op)

        def run(rows: Rows) -> None:
            self._join(rows, op, rows.values[op.x.id], norm=norm)

        self._step("norm", [op.x], run)

    def _join(self, rows: Rows, after: ops.RmsNorm, terms: torch.Tensor, **rest: Any) -> None:
        """`join` with a norm at its end, whose factor generated rows may leave to the product."""
        out = self._empty(rows, after.out)
        rows.values[after.out.id] = out
        if rows.prompt or not self._deferred(after):
            add_norm(terms, out=out, **rest)
        else:
            rows.factors[after.out.id] = factors = torch.empty(len(out), device=self._device)
            add_norm(terms, out=out, inv_rms=factors, **rest)

    def _add(self, op: ops.Add) -> None:
        """stream + branch, with the norm of the branch before and the norm of the sum after."""
        post, branch = None, op.b
        before = self._producer.get(op.b.id)
        if (
            isinstance(before, ops.RmsNorm)
            and before.size == before.x.width
            and self._only_reader(op.b) is op
        ):
            post, branch = self._norm_of(before), before.x
        result, scale = op.out, None
        follower = self._only_reader(op.out)
        if isinstance(follower, ops.Scale) and (follower.weight is None or follower.weight.shape == (1,)):
            weight = None if follower.weight is None else vector(self._found, follower.weight)
            result, scale = follower.out, ResidualScale(weight, follower.factor)
            self._done.add(id(follower))
        after = next((r for r in self._readers.get(result.id, []) if self._can_follow(r)), None)
        norm = None if after is None else self._norm_of(after)
        if after is not None:
            self._done.add(id(after))

        def run(rows: Rows) -> None:
            stream, terms = rows.values[op.a.id], rows.values[branch.id]
            total = torch.empty(stream.shape, device=self._device)
            rows.values[result.id] = total
            if after is None or norm is None:
                add_norm(terms, residual=stream, total=total, post_norm=post, scale=scale)
            else:
                given = {"residual": stream, "total": total, "post_norm": post, "norm": norm, "scale": scale}
                self._join(rows, after, terms, **given)

        self._step("add_norm", [op.a, branch], run)

    def _can_follow(self, op: ops.Op) -> TypeGuard[ops.RmsNorm]:
        """Whether it is a norm of whole rows that does not come before a sum: that one does it itself."""
        if not isinstance(op, ops.RmsNorm) or self._of_heads(op):
            return False
        reader = self._only_reader(op.out)
        return not (isinstance(reader, ops.Add) and reader.b.id == op.out.id)

    def _scale(self, op: ops.Scale) -> None:
        weight = None if op.weight is None else vector(self._found, op.weight).float() * op.factor

        def run(rows: Rows) -> None:
            rows.values[op.out.id] = rows.values[op.x.id] * (op.factor if weight is None else weight)

        self._step("scale", [op.x], run)

    def _columns(self, op: ops.Columns) -> None:
        def run(rows: Rows) -> None:
            rows.values[op.out.id] = rows.values[op.x.id][:, op.start : op.start + op.out.width]

        self._step("columns", [op.x], run)

    def _chain(self, value: Value) -> tuple[Value, HeadTransform]:
        """Where a value of heads comes from, through a rotation and a norm."""
        norm: NormWeight | None = None
        turn: Rotary | None = None
        op = self._producer.get(value.id)
        if isinstance(op, ops.Rope):
            turn, value = self._turn(op), op.x
            op = self._producer.get(value.id)
        if isinstance(op, ops.RmsNorm) and self._of_heads(op):
            norm, value = self._norm_of(op), op.x
        return value, HeadTransform(norm, turn)

    def _of_heads(self, op: ops.RmsNorm) -> bool:
        """Whether it normalizes heads; a single head is as wide as its row, but is rotated or stored next."""
        readers = self._readers.get(op.out.id, [])
        used = all(isinstance(r, ops.Rope | ops.StoreKV | ops.Attention) for r in readers)
        return op.size < op.x.width or (bool(readers) and used)

    def _lone(self, value: Value) -> bool:
        """Whether something reads the value that does not follow the chain back by itself."""
        return not all(
            isinstance(r, ops.StoreKV | ops.Attention | ops.Rope) for r in self._readers.get(value.id, [])
        )

    def _heads(self, op: ops.RmsNorm | ops.Rope) -> None:
        source, chain = self._chain(op.out)
        size = op.size if isinstance(op, ops.RmsNorm) else op.rotation.head_dim

        def run(rows: Rows) -> None:
            out = self._empty(rows, op.out)
            transform_heads(rows.values[source.id], out, size, chain, rows.turns(chain))
            rows.values[op.out.id] = out

        self._step("heads", [source], run)

    def _attention(self, op: ops.Attention) -> None:
        """Norm and rotation of queries and keys, the cache write, and attention."""
        if op.cache.id in self._stored:
            self._attention_again(op)
            return
        self._stored.add(op.cache.id)
        written = next(o for o in self._plan.ops if isinstance(o, ops.StoreKV) and o.cache == op.cache)
        q, q_chain = self._chain(op.q)
        k, k_chain = self._chain(written.k)
        v, v_chain = self._chain(written.v)
        if q_chain.rotary is not k_chain.rotary:
            raise NotImplementedError("the CUDA backend rotates queries and keys alike")
        if (q_chain.norm is None) != (k_chain.norm is None):
            raise NotImplementedError("the CUDA backend normalizes queries and keys alike")
        keys, values = self._caches[op.cache.id]
        group = self._group[op.cache.id]

        def run(rows: Rows) -> None:
            raw_q, raw_k, raw_v = rows.values[q.id], rows.values[k.id], rows.values[v.id]
            transform = QkvTransform(q_chain, k_chain, v_chain.norm, rows.turns(k_chain))
            # Rows that others of the batch attend to are stored before any attends; and so are many rows, of
            # which each program of the attention would otherwise turn the same ones again.
            if not rows.prompt and rows.alone and len(raw_q) <= FRESH_ROWS:
                self._attend(op, rows, raw_q, Projected(raw_k, raw_v, transform))
                return
            queries = torch.empty((len(raw_q), op.q.width), dtype=torch.bfloat16, device=self._device)
            cache = PagedCache(keys, values, rows.tables[group])
            places = RowPlaces(rows.positions, rows.sequences)
            store_kv(raw_q, raw_k, raw_v, queries, cache, places, transform)
            self._attend(op, rows, queries)

        self._step("attention", [q, k, v], run)

    def _attend(
        self, op: ops.Attention, rows: Rows, queries: torch.Tensor, projected: Projected | None = None
    ) -> None:
        keys, values = self._caches[op.cache.id]
        cache = PagedCache(keys, values, rows.tables[self._group[op.cache.id]])
        places, out = RowPlaces(rows.positions, rows.sequences), self._empty(rows, op.out)
        if rows.tiles is not None:
            prefill_attention(queries, out, cache, places, rows.tiles, scale=op.scale, window=op.window)
        else:
            decode_attention(
                queries, out, cache, places, scale=op.scale, window=op.window, max_position=rows.longest,
                scratch=rows.scratch, projected=projected,
            )  # fmt: skip
        rows.values[op.out.id] = out

    def _attention_again(self, op: ops.Attention) -> None:
        """Attention to a cache that an earlier layer wrote in this step: only the queries are new."""
        q, chain = self._chain(op.q)

        def run(rows: Rows) -> None:
            raw = rows.values[q.id]
            queries = torch.empty((len(raw), op.q.width), dtype=torch.bfloat16, device=self._device)
            transform_heads(raw, queries, op.cache.head_dim, chain, rows.turns(chain))
            self._attend(op, rows, queries)

        self._step("attention", [q], run)

    def _gate(self, op: ops.Gate) -> None:
        def run(rows: Rows) -> None:
            out = self._empty(rows, op.out)
            gate(rows.values[op.gate.id], rows.values[op.up.id], out, op.activation)
            rows.values[op.out.id] = out

        self._step("gate", [op.gate, op.up], run)

    def _mixture(self, op: ops.MoE) -> None:
        experts, inner, k = op.gate.shape[0], op.gate.shape[1], op.top_k
        down = self._matrix(op.down, experts)
        first = interleave(self._found.pop(op.gate.name), self._found.pop(op.up.name), experts)
        first = repack(first, experts)
        first_cut, down_cut = gemv_tiles(first, False), gemv_tiles(down, False)
        scale = None if op.scale is None else vector(self._found, op.scale).float()
        activation = ACTIVATIONS[op.activation]

        def run(rows: Rows) -> None:
            x = rows.values[op.x.id]
            probabilities = torch.softmax(rows.values[op.router.id], -1)
            share, chosen = torch.sort(probabilities, dim=-1, descending=True, stable=True)
            share, chosen = share[:, :k], chosen[:, :k].to(torch.int32).contiguous().view(-1)
            if op.normalize:
                share = share / share.sum(-1, keepdim=True)
            if scale is not None:
                share = share * scale[chosen.view(-1, k)]
            hidden = torch.empty((len(chosen), inner), dtype=torch.bfloat16, device=self._device)
            each = torch.empty((len(chosen), op.out.width), device=self._device)
            if rows.prompt:
                gemm(x, first, hidden, activation=activation, experts=ExpertBlocks(chosen, experts, k))
                gemm(hidden, down, each, experts=ExpertBlocks(chosen, experts, 1))
            else:
                gemv(x, first, hidden, first_cut, activation=activation, expert_ids=chosen, rows_per_input=k)
                gemv(hidden, down, each, down_cut, expert_ids=chosen)
            each = each.view(len(x), k, op.out.width)
            out = each[:, 0] * share[:, :1]
            for i in range(1, k):
                out = out + each[:, i] * share[:, i : i + 1]
            rows.values[op.out.id] = out

        self._step("mixture", [op.x, op.router], run)

    def _take(self, op: ops.TakeOutputs) -> None:
        def run(rows: Rows) -> None:
            x = rows.values[op.x.id]
            rows.values[op.out.id] = x if rows.outputs is None else x.index_select(0, rows.outputs)

        self._step("take_outputs", [op.x], run)

    def _softcap(self, op: ops.Softcap) -> None:
        def run(rows: Rows) -> None:
            out = self._empty(rows, op.out)
            softcap(rows.values[op.x.id], out, op.cap)
            rows.values[op.out.id] = out

        self._step("softcap", [op.x], run)
