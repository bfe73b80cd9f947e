"""Qwen3, dense and mixture of experts, and Qwen2 / 2.5 (the same block with biases and without q/k norms)."""

from __future__ import annotations

from dataclasses import dataclass

from olivine.models import rope
from olivine.models.architecture import Architecture, head, heads_from_gguf, heads_from_hf
from olivine.models.fields import Fields
from olivine.plan import Rotation, Trace, Value


@dataclass(frozen=True)
class Experts:
    count: int
    used: int
    hidden: int  # the width inside one expert
    normalize: bool


@dataclass(frozen=True)
class Qwen3Config:
    layers: int
    width: int  # D
    hidden: int  # F, the width inside a dense MLP
    heads: int  # H
    kv_heads: int  # G
    head_dim: int  # d
    qk_norm: bool
    eps: float
    rotation: Rotation
    windows: tuple[int | None, ...]  # one a layer
    experts: Experts | None
    sparse: tuple[bool, ...]  # one a layer: experts, or a dense MLP
    context: int
    tied: bool


def from_hf(config: Fields) -> Qwen3Config:
    kind = config.text("model_type")
    layers = config.integer("num_hidden_layers", high=1024)
    heads, kv_heads, head_dim = heads_from_hf(config)
    config.choice("hidden_act", {"silu": "silu"}, "silu")
    experts, sparse = None, (False,) * layers
    if kind == "qwen3_moe":
        # Published files say `num_experts`; the library itself now saves `num_local_experts`.
        key = "num_experts" if config.has("num_experts") else "num_local_experts"
        count = config.integer(key, high=1 << 14)
        experts = Experts(
            count=count,
            used=config.integer("num_experts_per_tok", high=count),
            hidden=config.integer("moe_intermediate_size"),
            normalize=config.flag("norm_topk_prob", False),
        )
        step = config.integer("decoder_sparse_step", 1, high=1024)
        dense = config.integers("mlp_only_layers")
        sparse = tuple(i not in dense and (i + 1) % step == 0 for i in range(layers))
    return Qwen3Config(
        layers=layers,
        width=config.integer("hidden_size"),
        hidden=config.integer("intermediate_size"),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        qk_norm=kind != "qwen2",
        eps=config.number("rms_norm_eps", high=1.0),
        rotation=rope.from_hf(config, head_dim),
        windows=_windows(config, layers),
        experts=experts,
        sparse=sparse,
        context=config.integer("max_position_embeddings", high=1 << 32),
        tied=config.flag("tie_word_embeddings", False),
    )


def _windows(config: Fields, layers: int) -> tuple[int | None, ...]:
    """No released size slides, but the configuration can say so: from `max_window_layers` on, or by layer."""
    if not config.flag("use_sliding_window", False) or not config.has("sliding_window"):
        return (None,) * layers
    window = config.integer("sliding_window", high=1 << 31)
    first = config.integer("max_window_layers", 0, low=0)
    kinds = config.items("layer_types", layers)
    if kinds is None:
        kinds = ["sliding_attention" if i >= first else "full_attention" for i in range(layers)]
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


def from_gguf(meta: Fields) -> Qwen3Config:
    layers = meta.integer("block_count", high=1024)
    heads, kv_heads, head_dim = heads_from_gguf(meta)
    experts = None
    if count := meta.integer("expert_count", 0, low=0, high=1 << 14):
        used = meta.integer("expert_used_count", high=count)
        experts = Experts(
            count=count,
            used=used,
            hidden=meta.integer("expert_feed_forward_length", meta.integer("feed_forward_length") // used),
            normalize=True,  # GGUF has no key for it; every released model does
        )
    return Qwen3Config(
        layers=layers,
        width=meta.integer("embedding_length"),
        hidden=meta.integer("feed_forward_length"),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        qk_norm=meta.architecture != "qwen2",
        eps=meta.number("attention.layer_norm_rms_epsilon", high=1.0),
        rotation=rope.from_gguf(meta, head_dim),
        windows=(None,) * layers,
        experts=experts,
        sparse=(experts is not None,) * layers,
        context=meta.integer("context_length", high=1 << 32),
        tied=True,
    )


def forward(t: Trace, c: Qwen3Config) -> None:
    x = t.embed("token_embd", c.width)  # [T, D]
    for i in range(c.layers):
        layer = t.scope(f"blk.{i}")
        x = attention(layer, c, x, c.windows[i])
        # A GGUF of a mixture does not say which of its layers are dense: their tensors do.
        if c.experts is not None and c.sparse[i] and not layer.has("ffn_gate.weight"):
            x = mixture(layer, c, x, c.experts)
        else:
            x = mlp(layer, c, x)
    x = t.rms_norm(t.take_outputs(x), "output_norm", c.eps)
    t.finish(hidden=x, logits=head(t, x, tied=c.tied))


def attention(t: Trace, c: Qwen3Config, x: Value, window: int | None) -> Value:
    h = t.rms_norm(x, "attn_norm", c.eps)
    q = t.linear(h, "attn_q", c.heads * c.head_dim)  # [T, H·d]
    k = t.linear(h, "attn_k", c.kv_heads * c.head_dim)  # [T, G·d]
    v = t.linear(h, "attn_v", c.kv_heads * c.head_dim)
    if c.qk_norm:
        q = t.rms_norm(q, "attn_q_norm", c.eps, size=c.head_dim)
        k = t.rms_norm(k, "attn_k_norm", c.eps, size=c.head_dim)
    cache = t.cache(c.kv_heads, c.head_dim, window)
    t.store(cache, t.rope(k, c.rotation), v)
    a = t.attention(t.rope(q, c.rotation), cache, scale=c.head_dim**-0.5)
    return t.add(x, t.linear(a, "attn_output", c.width))


def mlp(t: Trace, c: Qwen3Config, x: Value) -> Value:
    h = t.rms_norm(x, "ffn_norm", c.eps)
    m = t.gate(t.linear(h, "ffn_gate", c.hidden), t.linear(h, "ffn_up", c.hidden), "silu")  # [T, F]
    return t.add(x, t.linear(m, "ffn_down", c.width))


def mixture(t: Trace, c: Qwen3Config, x: Value, e: Experts) -> Value:
    h = t.rms_norm(x, "ffn_norm", c.eps)
    router = t.linear(h, "ffn_gate_inp", e.count)  # [T, E]
    m = t.moe(h, router, width=e.hidden, top_k=e.used, normalize=e.normalize, activation="silu")
    return t.add(x, m)


ARCHITECTURE = Architecture(
    name="Qwen",
    hf=("qwen3", "qwen3_moe", "qwen2"),
    gguf=("qwen3", "qwen3moe", "qwen2"),
    from_hf=from_hf,
    from_gguf=from_gguf,
    forward=forward,
)
