"""A traced model: a flat, printable table of ops, and the weights, caches and memory they need."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from olivine.plan.buffers import Buffers, assign_buffers
from olivine.plan.ops import Cache, Embed, Op, Value, Weight
from olivine.plan.tower_ops import Input


@dataclass(frozen=True)
class CacheGroup:
    """Caches of equal shape and window. They share page tables: page p holds the same tokens in all."""

    kv_heads: int
    head_dim: int
    window: int | None
    caches: tuple[Cache, ...]

    def bytes_per_token(self, element_bytes: int) -> int:
        return 2 * self.kv_heads * self.head_dim * len(self.caches) * element_bytes


@dataclass(frozen=True)
class Plan:
    """What a model computes, as pure data. Made by `plan.trace.trace`."""

    name: str
    ops: tuple[Op, ...]
    weights: tuple[Weight, ...]  # each once, in order of first use
    caches: tuple[Cache, ...]
    hidden: Value  # R rows of D: the input of the LM head; of a tower, the soft tokens
    logits: Value  # R rows of V; a tower's have no columns

    @cached_property
    def groups(self) -> tuple[CacheGroup, ...]:
        """The caches grouped by shape and window, in order of first appearance."""
        found: dict[tuple[int, int, int | None, int], list[Cache]] = {}
        for cache in self.caches:
            found.setdefault((cache.kv_heads, cache.head_dim, cache.window, cache.group), []).append(cache)
        return tuple(CacheGroup(*shape[:3], tuple(caches)) for shape, caches in found.items())

    def bytes_per_token(self, group: CacheGroup, element_bytes: int) -> int:
        """Of the KV cache that this part of a plan has of a group of the whole plan."""
        ids = {cache.id for cache in group.caches}
        mine = (replace(each, caches=tuple(c for c in each.caches if c.id in ids)) for each in self.groups)
        return sum(each.bytes_per_token(element_bytes) for each in mine)

    @cached_property
    def vocabulary(self) -> int:
        """How many token ids a batch may have. The rows of a tower have no tokens, and count as token 0."""
        return min((op.tokens for op in self.ops if isinstance(op, Embed)), default=1)

    @cached_property
    def width(self) -> int:
        """D: the columns of an embedding that is injected."""
        return next((op.out.width for op in self.ops if isinstance(op, Embed)), self.hidden.width)

    @cached_property
    def input(self) -> Input | None:
        """What reads the rows of a tower; None in a decoder, which embeds tokens."""
        return next((op for op in self.ops if isinstance(op, Input)), None)

    @cached_property
    def buffers(self) -> Buffers:
        """The place of each value, assigned by liveness, so the peak is known before the first step."""
        return assign_buffers([[op] for op in self.ops], keep=(self.hidden, self.logits))

    def activation_bytes(self, token_rows: int, output_rows: int) -> int:
        """Peak bytes of float32 activations of a step with that many rows."""
        return 4 * (token_rows * self.buffers.token_width + output_rows * self.buffers.output_width)

    def __str__(self) -> str:
        lines = [
            f"plan {self.name}: {len(self.ops)} ops, {len(self.weights)} weights, {len(self.caches)} caches"
        ]
        for index, group in enumerate(self.groups):
            window = "all tokens" if group.window is None else f"the last {group.window} tokens"
            shape = f"{group.kv_heads} heads × {group.head_dim}"
            lines.append(f"  group {index}: {len(group.caches)} caches of {shape}, {window}")
        for op in self.ops:
            out = op.output
            lines.append(f"  {op}" if out is None else f"  {op!s:<88} # {out.rows} × {out.width}".rstrip())
        lines.append(
            f"  activations: {self.buffers.token_width} floats a token row, "
            f"{self.buffers.output_width} an output row"
        )
        return "\n".join(lines)
