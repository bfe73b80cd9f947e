"""The Llama family: Llama 2 and 3, SmolLM2, Mistral, TinyLlama and everything else that uses this block."""

from __future__ import annotations

from dataclasses import dataclass, replace

from olivine.models import rope
from olivine.models.architecture import Architecture, head, heads_from_gguf, heads_from_hf
from olivine.models.fields import Fields
from olivine.plan import Rotation, Trace, Value


@dataclass(frozen=True)
class LlamaConfig:
    layers: int
    width: int  # D
    hidden: int  # F, the width inside the MLP
    heads: int  # H
    kv_heads: int  # G
    head_dim: int  # d
    eps: float
    rotation: Rotation
    window: int | None
    context: int
    tied: bool


def from_hf(config: Fields) -> LlamaConfig:
    heads, kv_heads, head_dim = heads_from_hf(config)
    config.choice("hidden_act", {"silu": "silu"}, "silu")
    return LlamaConfig(
        layers=config.integer("num_hidden_layers", high=1024),
        width=config.integer("hidden_size"),
        hidden=config.integer("intermediate_size"),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        eps=config.number("rms_norm_eps", high=1.0),
        rotation=rope.from_hf(config, head_dim),
        window=config.integer("sliding_window", high=1 << 31) if config.has("sliding_window") else None,
        context=config.integer("max_position_embeddings", high=1 << 32),
        tied=config.flag("tie_word_embeddings", False),
    )


def from_gguf(meta: Fields) -> LlamaConfig:
    if meta.integer("expert_count", 0, low=0) > 0:
        raise meta.refuse("expert_count", "is not supported for llama; known mixtures: qwen3moe")
    heads, kv_heads, head_dim = heads_from_gguf(meta)
    if meta.integer("rope.dimension_count", head_dim) != head_dim:
        raise meta.refuse("rope.dimension_count", f"must be the head size, {head_dim}")
    return LlamaConfig(
        layers=meta.integer("block_count", high=1024),
        width=meta.integer("embedding_length"),
        hidden=meta.integer("feed_forward_length"),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        eps=meta.number("attention.layer_norm_rms_epsilon", high=1.0),
        # GGUF files of this architecture hold the rows of Q and K in the order of interleaved pairs.
        rotation=replace(rope.from_gguf(meta, head_dim), interleaved=True),
        window=None,
        context=meta.integer("context_length", high=1 << 32),
        tied=True,
    )


def forward(t: Trace, c: LlamaConfig) -> None:
    divisors = "rope_freqs.weight" if t.has("rope_freqs.weight") else None
    x = t.embed("token_embd", c.width)  # [T, D]
    for i in range(c.layers):
        x = block(t.scope(f"blk.{i}"), c, x, divisors)
    x = t.rms_norm(t.take_outputs(x), "output_norm", c.eps)
    t.finish(hidden=x, logits=head(t, x, tied=c.tied))


def block(t: Trace, c: LlamaConfig, x: Value, divisors: str | None) -> Value:
    h = t.rms_norm(x, "attn_norm", c.eps)
    q = t.rope(t.linear(h, "attn_q", c.heads * c.head_dim), c.rotation, divisors=divisors)  # [T, H·d]
    k = t.rope(t.linear(h, "attn_k", c.kv_heads * c.head_dim), c.rotation, divisors=divisors)  # [T, G·d]
    v = t.linear(h, "attn_v", c.kv_heads * c.head_dim)
    cache = t.cache(c.kv_heads, c.head_dim, c.window)
    t.store(cache, k, v)
    a = t.attention(q, cache, scale=c.head_dim**-0.5)
    x = t.add(x, t.linear(a, "attn_output", c.width))

    h = t.rms_norm(x, "ffn_norm", c.eps)
    m = t.gate(t.linear(h, "ffn_gate", c.hidden), t.linear(h, "ffn_up", c.hidden), "silu")  # [T, F]
    return t.add(x, t.linear(m, "ffn_down", c.width))


ARCHITECTURE = Architecture(
    name="Llama",
    hf=("llama", "mistral"),
    gguf=("llama",),
    from_hf=from_hf,
    from_gguf=from_gguf,
    forward=forward,
)
