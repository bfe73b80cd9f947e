"""Gemma 4, the text model: E2B, E4B, 31B, 26B-A4B, and the decoder of 12B."""

from __future__ import annotations

from olivine.models.architecture import Architecture, attention_biases
from olivine.models.decoder import head
from olivine.models.gemma4_config import Experts, Gemma4Config, Layer, from_gguf, from_hf, to_gguf
from olivine.plan import Cache, Trace, Value


def forward(t: Trace, c: Gemma4Config) -> None:
    x = t.embed("token_embd", c.width, scale=c.width**0.5)  # [T, D]
    extra = per_layer_inputs(t, c, x) if c.per_layer else None
    divisors = "rope_freqs.weight" if c.divided_rope and t.has("rope_freqs.weight") else None
    caches: list[Cache] = []
    for i, layer in enumerate(c.blocks):
        block = t.scope(f"blk.{i}")
        if layer.donor is None:
            caches.append(t.cache(layer.kv_heads, layer.head_dim, layer.window))
        else:
            caches.append(caches[layer.donor])
        x = attention(block, c, layer, x, caches[i], divisors if layer.window is None else None)
        x = feed_forward(block, c, layer, x)
        if extra is not None:
            g = block.linear(x, "inp_gate", c.per_layer)  # [T, P]
            g = block.gate(g, block.columns(extra, i * c.per_layer, c.per_layer), "gelu_tanh")
            x = block.add(x, block.rms_norm(block.linear(g, "proj", c.width), "post_norm", c.eps))
        if block.has("layer_output_scale.weight"):
            x = block.scale(x, "layer_output_scale.weight")
    x = t.rms_norm(t.take_outputs(x), "output_norm", c.eps)
    logits = head(t, x, tied=c.tied)
    t.finish(hidden=x, logits=logits if c.softcap is None else t.softcap(logits, c.softcap))


def per_layer_inputs(t: Trace, c: Gemma4Config, x: Value) -> Value:
    """For each layer P columns of its own: of the token, and of its embedding, projected. [T, L·P]"""
    width = c.layers * c.per_layer
    token = t.embed("per_layer_token_embd", width, scale=c.per_layer**0.5, pad=0)
    context = t.linear(x, "per_layer_model_proj", width)
    # The projection is divided by √D before this norm, to which that is the same as D times the eps.
    context = t.rms_norm(context, "per_layer_proj_norm", c.eps * c.width, size=c.per_layer)
    return t.scale(t.add(context, token), factor=0.5**0.5)


def attention(t: Trace, c: Gemma4Config, layer: Layer, x: Value, cache: Cache, divisors: str | None) -> Value:
    d, rotation = layer.head_dim, layer.rope.rotation
    if divisors is not None and c.divided_rope is not None:
        rotation = c.divided_rope.rotation
    h = t.rms_norm(x, "attn_norm", c.eps)
    q = t.rms_norm(t.linear(h, "attn_q", c.heads * d), "attn_q_norm", c.eps, size=d)  # [T, H·d]
    if layer.donor is None:
        k = v = t.linear(h, "attn_k", layer.kv_heads * d)  # [T, G·d]
        if not (layer.keys_are_values or (layer.keys_are_values is None and not t.has("attn_v.weight"))):
            v = t.linear(h, "attn_v", layer.kv_heads * d)
        k = t.rope(t.rms_norm(k, "attn_k_norm", c.eps, size=d), rotation, divisors=divisors)
        t.store(cache, k, t.rms_norm(v, None, c.eps, size=d))
    q = t.rope(q, rotation, divisors=divisors)
    # The norms of queries and keys stand in for a scale. Only sliding layers see an image as a whole.
    a = t.attention(q, cache, scale=1.0, bidirectional=layer.window is not None)
    return t.add(x, t.rms_norm(t.linear(a, "attn_output", c.width), "post_attention_norm", c.eps))


def feed_forward(t: Trace, c: Gemma4Config, layer: Layer, x: Value) -> Value:
    h = t.rms_norm(x, "ffn_norm", c.eps)
    m = t.gate(t.linear(h, "ffn_gate", layer.hidden), t.linear(h, "ffn_up", layer.hidden), "gelu_tanh")
    m = t.linear(m, "ffn_down", c.width)
    if c.experts is not None:
        m = t.add(
            t.rms_norm(m, "post_ffw_norm_1", c.eps),
            t.rms_norm(mixture(t, c, x, c.experts), "post_ffw_norm_2", c.eps),
        )
    return t.add(x, t.rms_norm(m, "post_ffw_norm", c.eps))


def mixture(t: Trace, c: Gemma4Config, x: Value, e: Experts) -> Value:
    """The experts beside the dense branch. Router and experts both read x itself, each by its own norm."""
    r = t.scale(t.rms_norm(x, None, c.eps), "ffn_gate_inp.scale", size=c.width, factor=c.width**-0.5)
    router = t.linear(r, "ffn_gate_inp", e.count)  # [T, E]
    h = t.rms_norm(x, "pre_ffw_norm_2", c.eps)
    return t.moe(
        h, router, width=e.hidden, top_k=e.used, normalize=True, activation="gelu_tanh",
        scale="ffn_down_exps.scale",
    )  # fmt: skip


ARCHITECTURE = Architecture(
    name="Gemma 4",
    from_hf=from_hf,
    from_gguf=from_gguf,
    to_gguf=to_gguf,
    forward=forward,
    biases=lambda config: attention_biases(config.section("text_config") or config),
    top_names={
        "embed_tokens_per_layer": "per_layer_token_embd",
        "per_layer_model_projection": "per_layer_model_proj",
        "per_layer_projection_norm": "per_layer_proj_norm",
    },
    block_names={
        "post_attention_layernorm": "post_attention_norm",
        "pre_feedforward_layernorm": "ffn_norm",
        "pre_feedforward_layernorm_2": "pre_ffw_norm_2",
        "post_feedforward_layernorm": "post_ffw_norm",
        "post_feedforward_layernorm_1": "post_ffw_norm_1",
        "post_feedforward_layernorm_2": "post_ffw_norm_2",
        "per_layer_input_gate": "inp_gate",
        "per_layer_projection": "proj",
        "post_per_layer_input_norm": "post_norm",
        "layer_scalar": "layer_output_scale.weight",
        "router.proj": "ffn_gate_inp",
        "router.scale": "ffn_gate_inp.scale",
        "router.per_expert_scale": "ffn_down_exps.scale",
    },
    ignored=(
        "model.vision_tower.",
        "model.audio_tower.",
        "model.vision_embedder.",
        "model.embed_vision.",
        "model.embed_audio.",
    ),
    spare=("attn_k", "attn_v", "attn_k_norm"),  # of layers that read another's
    # The models with per-layer embeddings (E2B, E4B) are published with another template than the large ones.
    template_variables=lambda config: {"small": bool(config.per_layer)},
)
