"""How each architecture of Hugging Face's is written as GGUF: its metadata keys, and how its tensors lie.

Keys that only some readers heed are listed as doubts, and become warnings.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from olivine.plan import Rotation


class Recipe:
    """A decoder whose layers are all alike. `c` is the model's own configuration."""

    gguf: str  # general.architecture
    theta = 10_000.0  # the base of the rotation where config.json names none
    divided: tuple[str, ...] = ()  # kinds of rotation that files hold as divisors of the plain frequencies
    in_pairs = False  # Q and K are rotated in pairs (2i, 2i + 1)
    fused_experts = False  # gate and up of each expert in one tensor
    has_windows = False  # GGUF has keys for how far layers look back

    def __init__(self, gguf: str) -> None:
        self.gguf = gguf

    def keys(self, c: Any) -> dict[str, Any]:
        """Metadata beyond what all decoders have."""
        return {
            "feed_forward_length": c.hidden,
            "attention.head_count_kv": c.kv_heads,
            "attention.key_length": c.head_dim,
            "attention.value_length": c.head_dim,
        }

    def rotation(self, c: Any) -> Rotation:
        """The rotation that `rope.freq_base` is about."""
        rotation: Rotation = c.rotation
        return rotation

    def with_divisors(self, c: Any, divisors: list[float]) -> Any:
        """A configuration that was read back, with the divisors applied."""
        return dataclasses.replace(c, rotation=_divided(c.rotation, divisors))

    def doubts(self, c: Any, shapes: dict[str, tuple[int, ...]]) -> tuple[str, ...]:
        """What other readers may make something else of."""
        return ()


class Llama(Recipe):
    divided = ("llama3",)
    in_pairs = True

    def keys(self, c: Any) -> dict[str, Any]:
        return {**super().keys(c), "rope.dimension_count": c.head_dim}


class Qwen3Moe(Recipe):
    def keys(self, c: Any) -> dict[str, Any]:
        return {**super().keys(c), **_experts(c.experts)}


class Gemma3(Recipe):
    theta = 1e6
    has_windows = True

    def keys(self, c: Any) -> dict[str, Any]:
        keys = {
            **super().keys(c),
            "attention.sliding_window": next(filter(None, c.windows), 0),
            "rope.freq_base_swa": _base(c.local_rotation),
            **self._unusual(c),
        }
        if c.softcap is not None:
            keys["final_logit_softcapping"] = c.softcap
        return keys

    def _unusual(self, c: Any) -> dict[str, Any]:
        """What readers have in their code, where this model differs from it."""
        keys: dict[str, Any] = {}
        every_sixth = ((i + 1) % 6 == 0 for i in range(c.layers))
        if any(c.windows) and [window is None for window in c.windows] != list(every_sixth):
            keys["attention.sliding_window_pattern"] = _sliding(c.windows)
        usual = c.head_dim if c.layers != 62 else c.width / c.heads  # 27B, by which readers know it
        if not math.isclose(c.scale, usual**-0.5, rel_tol=1e-6):
            keys["attention.scale"] = c.scale
        return keys

    def rotation(self, c: Any) -> Rotation:
        rotation: Rotation = c.global_rotation
        return rotation

    def doubts(self, c: Any, shapes: dict[str, tuple[int, ...]]) -> tuple[str, ...]:
        if not (unusual := self._unusual(c)):
            return ()
        named = " and ".join(f"{self.gguf}.{key}" for key in unusual)
        return (
            f"unusual for Gemma 3, so written as {named}: llama.cpp may ignore that and compute otherwise",
        )


