"""Gemma 4's shapes: layers of two kinds, embeddings for every layer, shared keys, experts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from synthetic.shapes import Shape


@dataclass(frozen=True)
class Gemma4Shape(Shape):
    """`kv_heads`, `head_dim` and `window` are those of sliding layers; every `period`-th layer is full."""

    period: int = 6
    full_kv_heads: int = 1
    full_head_dim: int = 512
    keys_are_values: bool = False  # on full layers
    per_layer: int = 0  # the width of a layer's own embedding
    shared: int = 0  # the last layers read the keys of others
    wide: bool = False  # and have twice the width inside
    experts: int = 0
    experts_used: int = 0
    expert_hidden: int = 0

    def is_full(self, layer: int) -> bool:
        return (layer + 1) % self.period == 0

    def is_shared(self, layer: int) -> bool:
        return layer >= self.layers - self.shared

    def hidden_of(self, layer: int) -> int:
        return self.hidden * (2 if self.wide and self.is_shared(layer) else 1)

    def metadata(self) -> dict[str, Any]:
        layers = range(self.layers)
        kv_heads = [self.full_kv_heads if self.is_full(i) else self.kv_heads for i in layers]
        hidden = [self.hidden_of(i) for i in layers]
        told = super().metadata() | {
            "feed_forward_length": hidden if len(set(hidden)) > 1 else self.hidden,
            "attention.head_count_kv": kv_heads if len(set(kv_heads)) > 1 else self.kv_heads,
            "attention.sliding_window_pattern": [not self.is_full(i) for i in layers],
            "attention.shared_kv_layers": self.shared,
            "embedding_length_per_layer_input": self.per_layer,
            "rope.freq_base_swa": 10_000.0,
            "final_logit_softcapping": 30.0,
        }
        for suffix, size in (("", self.full_head_dim), ("_swa", self.head_dim)):
            for key in ("attention.key_length", "attention.value_length", "rope.dimension_count"):
                told[key + suffix] = size
        if self.experts:
            told |= {
                "expert_count": self.experts,
                "expert_used_count": self.experts_used,
                "expert_feed_forward_length": self.expert_hidden,
            }
        return told

    def tensors(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        yield "token_embd.weight", (self.vocabulary, self.width)
        if self.per_layer:
            packed = self.layers * self.per_layer
            yield "per_layer_token_embd.weight", (self.vocabulary, packed)
            yield "per_layer_model_proj.weight", (packed, self.width)
            yield "per_layer_proj_norm.weight", (self.per_layer,)
        yield "rope_freqs.weight", (self.full_head_dim // 2,)
        for layer in range(self.layers):
            for name, shape in self._layer(layer).items():
                yield f"blk.{layer}.{name}", shape
        yield "output_norm.weight", (self.width,)

    def vector(self, name: str, size: int) -> npt.NDArray[np.float32]:
        values = super().vector(name, size)
        if name == "rope_freqs.weight":
            values[size // 4 :] = 1e30  # the pairs that are not rotated
        return values

    def _layer(self, layer: int) -> dict[str, tuple[int, ...]]:
        full, width, hidden = self.is_full(layer), self.width, self.hidden_of(layer)
        head_dim = self.full_head_dim if full else self.head_dim
        keys = (self.full_kv_heads if full else self.kv_heads) * head_dim
        norms = ["attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"]
        found: dict[str, tuple[int, ...]] = {
            "attn_q_norm.weight": (head_dim,),
            "attn_q.weight": (self.heads * head_dim, width),
            "attn_output.weight": (width, self.heads * head_dim),
            "ffn_gate.weight": (hidden, width),
            "ffn_up.weight": (hidden, width),
            "ffn_down.weight": (width, hidden),
            "layer_output_scale.weight": (1,),
        }
        if not self.is_shared(layer):
            found |= {"attn_k_norm.weight": (head_dim,), "attn_k.weight": (keys, width)}
            if not (full and self.keys_are_values):
                found["attn_v.weight"] = (keys, width)
        if self.per_layer:
            found |= {"inp_gate.weight": (self.per_layer, width), "proj.weight": (width, self.per_layer)}
            norms.append("post_norm")
        if self.experts:
            inside = self.expert_hidden
            found |= {
                "ffn_gate_inp.weight": (self.experts, width),
                "ffn_gate_inp.scale": (width,),
                "ffn_gate_up_exps.weight": (self.experts, 2 * inside, width),
                "ffn_down_exps.weight": (self.experts, width, inside),
                "ffn_down_exps.scale": (self.experts,),
            }
            norms += ["pre_ffw_norm_2", "post_ffw_norm_1", "post_ffw_norm_2"]
        return found | {f"{norm}.weight": (width,) for norm in norms}


GEMMA4_SHAPES = {
    "gemma4-e2b": Gemma4Shape(
        "gemma4", 35, 1536, 6144, 8, 1, 256, 262144, 131072, 1e6, window=512, period=5,
        full_kv_heads=1, per_layer=256, shared=20, wide=True,
    ),
    "gemma4-26b-a4b": Gemma4Shape(
        "gemma4", 30, 2816, 2112, 16, 8, 256, 262144, 262144, 1e6, window=1024,
        full_kv_heads=2, keys_are_values=True, experts=128, experts_used=8, expert_hidden=704,
    ),
    "gemma4-31b": Gemma4Shape(
        "gemma4", 60, 5376, 21504, 32, 16, 256, 262144, 262144, 1e6, window=1024,
        full_kv_heads=4, keys_are_values=True,
    ),
    # For tests: everything at once.
    "tiny-gemma4": Gemma4Shape(
        "gemma4", 6, 256, 256, 4, 2, 32, 1024, 512, 1e6, window=16, period=2,
        full_kv_heads=1, full_head_dim=64, keys_are_values=True, per_layer=64, shared=2, wide=True,
        experts=6, experts_used=2, expert_hidden=96,
    ),
}  # fmt: skip
