"""Qwen3's mixtures of experts: every layer's MLP is one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from synthetic.shapes import Shape


@dataclass(frozen=True)
class Qwen3MoeShape(Shape):
    """`hidden` is the width inside one expert."""

    experts: int = 0
    experts_used: int = 0

    def metadata(self) -> dict[str, Any]:
        return super().metadata() | {
            "expert_count": self.experts,
            "expert_used_count": self.experts_used,
            "expert_feed_forward_length": self.hidden,
        }

    def matrices(self) -> dict[str, tuple[int, ...]]:
        dense = {stem: size for stem, size in super().matrices().items() if stem.startswith("attn")}
        return {
            **dense,
            "ffn_gate_inp": (self.experts, self.width),
            "ffn_gate_exps": (self.experts, self.hidden, self.width),
            "ffn_up_exps": (self.experts, self.hidden, self.width),
            "ffn_down_exps": (self.experts, self.width, self.hidden),
        }

    def norms(self) -> dict[str, int]:
        return super().norms() | {"attn_q_norm": self.head_dim, "attn_k_norm": self.head_dim}


QWEN3MOE_SHAPES = {
    # Its head has a weight of its own, which a shape here has not.
    "qwen3-30b-a3b": Qwen3MoeShape(
        "qwen3moe", 48, 2048, 768, 32, 4, 128, 151936, 40960, 1e6, experts=128, experts_used=8
    ),
    "tiny-qwen3moe": Qwen3MoeShape(
        "qwen3moe", 3, 256, 128, 4, 2, 64, 1024, 512, 1e6, experts=6, experts_used=2
    ),
}
