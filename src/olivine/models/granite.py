"""Granite 3 and dense Granite 4: Llama with multipliers for embedding, attention, branches and logits."""

from __future__ import annotations

from dataclasses import dataclass

from olivine.models import decoder
from olivine.models.architecture import Architecture, GgufForm
from olivine.models.decoder import DecoderConfig, attend, head, mlp, qkv
from olivine.models.fields import Fields
from olivine.plan import Trace, Value


@dataclass(frozen=True)
class GraniteConfig(DecoderConfig):
    rotates: bool  # False: no positional embedding
    embedding_scale: float
    attention_scale: float
    residual_scale: float  # of what a branch adds
    logit_scale: float  # what logits are divided by


def from_hf(config: Fields) -> GraniteConfig:
    is_hybrid = config.text("model_type") == "granitemoehybrid"
    c = decoder.from_hf(config, hidden=_dense_width(config)) if is_hybrid else decoder.from_hf(config)
    return GraniteConfig(
        **vars(c),
        rotates=not is_hybrid or config.text("position_embedding_type", "nope") == "rope",
        embedding_scale=config.number("embedding_multiplier", 1.0),
        attention_scale=config.number("attention_multiplier", 1.0),
        residual_scale=config.number("residual_multiplier", 1.0),
        logit_scale=config.number("logits_scaling", 1.0),
    )


def _dense_width(config: Fields) -> int:
    """The width inside the MLP of a Granite 4 that has neither experts nor state-space layers."""
    if config.integer("num_local_experts", 8, low=0) > 0:
        raise config.refuse("num_local_experts", "is not supported: only the dense sizes of Granite 4 run")
    key = "layer_types" if config.has("layer_types") else "layers_block_type"
    kinds = config.items(key, config.integer("num_hidden_layers", high=1024)) or ("mamba",)
    if not all(kind in ("attention", "full_attention") for kind in kinds):
        raise config.refuse(key, "must be attention throughout: state-space layers are not supported")
    return config.integer("shared_intermediate_size")


def from_gguf(meta: Fields) -> GraniteConfig:
    c = decoder.from_gguf(meta, interleaved=True)
    return GraniteConfig(
        **vars(c),
        rotates=meta.flag("rope.scaling.finetuned", True),  # what llama.cpp's converter says it by
        embedding_scale=meta.number("embedding_scale", 1.0),
        attention_scale=meta.number("attention.scale", c.head_dim**-0.5),
        residual_scale=meta.number("residual_scale", 1.0),
        logit_scale=meta.number("logit_scale"),
    )


def to_gguf(c: GraniteConfig) -> GgufForm:
    keys = {
        "rope.dimension_count": c.head_dim,
        "rope.scaling.finetuned": c.rotates,
        "embedding_scale": c.embedding_scale,
        "attention.scale": c.attention_scale,
        "residual_scale": c.residual_scale,
        "logit_scale": c.logit_scale,
    }
    return decoder.to_gguf("granite", c, keys, interleaved=True, has_divisors=True)


def forward(t: Trace, c: GraniteConfig) -> None:
    divisors = decoder.rope_divisors(t)
    x = t.embed("token_embd", c.width, scale=c.embedding_scale)  # [T, D]
    for i in range(c.layers):
        x = block(t.scope(f"blk.{i}"), c, x, divisors)
    x = t.rms_norm(t.take_outputs(x), "output_norm", c.eps)
    t.finish(hidden=x, logits=t.scale(head(t, x, tied=c.tied), factor=1 / c.logit_scale))


def block(t: Trace, c: GraniteConfig, x: Value, divisors: str | None) -> Value:
    q, k, v = qkv(t, c, t.rms_norm(x, "attn_norm", c.eps))
    rotary = c.rope if c.rotates else None
    a = attend(t, c, q, k, v, rope=rotary, scale=c.attention_scale, divisors=divisors)
    x = t.add(x, t.scale(a, factor=c.residual_scale))
    m = mlp(t, c, t.rms_norm(x, "ffn_norm", c.eps))
    return t.add(x, t.scale(m, factor=c.residual_scale))


ARCHITECTURE = Architecture(
    name="Granite",
    from_hf=from_hf,
    from_gguf=from_gguf,
    to_gguf=to_gguf,
    forward=forward,
    block_names={"shared_mlp.input_linear": ("ffn_gate", "ffn_up"), "shared_mlp.output_linear": "ffn_down"},
)
