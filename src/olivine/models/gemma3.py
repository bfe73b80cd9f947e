"""Gemma 3, the text model: 270M, 1B, and the decoders of 4B, 12B and 27B."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from olivine.models import decoder, names, rope
from olivine.models.architecture import Architecture, GgufForm, attention_biases
from olivine.models.decoder import DecoderConfig, attend, head, mlp, qkv
from olivine.models.fields import LONGEST_WINDOW, Fields
from olivine.models.rope import Rope
from olivine.plan import Trace, Value

_27B_LAYERS = 62
_PERIOD = 6  # every sixth layer is global, the others slide
# What the published `text_config` of the larger sizes leaves out.
_DEFAULTS = {
    "num_hidden_layers": 26, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
    "hidden_size": 2304, "intermediate_size": 9216, "rms_norm_eps": 1e-6, "sliding_window": 4096,
    "max_position_embeddings": 131072, "query_pre_attn_scalar": 256,
    "hidden_activation": "gelu_pytorch_tanh",
}  # fmt: skip


@dataclass(frozen=True)
class Gemma3Config(DecoderConfig):
    """`rope` is that of global layers, those without a window."""

    local_rope: Rope
    scale: float  # of attention scores
    norm_offset: float  # 1 where the file stores w of (1 + w)
    softcap: float | None


def from_hf(config: Fields) -> Gemma3Config:
    text = (config.section("text_config") or config).with_defaults(_DEFAULTS)
    if text.flag("use_bidirectional_attention", False):
        raise text.refuse("use_bidirectional_attention", "makes this an embedding model: not supported")
    if text.has("attn_logit_softcapping"):
        raise text.refuse("attn_logit_softcapping", "is not supported for Gemma 3")
    key = "sliding_window_pattern" if text.has("sliding_window_pattern") else "_sliding_window_pattern"
    layers = text.integer("num_hidden_layers", high=1024)
    window = text.integer("sliding_window", high=LONGEST_WINDOW)
    usual = decoder.windows_by_period(window, layers, text.integer(key, _PERIOD, high=1024))
    c = decoder.from_hf(
        text,
        theta=1e6,
        layer_type="full_attention",
        activation=text.choice("hidden_activation", {"gelu_pytorch_tanh": "gelu_tanh"}),
        windows=decoder.windows_from_hf(text, window, usual),
        tied=config.flag("tie_word_embeddings", True),
    )
    return Gemma3Config(
        **vars(c),
        local_rope=rope.local_from_hf(text, c.head_dim, text.number("rope_local_base_freq", 10_000.0)),
        scale=text.number("query_pre_attn_scalar") ** -0.5,
        norm_offset=1.0,
        softcap=text.number("final_logit_softcapping") if text.has("final_logit_softcapping") else None,
    )


def from_gguf(meta: Fields) -> Gemma3Config:
    windows = decoder.windows_from_gguf(meta, _PERIOD)
    c = decoder.from_gguf(meta, activation="gelu_tanh", windows=windows)
    return Gemma3Config(
        **vars(c),
        local_rope=Rope(c.head_dim, meta.number("rope.freq_base_swa", 10_000.0)),
        scale=meta.number("attention.scale", _usual_scale(c)),
        norm_offset=0.0,  # GGUF stores 1 + w
        softcap=meta.number("final_logit_softcapping") if meta.has("final_logit_softcapping") else None,
    )


def _usual_scale(c: DecoderConfig) -> float:
    """GGUF has no query_pre_attn_scalar; 27B is the one size where it is not the head size."""
    return float(c.width / c.heads if c.layers == _27B_LAYERS else c.head_dim) ** -0.5


def to_gguf(c: Gemma3Config) -> GgufForm:
    window = next(filter(None, c.windows), 0)
    keys = {"attention.sliding_window": window, "rope.freq_base_swa": c.local_rope.theta}
    if c.softcap is not None:
        keys["final_logit_softcapping"] = c.softcap
    unusual: dict[str, Any] = {}
    if window and c.windows != decoder.windows_by_period(window, c.layers, _PERIOD):
        unusual["attention.sliding_window_pattern"] = decoder.window_pattern(c.windows)
    if not math.isclose(c.scale, _usual_scale(c), rel_tol=1e-6):
        unusual["attention.scale"] = c.scale
    form = decoder.to_gguf("gemma3", c, {**keys, **unusual}, has_windows=True, norm_offset=0.0)
    if unusual:
        named = " and ".join(f"gemma3.{key}" for key in unusual)
        told = f"unusual for Gemma 3, so written as {named}: llama.cpp may ignore that and compute otherwise"
        form = replace(form, warnings=(told,))
    return replace(form, norm_offset=c.norm_offset)


def forward(t: Trace, c: Gemma3Config) -> None:
    x = t.embed("token_embd", c.width, scale=c.width**0.5)  # [T, D]
    for i, window in enumerate(c.windows):
        x = block(t.scope(f"blk.{i}"), c, x, window)
    x = t.rms_norm(t.take_outputs(x), "output_norm", c.eps, offset=c.norm_offset)
    logits = head(t, x, tied=c.tied)
    t.finish(hidden=x, logits=logits if c.softcap is None else t.softcap(logits, c.softcap))


def block(t: Trace, c: Gemma3Config, x: Value, window: int | None) -> Value:
    def norm(x: Value, name: str, size: int = 0) -> Value:
        return t.rms_norm(x, name, c.eps, size=size, offset=c.norm_offset)

    q, k, v = qkv(t, c, norm(x, "attn_norm"))
    q, k = norm(q, "attn_q_norm", c.head_dim), norm(k, "attn_k_norm", c.head_dim)
    rotary = c.rope if window is None else c.local_rope
    a = attend(t, c, q, k, v, rope=rotary, window=window, scale=c.scale, bidirectional=True)
    # The post norms act on a branch before it joins the residual.
    x = t.add(x, norm(a, "post_attention_norm"))
    return t.add(x, norm(mlp(t, c, norm(x, "ffn_norm")), "post_ffw_norm"))


ARCHITECTURE = Architecture(
    name="Gemma 3",
    from_hf=from_hf,
    from_gguf=from_gguf,
    to_gguf=to_gguf,
    forward=forward,
    biases=lambda config: attention_biases(config.section("text_config") or config),
    block_names={
        "post_attention_layernorm": "post_attention_norm",
        "pre_feedforward_layernorm": "ffn_norm",
        "post_feedforward_layernorm": "post_ffw_norm",
    },
    ignored=names.VISION,
)
