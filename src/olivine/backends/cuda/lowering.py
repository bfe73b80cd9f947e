"""What the launchers of a plan share while they are made: its weights and caches on the device."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import takewhile
from typing import Protocol, TypeVar

import numpy as np
import torch

from olivine.backends.base import Weights
from olivine.backends.cuda.formats import Format
from olivine.backends.cuda.kernels.heads import HeadTransform, Rotary
from olivine.backends.cuda.kernels.norm import NormWeight
from olivine.backends.cuda.kernels.paged import PagedCache
from olivine.backends.cuda.ranks import DeviceCollectives
from olivine.backends.cuda.rows import Rows
from olivine.backends.cuda.weights import Planes, interleave, repack, stack
from olivine.plan import Rotation, Value, Weight, ops
from olivine.plan.clamps import limits_of
from olivine.plan.fused_ops import QueryAttention, StoreAttention, outputs_of
from olivine.plan.fused_plan import FusedPlan
from olivine.plan.ops import Op
from olivine.plan.tower_ops import Clamp

_ATTENTION = (ops.Attention, QueryAttention, StoreAttention)
Launch = Callable[[Rows], None]
OpKind = TypeVar("OpKind", contravariant=True)


class Lowering:
    """The device's side of a fused plan. Weights that are stacked or interleaved give up their own copy."""

    def __init__(
        self,
        fused: FusedPlan,
        found: dict[str, Planes],
        weights: Weights,
        caches: dict[int, tuple[torch.Tensor, ...]],
        device: torch.device,
        collectives: DeviceCollectives | None = None,
    ) -> None:
        self.fused, self.device, self._collectives = fused, device, collectives
        self._found, self._weights, self._caches = found, weights, caches
        self._group = {cache.id: i for i, group in enumerate(fused.plan.groups) for cache in group.caches}
        self._interleaved: dict[tuple[str, str], Planes] = {}
        self.prompt_weights: list[Planes] = []  # that prompt rows are multiplied with, one by one
        self.rotaries: dict[tuple[Rotation, str | None], Rotary] = {}

    @property
    def is_tower(self) -> bool:
        return self.fused.plan.input is not None

    @property
    def others(self) -> DeviceCollectives:
        """The way to the other ranks, of a plan that is one rank's part."""
        assert self._collectives is not None
        return self._collectives

    # ---- values

    def empty(self, rows: Rows, value: Value) -> torch.Tensor:
        """Room for a value of the step, of the type that the fused plan gives it."""
        return torch.empty((rows.count(value.rows), value.width), dtype=self.dtype(value), device=self.device)

    def rounded(self, rows: Rows, value: Value) -> torch.Tensor | None:
        """Room for a value of the step in bfloat16, beside the one in float32, if the fused plan has both."""
        if value.id not in self.fused.rounded:
            return None
        shape = rows.count(value.rows), value.width
        found = rows.rounded[value.id] = torch.empty(shape, dtype=torch.bfloat16, device=self.device)
        return found

    def dtype(self, value: Value) -> torch.dtype:
        return torch.bfloat16 if value.id in self.fused.bfloat16 else torch.float32

    def cache(self, rows: Rows, cache: ops.Cache) -> PagedCache:
        k, v, *scales = self._caches[cache.id]
        return PagedCache(k, v, rows.tables[self._group[cache.id]], *scales)

    def is_old(self, value: Value, reader: Op) -> bool:
        """Whether kernels of an op may load a value before they wait: since it was made, an attention began
        (see kernels/pdl.py). Columns are as old as what they are of."""
        made = self._made_at[value.id]
        while isinstance(view := self.fused.ops[made], ops.Columns):
            made = self._made_at[view.x.id]
        until = next(place for place, op in enumerate(self.fused.ops) if op is reader)
        return any(isinstance(op, _ATTENTION) for op in self.fused.ops[made + 1 : until])

    def is_written_before(self, cache: ops.Cache, reader: Op) -> bool:
        """Whether kernels of an attention may load keys of this step before they wait: those that other rows
        need were stored before an earlier attention began (see kernels/pdl.py). Of a cache that is written by
        anything else this is not known."""
        before = takewhile(lambda op: op is not reader, self.fused.ops)
        return any(isinstance(op, StoreAttention) and op.attention.cache == cache for op in before)

    @cached_property
    def _made_at(self) -> dict[int, int]:
        """The place of the op that makes each value."""
        return {value.id: place for place, op in enumerate(self.fused.ops) for value in outputs_of(op)}

    # ---- weights

    def matrix(self, weight: Weight, experts: int = 1) -> Planes:
        """A weight as products and lookups read it; one that several ops read is there once."""
        found = self._found[weight.name] = repack(self._found[weight.name], experts)
        return found

    def stacked(self, weights: Sequence[Weight]) -> Planes:
        """The weights in one matrix; the separate ones are given up."""
        return repack(stack([self._found.pop(weight.name) for weight in weights]))

    def bfloat16_matrix(self, weights: Sequence[Weight]) -> torch.Tensor:
        """The weights in one matrix, row after row, in BF16: as cuBLAS reads it. Those that no other op reads
        are given up."""
        parts = []
        for weight in weights:
            planes = self._found[weight.name]
            assert not planes.tiled
            values = planes.codes if planes.format is Format.FLOAT else self.vector(weight)
            parts.append(values.view(weight.shape[0], -1).to(torch.bfloat16))
            if self._read_once(weight.name):
                del self._found[weight.name]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def interleaves(self, gate: Weight, up: Weight) -> bool:
        """Whether two weights can become one matrix: of one type, and not repacked for another op already."""
        if (gate.name, up.name) in self._interleaved:
            return True
        first, second = self._found[gate.name], self._found[up.name]
        return first.stacks_with(second) and not first.tiled and not second.tiled

    def interleaved(self, gate: Weight, up: Weight, experts: int = 1) -> Planes:
        """Gate and up in one matrix; those that no other op reads are given up."""
        key = (gate.name, up.name)
        if key not in self._interleaved:
            pair = interleave(self._found[gate.name], self._found[up.name], experts)
            self._interleaved[key] = repack(pair, experts)
            for name in {name for name in key if self._read_once(name)}:
                del self._found[name]
        return self._interleaved[key]

    def vector(self, weight: Weight) -> torch.Tensor:
        """A weight with one axis."""
        planes = self._found[weight.name]
        if planes.format is Format.FLOAT:
            return planes.codes.reshape(-1)
        from olivine.backends.reference import dequantize  # rare, and slow to import

        values = dequantize(self._weights[weight.name][0])
        return torch.from_numpy(np.ascontiguousarray(values)).to(self.device)

    def bias(self, weight: Weight | None) -> torch.Tensor | None:
        return None if weight is None else self.vector(weight)

    def limits(self, op: Clamp | None) -> torch.Tensor | None:
        """The least and the most that a clamp lets through."""
        if op is None:
            return None
        return torch.tensor(limits_of(op, lambda weight: self.vector(weight).item()), device=self.device)

    def norm(self, op: ops.RmsNorm | None) -> NormWeight | None:
        if op is None:
            return None
        if op.weight is None:
            return NormWeight(torch.ones(op.size, device=self.device), op.eps, 0.0)
        return NormWeight(self.vector(op.weight), op.eps, op.offset)

    def transform(self, norm: ops.RmsNorm | None, rope: ops.Rope | None) -> HeadTransform:
        return HeadTransform(self.norm(norm), self.rotary(rope))

    def rotary(self, op: ops.Rope | None) -> Rotary | None:
        """A rotary embedding; ops that rotate alike share it, and the angles of a step."""
        if op is None:
            return None
        key = (op.rotation, None if op.divisors is None else op.divisors.name)
        if key not in self.rotaries:
            frequencies = np.array(op.rotation.frequencies, np.float32)
            if op.divisors is not None:
                from olivine.backends.reference import dequantize  # rare, and slow to import

                frequencies = frequencies / dequantize(self._weights[op.divisors.name][0])
            on_device = torch.from_numpy(frequencies).to(self.device)
            self.rotaries[key] = Rotary(on_device, op.rotation.magnitude, op.rotation.interleaved)
        return self.rotaries[key]

    def _read_once(self, name: str) -> bool:
        return self._readers[name] == 1

    @cached_property
    def _readers(self) -> Counter[str]:
        """How many ops read each weight."""
        return Counter(weight.name for op in self.fused.plan.ops for weight in op.weights())


class Maker(Protocol[OpKind]):
    """Makes the launcher of an op."""

    def __call__(self, lowering: Lowering, op: OpKind, /) -> Launch: ...
