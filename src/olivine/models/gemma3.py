"""Gemma 3, the text model: 270M, 1B, and the decoders of 4B, 12B and 27B."""

from __future__ import annotations

from dataclasses import dataclass

from olivine.models import rope
from olivine.models.architecture import Architecture, head, heads_from_gguf, heads_from_hf
from olivine.models.fields import Fields
from olivine.plan import Rotation, Trace, Value

_27B_LAYERS = 62


@dataclass(frozen=True)
class Gemma3Config:
    layers: int
    width: int  # D
    hidden: int  # F, the width inside the MLP
    heads: int  # H
    kv_heads: int  # G
    head_dim: int  # d
    scale: float  # of attention scores
    eps: float
    norm_offset: float  # 1 where the file stores w of (1 + w)
    global_rotation: Rotation
    local_rotation: Rotation
    windows: tuple[int | None, ...]  # one a layer; None is global
    softcap: float | None
    context: int
    tied: bool


def from_hf(config: Fields) -> Gemma3Config:
    """The published `text_config` of the larger sizes is sparse: what it leaves out has these defaults."""
    text = (config.section("text_config") or config).with_defaults(
        {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "hidden_size": 2304}
    )
    if text.flag("use_bidirectional_attention", False):
        raise text.refuse("use_bidirectional_attention", "makes this an embedding model: not supported")
    if text.has("attn_logit_softcapping"):
        raise text.refuse("attn_logit_softcapping", "is not supported for Gemma 3")
    text.choice("hidden_activation", {"gelu_pytorch_tanh": "gelu_tanh"}, "gelu_pytorch_tanh")
    layers = text.integer("num_hidden_layers", 26, high=1024)
    heads, kv_heads, head_dim = heads_from_hf(text)
    return Gemma3Config(
        layers=layers,
        width=text.integer("hidden_size"),
        hidden=text.integer("intermediate_size", 9216),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        scale=text.number("query_pre_attn_scalar", 256) ** -0.5,
        eps=text.number("rms_norm_eps", 1e-6, high=1.0),
        norm_offset=1.0,
        global_rotation=rope.from_hf(text, head_dim, theta=1e6, layer_type="full_attention"),
        local_rotation=_local_rotation(text, head_dim),
        windows=_windows_from_hf(text, layers),
        softcap=text.number("final_logit_softcapping") if text.has("final_logit_softcapping") else None,
        context=text.integer("max_position_embeddings", 131072, high=1 << 32),
        tied=config.flag("tie_word_embeddings", True),
    )


def _local_rotation(text: Fields, head_dim: int) -> Rotation:
    """Sliding layers have a base of their own and no scaling in the older spelling."""
    parameters = text.section("rope_parameters")
    if parameters is not None and parameters.has("sliding_attention"):
        return rope.from_hf(text, head_dim, layer_type="sliding_attention")
    return rope.plain(text.number("rope_local_base_freq", 10_000.0), head_dim)


def _windows_from_hf(text: Fields, layers: int) -> tuple[int | None, ...]:
    window = text.integer("sliding_window", 4096, high=1 << 31)
    kinds = text.items("layer_types", layers)
    if kinds is not None:
        return tuple(window if kind == "sliding_attention" else None for kind in kinds)
    key = "sliding_window_pattern" if text.has("sliding_window_pattern") else "_sliding_window_pattern"
    return _every(text.integer(key, 6, high=1024), window, layers)


def _every(pattern: int, window: int, layers: int) -> tuple[int | None, ...]:
    """Every `pattern`-th layer is global, the others slide."""
    return tuple(None if (i + 1) % pattern == 0 else window for i in range(layers))


