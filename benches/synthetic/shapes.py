"""The published sizes, one line a model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Shape:
    """What decides how much a model computes. The embedding is the head as well, as in all of these."""

    architecture: str  # as GGUF names it: qwen3, qwen3moe, gemma3, gemma4, llama
    layers: int
    width: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    context: int
    rope_base: float
    epsilon: float = 1e-6
    window: int | None = None  # Gemma 3: every sixth layer sees everything, the others this much
    rope_factor: float = 1.0  # Gemma 3 4B and up: linear, on the layers that see everything

    def metadata(self) -> dict[str, Any]:
        """What a GGUF file says of it, by keys without the architecture's name."""
        told: dict[str, Any] = {
            "block_count": self.layers,
            "context_length": self.context,
            "embedding_length": self.width,
            "feed_forward_length": self.hidden,
            "attention.head_count": self.heads,
            "attention.head_count_kv": self.kv_heads,
            "attention.key_length": self.head_dim,
            "attention.value_length": self.head_dim,
            "attention.layer_norm_rms_epsilon": self.epsilon,
            "rope.freq_base": self.rope_base,
        }
        if self.architecture == "llama":
            told |= {"rope.dimension_count": self.head_dim, "vocab_size": self.vocabulary}
        if self.window is not None:
            told["attention.sliding_window"] = self.window
        if self.rope_factor != 1.0:
            told |= {"rope.scaling.type": "linear", "rope.scaling.factor": self.rope_factor}
        return told

    def vector(self, name: str, size: int) -> npt.NDArray[np.float32]:
        """A tensor of one axis: a norm that does nothing, which fits files with 1 + w too."""
        return np.ones(size, np.float32)

    def matrices(self) -> dict[str, tuple[int, ...]]:
        """The linear weights of one layer, by GGUF's names, as (outputs, inputs); of experts, their number
        before those."""
        return {
            "attn_q": (self.heads * self.head_dim, self.width),
            "attn_k": (self.kv_heads * self.head_dim, self.width),
            "attn_v": (self.kv_heads * self.head_dim, self.width),
            "attn_output": (self.width, self.heads * self.head_dim),
            "ffn_gate": (self.hidden, self.width),
            "ffn_up": (self.hidden, self.width),
            "ffn_down": (self.width, self.hidden),
        }

    def norms(self) -> dict[str, int]:
        """The norm weights of one layer and their lengths."""
        norms = {"attn_norm": self.width, "ffn_norm": self.width}
        if self.architecture in ("qwen3", "gemma3"):
            norms |= {"attn_q_norm": self.head_dim, "attn_k_norm": self.head_dim}
        if self.architecture == "gemma3":
            norms |= {"post_attention_norm": self.width, "post_ffw_norm": self.width}
        return norms

    def tensors(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Every tensor's name and shape, in the order of the file."""
        yield "token_embd.weight", (self.vocabulary, self.width)
        for layer in range(self.layers):
            for stem, length in self.norms().items():
                yield f"blk.{layer}.{stem}.weight", (length,)
            for stem, shape in self.matrices().items():
                yield f"blk.{layer}.{stem}.weight", shape
        yield "output_norm.weight", (self.width,)


def _qwen3(layers: int, width: int, hidden: int, heads: int) -> Shape:
    return Shape("qwen3", layers, width, hidden, heads, 8, 128, 151936, 40960, 1e6)


SHAPES = {
    "qwen3-0.6b": _qwen3(28, 1024, 3072, 16),
    "qwen3-1.7b": _qwen3(28, 2048, 6144, 16),
    "qwen3-4b": _qwen3(36, 2560, 9728, 32),
    "gemma3-270m": Shape("gemma3", 18, 640, 2048, 4, 1, 256, 262144, 32768, 1e6, window=512),
    "gemma3-1b": Shape("gemma3", 26, 1152, 6912, 4, 1, 256, 262144, 32768, 1e6, window=512),
    "gemma3-4b": Shape(
        "gemma3", 34, 2560, 10240, 8, 4, 256, 262144, 131072, 1e6, window=1024, rope_factor=8.0
    ),
    "gemma3-27b": Shape(
        "gemma3", 62, 5376, 21504, 32, 16, 128, 262144, 131072, 1e6, window=1024, rope_factor=8.0
    ),
    # Its head has a weight of its own, which a shape here has not: 2 GB more.
    "llama-70b": Shape("llama", 80, 8192, 28672, 64, 8, 128, 128256, 131072, 5e5, epsilon=1e-5),
    "smollm2-135m": Shape("llama", 30, 576, 1536, 9, 3, 64, 49152, 8192, 1e5, epsilon=1e-5),
    # For tests: everything that the large ones have, in a megabyte.
    "tiny-qwen3": Shape("qwen3", 4, 256, 512, 4, 2, 64, 1024, 512, 1e6),
    "tiny-gemma3": Shape("gemma3", 6, 256, 512, 4, 1, 64, 1024, 512, 1e6, window=16, rope_factor=8.0),
    "tiny-llama": Shape("llama", 2, 256, 512, 4, 2, 64, 1024, 512, 1e5),
}
