"""A plan run op by op in NumPy: simple, slow, and the oracle that every other backend is tested against."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from olivine.backends.base import CHUNK, Batch, Collectives, Result, Weights, refuse_cache_type
from olivine.backends.reference import kernels, towers
from olivine.backends.reference.dequantize import dequantize
from olivine.plan import Cache, Plan, Value, Weight, ops, rank_ops

Float32 = npt.NDArray[np.float32]
_Reader = Callable[[Value], Float32]


class ReferenceProgram:
    """A plan with its weights and its KV cache of `page_counts` pages a cache group.

    Weights are dequantized to float32 when they are used. Up to `keep_bytes` of them are kept, because
    dequantizing a whole model for each token would be slower still.
    """

    one_kind = False  # NumPy's sums depend on the size of a batch

    def __init__(
        self,
        plan: Plan,
        weights: Weights,
        *,
        page_counts: Sequence[int],
        page_size: int = 16,
        cache_type: str = "F32",
        keep_bytes: int = 4 << 30,
        collectives: Collectives | None = None,
    ) -> None:
        refuse_cache_type(plan, cache_type)
        self.plan = plan
        self.page_size, self.chunk = page_size, CHUNK
        self._stored = kernels.CACHE_ROUNDING[cache_type]
        self.page_counts = tuple(page_counts)
        self._weights, self._others = weights, collectives
        self._kept: dict[str, Float32] = {}
        self._keep_bytes = keep_bytes
        # Keys and values by cache: [pages, slots, G, d]. Pages take no memory until they are written.
        self._keys: dict[int, Float32] = {}
        self._values: dict[int, Float32] = {}
        self._group_of: dict[int, int] = {}
        for index, group in enumerate(plan.groups):
            shape = (self.page_counts[index], page_size, group.kv_heads, group.head_dim)
            for cache in group.caches:
                self._group_of[cache.id] = index
                self._keys[cache.id] = np.zeros(shape, np.float32)
                self._values[cache.id] = np.zeros(shape, np.float32)

    def step(self, batch: Batch, *, logits: bool = True) -> Result:
        """Runs one forward over the batch's rows and writes their keys and values into the cache."""
        batch.check(self.plan, self.plan.vocabulary, self.page_counts, self.page_size)
        buffers = self.plan.buffers
        arenas = {
            "tokens": np.zeros((len(batch.tokens), buffers.token_width), np.float32),
            "outputs": np.zeros((len(batch.outputs), buffers.output_width), np.float32),
        }

        def at(value: Value) -> Float32:
            return arenas[value.rows][:, buffers.columns(value)]

        for op in self.plan.ops:
            result = self._run(op, batch, at)
            if op.output is not None and result is not None:
                at(op.output)[:] = result
        found = at(self.plan.logits).copy() if logits else np.zeros((len(batch.outputs), 0), np.float32)
        return Result(at(self.plan.hidden).copy(), found)

    def _run(self, op: ops.Op, batch: Batch, at: _Reader) -> Float32 | None:
        match op:
            case ops.Embed():
                return self._embed(op, batch)
            case ops.RmsNorm():
                return kernels.rms_norm(at(op.x), self._maybe(op.weight), op.size, op.eps, op.offset)
            case ops.LayerNorm():
                weight, bias = self._dense(op.weight), self._maybe(op.bias)
                return kernels.layer_norm(at(op.x), weight, bias, op.size, op.eps)
            case ops.Linear():
                return kernels.linear(at(op.x), self._dense(op.weight), self._maybe(op.bias))
            case ops.Rope():
                return kernels.rope(at(op.x), batch.positions, op.rotation, self._maybe(op.divisors))
            case ops.StoreKV():
                self._store(op.cache, batch, at(op.k), at(op.v))
                return None
            case ops.Attention():
                return self._attend(op, batch, at(op.q))
            case ops.Gate():
                return kernels.gate(at(op.gate), at(op.up), op.activation)
            case ops.Activate():
                return kernels.ACTIVATIONS[op.activation](at(op.x))
            case ops.Add():
                return at(op.a) + at(op.b)
            case ops.Scale():
                scaled = at(op.x) if op.weight is None else at(op.x) * self._dense(op.weight)
                return scaled * np.float32(op.factor)
            case ops.PositionScale():
                return kernels.position_scale(at(op.x), batch.positions, op.beta, op.length)
            case ops.Columns():
                return at(op.x)[:, op.start : op.start + op.out.width]
            case ops.MoE():
                return self._moe(op, at(op.x), at(op.router))
            case ops.TakeOutputs():
                return at(op.x)[batch.outputs]
            case ops.Softcap():
                return kernels.softcap(at(op.x), op.cap)
            case _ if type(op) in towers.RUN:
                return towers.RUN[type(op)](op, batch, at, self._dense)
            case _ if self._others is not None:
                return self._meet(op, self._others, batch, at)
        raise NotImplementedError(f"the reference backend has no {type(op).__name__}")

    def _meet(self, op: ops.Op, others: Collectives, batch: Batch, at: _Reader) -> Float32 | None:
        match op:
            case rank_ops.AllReduce():
                return others.all_reduce(at(op.x))
            case rank_ops.AllGather():
                return others.all_gather(at(op.x), op.widths)
            case rank_ops.Send():
                others.send(at(op.x))
                return None
            case rank_ops.Receive():
                rows = len(batch.tokens) if op.out.rows == "tokens" else len(batch.outputs)
                return others.receive((rows, op.out.width))
        raise NotImplementedError(f"the reference backend has no {type(op).__name__}")

    def _embed(self, op: ops.Embed, batch: Batch) -> Float32:
        (table,) = self._weights[op.weight.name]
        x = np.zeros((len(batch.tokens), op.out.width), np.float32)
        tokens = batch.tokens
        if op.pad is not None and batch.embedding_rows is not None:
            tokens = tokens.copy()
            tokens[batch.embedding_rows] = op.pad
        for row, token in enumerate((tokens - op.first).tolist()):  # only the rows in use are dequantized
            if 0 <= token < op.weight.shape[0]:
                x[row] = dequantize(table.rows(token, token + 1)) * np.float32(op.scale)
        if op.pad is None and batch.embedding_rows is not None and batch.embeddings is not None:
            x[batch.embedding_rows] = batch.embeddings if op.first == 0 else 0
        return x

    def _store(self, cache: Cache, batch: Batch, k: Float32, v: Float32) -> None:
        page, slot = self._place(cache, batch, batch.sequences, batch.positions)
        shape = (-1, cache.kv_heads, cache.head_dim)
        self._keys[cache.id][page, slot] = self._stored(k.reshape(shape))
        self._values[cache.id][page, slot] = self._stored(v.reshape(shape))

    def _attend(self, op: ops.Attention, batch: Batch, q: Float32) -> Float32:
        out = np.zeros(q.shape, np.float32)
        for sequence in np.unique(batch.sequences):
            rows = np.flatnonzero(batch.sequences == sequence)
            q_at = last = batch.positions[rows]
            if op.bidirectional and batch.last is not None:
                last = batch.last[rows]
            start = 0 if op.window is None else max(0, int(q_at.min()) - op.window + 1)
            k_at = np.arange(start, int(last.max()) + 1, dtype=np.int32)
            page, slot = self._place(op.cache, batch, np.full_like(k_at, sequence), k_at)
            k, v = self._keys[op.cache.id][page, slot], self._values[op.cache.id][page, slot]
            heads = q[rows].reshape(len(rows), op.heads, -1)
            visible = kernels.visible(q_at, last, k_at, op.window)
            out[rows] = kernels.attention(heads, k, v, visible, op.scale)
        return out

    def _place(
        self, cache: Cache, batch: Batch, sequences: npt.NDArray[np.int32], positions: npt.NDArray[np.int32]
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
        """The page and the slot of each position."""
        table = batch.tables[self._group_of[cache.id]]
        return table[sequences, positions // self.page_size], positions % self.page_size

    def _moe(self, op: ops.MoE, x: Float32, router: Float32) -> Float32:
        chosen, weights = kernels.route(router, op.top_k, op.normalize)
        chosen = chosen - op.first
        out = np.zeros(x.shape, np.float32)
        for expert in np.unique(chosen[(chosen >= 0) & (chosen < op.gate.shape[0])]):
            rows, which = np.nonzero(chosen == expert)
            gate = kernels.linear(x[rows], self._expert(op.gate, expert), None)
            up = kernels.linear(x[rows], self._expert(op.up, expert), None)
            y = kernels.linear(kernels.gate(gate, up, op.activation), self._expert(op.down, expert), None)
            share = weights[rows, which]
            if op.scale is not None:
                share = share * self._dense(op.scale)[expert]
            out[rows] += share[:, None] * y
        return out

    def _maybe(self, weight: Weight | None) -> Float32 | None:
        return None if weight is None else self._dense(weight)

    def _expert(self, weight: Weight, expert: int) -> Float32:
        return self._dense(weight)[expert]

    def _dense(self, weight: Weight) -> Float32:
        """The weight's values in float32."""
        kept = self._kept.get(weight.name)
        if kept is not None:
            return kept
        parts = [dequantize(part).reshape(-1, weight.shape[-1]) for part in self._weights[weight.name]]
        values = (parts[0] if len(parts) == 1 else np.concatenate(parts)).reshape(weight.shape)
        if sum(kept.nbytes for kept in self._kept.values()) + values.nbytes <= self._keep_bytes:
            self._kept[weight.name] = values
        return values