class Gemma4(Recipe):
    theta = 1e6
    divided = ("proportional", "default")
    fused_experts = True
    has_windows = True

    def keys(self, c: Any) -> dict[str, Any]:
        full, sliding = self._full(c), next((b for b in c.blocks if b.window is not None), None)
        near = sliding or full  # where no layer slides nobody asks for these
        keys = {
            "feed_forward_length": _one_or_all([b.hidden for b in c.blocks]),
            "attention.head_count_kv": _one_or_all([b.kv_heads for b in c.blocks]),
            "attention.key_length": full.head_dim,
            "attention.value_length": full.head_dim,
            "attention.key_length_swa": near.head_dim,
            "attention.value_length_swa": near.head_dim,
            "attention.sliding_window": near.window or c.context,
            "attention.sliding_window_pattern": _sliding([b.window for b in c.blocks]),
            "attention.shared_kv_layers": sum(b.donor is not None for b in c.blocks),
            "embedding_length_per_layer_input": c.per_layer,
            "rope.freq_base_swa": 10_000.0 if sliding is None else _base(sliding.rotation),
            "rope.dimension_count": full.head_dim,
            "rope.dimension_count_swa": near.head_dim,
        }
        if c.softcap is not None:
            keys["final_logit_softcapping"] = c.softcap
        if c.experts is not None:
            keys |= _experts(c.experts)
        return keys

    def _full(self, c: Any) -> Any:
        """The last layer, which is a full one in every Gemma 4."""
        return c.blocks[-1]

    def rotation(self, c: Any) -> Rotation:
        rotation: Rotation = self._full(c).rotation
        return rotation

    def with_divisors(self, c: Any, divisors: list[float]) -> Any:
        rotation = _divided(c.divided_rotation, divisors)
        blocks = (dataclasses.replace(b, rotation=rotation) if b.window is None else b for b in c.blocks)
        return dataclasses.replace(c, blocks=tuple(blocks), divided_rotation=None)

    def doubts(self, c: Any, shapes: dict[str, tuple[int, ...]]) -> tuple[str, ...]:
        told = []
        # What it asserts when it makes a cache: some layer slides, and where layers share keys, the last that
        # has some is full and the one before it slides.
        owners = sum(b.donor is None for b in c.blocks)
        if all(b.window is None for b in c.blocks):
            told.append("no layer has a sliding window: llama.cpp aborts on a Gemma 4 without one")
        elif any(b.donor not in (None, owners - (1 if b.window is None else 2)) for b in c.blocks):
            told.append(
                "layers share keys in an order unusual for Gemma 4: llama.cpp aborts unless the last two "
                "layers that have keys are a sliding one and a full one"
            )
        rows, table = shapes["token_embd.weight"][0], shapes.get("per_layer_token_embd.weight")
        if table is not None and table[0] != rows:
            told.append(
                f"embeddings by layer have {table[0]} rows, and the embedding {rows}: llama.cpp refuses that"
            )
        return tuple(told)


def _experts(experts: Any) -> dict[str, Any]:
    return {
        "expert_count": experts.count,
        "expert_used_count": experts.used,
        "expert_feed_forward_length": experts.hidden,
    }


def _sliding(windows: Any) -> np.ndarray[Any, np.dtype[np.bool_]]:
    return np.array([window is not None for window in windows], np.bool_)


def _one_or_all(values: list[int]) -> Any:
    """One number where all layers agree, and a list where they do not."""
    return values[0] if len(set(values)) == 1 else np.array(values, np.int32)


def _base(rotation: Rotation) -> float:
    """The base of plain frequencies: base^(-2i/d)."""
    if len(rotation.frequencies) < 2:
        return 10_000.0
    return rotation.frequencies[1] ** -float(len(rotation.frequencies))


def _divided(rotation: Rotation, divisors: list[float]) -> Rotation:
    scaled = (f / d for f, d in zip(rotation.frequencies, divisors, strict=True))
    return dataclasses.replace(rotation, frequencies=tuple(scaled))


_GEMMA3, _GEMMA4, _LLAMA = Gemma3("gemma3"), Gemma4("gemma4"), Llama("llama")
# By `model_type`.
RECIPES: dict[str, Recipe] = {
    "gemma3": _GEMMA3,
    "gemma3_text": _GEMMA3,
    "gemma4": _GEMMA4,
    "gemma4_text": _GEMMA4,
    "gemma4_unified": _GEMMA4,
    "gemma4_unified_text": _GEMMA4,
    "qwen2": Recipe("qwen2"),
    "qwen3": Recipe("qwen3"),
    "qwen3_moe": Qwen3Moe("qwen3moe"),
    "llama": _LLAMA,
    "mistral": _LLAMA,
}