def from_gguf(meta: Fields) -> Gemma3Config:
    layers = meta.integer("block_count", high=1024)
    heads, kv_heads, head_dim = heads_from_gguf(meta)
    width = meta.integer("embedding_length")
    # The file has no query_pre_attn_scalar; 27B is the one size where it is not the head size.
    scalar = width / heads if layers == _27B_LAYERS else head_dim
    window = meta.integer("attention.sliding_window", 0, low=0, high=1 << 31)
    return Gemma3Config(
        layers=layers,
        width=width,
        hidden=meta.integer("feed_forward_length"),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        scale=meta.number("attention.scale", scalar**-0.5),
        eps=meta.number("attention.layer_norm_rms_epsilon", high=1.0),
        norm_offset=0.0,  # GGUF stores 1 + w
        global_rotation=rope.from_gguf(meta, head_dim),
        local_rotation=rope.plain(meta.number("rope.freq_base_swa", 10_000.0), head_dim),
        windows=_windows_from_gguf(meta, window, layers) if window else (None,) * layers,
        softcap=meta.number("final_logit_softcapping") if meta.has("final_logit_softcapping") else None,
        context=meta.integer("context_length", high=1 << 32),
        tied=True,
    )


def _windows_from_gguf(meta: Fields, window: int, layers: int) -> tuple[int | None, ...]:
    if meta.is_list("attention.sliding_window_pattern"):
        slides = meta.items("attention.sliding_window_pattern", layers) or ()
        return tuple(window if sliding else None for sliding in slides)
    return _every(meta.integer("attention.sliding_window_pattern", 6, high=1024), window, layers)


def forward(t: Trace, c: Gemma3Config) -> None:
    x = t.embed("token_embd", c.width, scale=c.width**0.5)  # [T, D]
    for i in range(c.layers):
        x = block(t.scope(f"blk.{i}"), c, x, c.windows[i])
    x = t.rms_norm(t.take_outputs(x), "output_norm", c.eps, offset=c.norm_offset)
    logits = head(t, x, tied=c.tied)
    t.finish(hidden=x, logits=logits if c.softcap is None else t.softcap(logits, c.softcap))


def block(t: Trace, c: Gemma3Config, x: Value, window: int | None) -> Value:
    def norm(x: Value, name: str, size: int = 0) -> Value:
        return t.rms_norm(x, name, c.eps, size=size, offset=c.norm_offset)

    rotation = c.global_rotation if window is None else c.local_rotation
    h = norm(x, "attn_norm")
    q = norm(t.linear(h, "attn_q", c.heads * c.head_dim), "attn_q_norm", c.head_dim)  # [T, H·d]
    k = norm(t.linear(h, "attn_k", c.kv_heads * c.head_dim), "attn_k_norm", c.head_dim)  # [T, G·d]
    v = t.linear(h, "attn_v", c.kv_heads * c.head_dim)
    cache = t.cache(c.kv_heads, c.head_dim, window)
    t.store(cache, t.rope(k, rotation), v)
    a = t.attention(t.rope(q, rotation), cache, scale=c.scale)
    # The post norms act on a branch before it joins the residual stream.
    x = t.add(x, norm(t.linear(a, "attn_output", c.width), "post_attention_norm"))

    h = norm(x, "ffn_norm")
    m = t.gate(t.linear(h, "ffn_gate", c.hidden), t.linear(h, "ffn_up", c.hidden), "gelu_tanh")  # [T, F]
    return t.add(x, norm(t.linear(m, "ffn_down", c.width), "post_ffw_norm"))


ARCHITECTURE = Architecture(
    name="Gemma 3",
    hf=("gemma3", "gemma3_text"),
    gguf=("gemma3",),
    from_hf=from_hf,
    from_gguf=from_gguf,
    forward=forward,
    block_names={
        "post_attention_layernorm": "post_attention_norm",
        "pre_feedforward_layernorm": "ffn_norm",
        "post_feedforward_layernorm": "post_ffw_norm",
    },
    ignored=(
        "vision_tower.",
        "multi_modal_projector.",
        "model.vision_tower.",
        "model.multi_modal_projector.",
    ),
)
