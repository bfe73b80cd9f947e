"""Qwen3, dense and mixture of experts, and Qwen2 / 2.5 (the same block with biases and without q/k norms)."""

from __future__ import annotations

from dataclasses import dataclass

from olivine.models import decoder
from olivine.models.architecture import Architecture, GgufForm, attention_biases
from olivine.models.decoder import DecoderConfig, attend, head, mlp, qkv
from olivine.models.fields import Fields
from olivine.plan import Trace, Value

_QKV = ("attn_q", "attn_k", "attn_v")  # Qwen2 has biases there, whatever its configuration says


@dataclass(frozen=True)
class Experts:
    count: int
    used: int
    hidden: int  # the width inside one expert
    normalize: bool


@dataclass(frozen=True)
class Qwen3Config(DecoderConfig):
    qk_norm: bool
    experts: Experts | None
    sparse: tuple[bool, ...]  # one a layer: experts, or a dense MLP


def from_hf(config: Fields) -> Qwen3Config:
    kind = config.text("model_type")
    layers = config.integer("num_hidden_layers", high=1024)
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
        **vars(decoder.from_hf(config, windows=_windows(config, layers))),
        qk_norm=kind != "qwen2",
        experts=experts,
        sparse=sparse,
    )


def _biases(config: Fields) -> tuple[str, ...]:
    return _QKV if config.text("model_type") == "qwen2" else attention_biases(config)


def _windows(config: Fields, layers: int) -> tuple[int | None, ...]:
    """No released size slides, but the configuration can say so: from `max_window_layers` on, or by layer."""
    window = decoder.window_from_hf(config, 4096) if config.flag("use_sliding_window", False) else None
    if config.text("model_type") == "qwen3_moe":  # its published code has one mask for all layers
        return (window,) * layers
    first = config.integer("max_window_layers", 28, low=0)
    usual = [window if i >= first else None for i in range(layers)]
    return decoder.windows_from_hf(config, window, usual)


def from_gguf(meta: Fields) -> Qwen3Config:
    experts = None
    if count := meta.integer("expert_count", 0, low=0, high=1 << 14):
        used = meta.integer("expert_used_count", high=count)
        experts = Experts(
            count=count,
            used=used,
            hidden=meta.integer("expert_feed_forward_length", meta.integer("feed_forward_length") // used),
            normalize=True,  # GGUF has no key for it; every released model does
        )
    c = decoder.from_gguf(meta)
    return Qwen3Config(
        **vars(c),
        qk_norm=meta.architecture != "qwen2",
        experts=experts,
        sparse=(experts is not None,) * c.layers,
    )


def to_gguf(c: Qwen3Config) -> GgufForm:
    if c.experts is None:
        return decoder.to_gguf("qwen3" if c.qk_norm else "qwen2", c)
    keys = {
        "expert_count": c.experts.count,
        "expert_used_count": c.experts.used,
        "expert_feed_forward_length": c.experts.hidden,
    }
    return decoder.to_gguf("qwen3moe", c, keys, sparse=(True,) * c.layers)  # tensors tell which are dense


def forward(t: Trace, c: Qwen3Config) -> None:
    x = t.embed("token_embd", c.width)  # [T, D]
    for i in range(c.layers):
        layer = t.scope(f"blk.{i}")
        x = t.add(x, attention(layer, c, layer.rms_norm(x, "attn_norm", c.eps), c.windows[i]))
        h = layer.rms_norm(x, "ffn_norm", c.eps)
        # A GGUF of a mixture does not say which of its layers are dense: their tensors do.
        if c.experts is not None and c.sparse[i] and not layer.has("ffn_gate.weight"):
            x = t.add(x, mixture(layer, h, c.experts))
        else:
            x = t.add(x, mlp(layer, c, h))
    x = t.rms_norm(t.take_outputs(x), "output_norm", c.eps)
    t.finish(hidden=x, logits=head(t, x, tied=c.tied))


def attention(t: Trace, c: Qwen3Config, h: Value, window: int | None) -> Value:
    q, k, v = qkv(t, c, h)
    if c.qk_norm:
        q = t.rms_norm(q, "attn_q_norm", c.eps, size=c.head_dim)
        k = t.rms_norm(k, "attn_k_norm", c.eps, size=c.head_dim)
    return attend(t, c, q, k, v, rope=c.rope, window=window)


def mixture(t: Trace, h: Value, e: Experts) -> Value:
    router = t.linear(h, "ffn_gate_inp", e.count)  # [T, E]
    return t.moe(h, router, width=e.hidden, top_k=e.used, normalize=e.normalize, activation="silu")


ARCHITECTURE = Architecture(
    name="Qwen",
    from_hf=from_hf,
    from_gguf=from_gguf,
    to_gguf=to_gguf,
    forward=forward,
    biases=_biases,
)
