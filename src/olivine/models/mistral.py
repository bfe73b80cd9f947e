"""Mistral Small 3.x, Devstral and Ministral 3, the text models: the Llama block, whose queries are scaled by
their position in long contexts."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from olivine.models import decoder, llama, names, rope
from olivine.models.architecture import Architecture, GgufForm
from olivine.models.decoder import DecoderConfig, attend, head, mlp, qkv
from olivine.models.fields import Fields
from olivine.models.rope import Rope, Yarn, yarn_magnitude
from olivine.plan import Trace

_LOG_MULTIPLIER = "rope.scaling.yarn_log_multiplier"
_ORIGINAL = "rope.scaling.original_context_length"


@dataclass(frozen=True)
class MistralConfig(DecoderConfig):
    beta: float  # queries at position p are multiplied by 1 + beta · ln(1 + ⌊p / original⌋)
    original: int  # 0 where nothing is scaled


def from_hf(config: Fields) -> MistralConfig:
    text = config.section("text_config") or config
    # Ministral 3 scales queries, and does not slide unless a file says so; Mistral slides unless it has null.
    is_ministral = text.choice("model_type", {"mistral": False, "ministral3": True}, "mistral")
    if is_ministral and not (text.has("rope_parameters") or text.has("rope_scaling")):
        raise text.refuse("rope_parameters", "must be there: Ministral 3 is scaled")
    window = decoder.window_from_hf(text, None if is_ministral else llama.MISTRAL_WINDOW)
    layers = text.integer("num_hidden_layers", high=1024)
    # Whichever of the two says so: a head of its own counts in any case.
    tied = config.flag("tie_word_embeddings", text is not config) or text.flag("tie_word_embeddings", False)
    common = decoder.from_hf(text, windows=(window,) * layers, tied=tied)
    scaling = rope.parameters(text)
    beta = scaling.number("llama_4_scaling_beta", 0.0, low=-1e-9) if is_ministral else 0.0
    original = scaling.integer("original_max_position_embeddings", common.context, high=1 << 32)
    return MistralConfig(**vars(common), beta=beta, original=original if beta else 0)


def from_gguf(meta: Fields) -> MistralConfig:
    common = decoder.from_gguf(meta, interleaved=True)
    multiplier = meta.number(_LOG_MULTIPLIER, 0.0, low=-1e-9)
    if isinstance(common.rope, Yarn) and multiplier:
        factor = common.rope.factor
        magnitude = yarn_magnitude(factor) / yarn_magnitude(factor, multiplier)
        common = replace(common, rope=replace(common.rope, magnitude=magnitude))
    beta = meta.number("attention.temperature_scale", 0.0, low=-1e-9)
    original = meta.integer(_ORIGINAL, high=1 << 32) if beta else 0
    return MistralConfig(**vars(common), beta=beta, original=original)


def to_gguf(c: MistralConfig) -> GgufForm:
    keys: dict[str, Any] = {"rope.dimension_count": c.head_dim, **_magnitude(c.rope)}
    if c.beta:
        keys |= {"attention.temperature_scale": c.beta, _ORIGINAL: c.original}
    return decoder.to_gguf("mistral3", c, keys, interleaved=True)


def _magnitude(scaled: Rope) -> dict[str, float]:
    """llama.cpp divides the usual magnitude by that of this multiplier."""
    if not isinstance(scaled, Yarn) or scaled.factor <= 1:
        return {}
    multiplier = (yarn_magnitude(scaled.factor) / scaled.magnitude - 1) / (0.1 * math.log(scaled.factor))
    return {_LOG_MULTIPLIER: multiplier} if multiplier > 1e-6 else {}


def forward(t: Trace, c: MistralConfig) -> None:
    x = t.embed("token_embd", c.width)  # [T, D]
    for i, window in enumerate(c.windows):
        layer = t.scope(f"blk.{i}")
        q, k, v = qkv(layer, c, layer.rms_norm(x, "attn_norm", c.eps))
        if c.beta and t.context > c.original:  # the factor of all positions before is 1
            q = t.position_scale(q, beta=c.beta, length=c.original)
        x = t.add(x, attend(layer, c, q, k, v, rope=c.rope, window=window))
        x = t.add(x, mlp(layer, c, layer.rms_norm(x, "ffn_norm", c.eps)))
    x = t.rms_norm(t.take_outputs(x), "output_norm", c.eps)
    t.finish(hidden=x, logits=head(t, x, tied=c.tied))


ARCHITECTURE = Architecture(
    name="Mistral",
    from_hf=from_hf,
    from_gguf=from_gguf,
    to_gguf=to_gguf,
    forward=forward,
    biases=lambda config: (),
    ignored=names.VISION,
)
