"""The Llama family: Llama 2 and 3, SmolLM2, Mistral, TinyLlama and everything else that uses this block."""

from __future__ import annotations

from olivine.models import decoder
from olivine.models.architecture import Architecture, GgufForm, biases
from olivine.models.decoder import DecoderConfig, attend, head, mlp, qkv
from olivine.models.fields import Fields
from olivine.plan import Trace, Value

MISTRAL_WINDOW = 4096  # where config.json has no `sliding_window`


def from_hf(config: Fields) -> DecoderConfig:
    # Mistral's layers slide unless a file has null; Llama's never do, whatever a file has.
    is_mistral = config.text("model_type", "llama") == "mistral"
    window = decoder.window_from_hf(config, MISTRAL_WINDOW) if is_mistral else None
    layers = config.integer("num_hidden_layers", high=1024)
    return decoder.from_hf(config, windows=(window,) * layers)


def from_gguf(meta: Fields) -> DecoderConfig:
    if meta.integer("expert_count", 0, low=0) > 0:
        raise meta.refuse("expert_count", "is not supported for llama; known mixtures: qwen3moe")
    return decoder.from_gguf(meta, interleaved=True)


def to_gguf(c: DecoderConfig) -> GgufForm:
    keys = {"rope.dimension_count": c.head_dim}
    return decoder.to_gguf("llama", c, keys, interleaved=True, has_divisors=True)


def forward(t: Trace, c: DecoderConfig, divisors: str | None = None) -> None:
    divisors = divisors or decoder.rope_divisors(t)
    x = t.embed("token_embd", c.width)  # [T, D]
    for i, window in enumerate(c.windows):
        x = block(t.scope(f"blk.{i}"), c, x, window, divisors)
    x = t.rms_norm(t.take_outputs(x), "output_norm", c.eps)
    t.finish(hidden=x, logits=head(t, x, tied=c.tied))


def block(t: Trace, c: DecoderConfig, x: Value, window: int | None, divisors: str | None) -> Value:
    q, k, v = qkv(t, c, t.rms_norm(x, "attn_norm", c.eps))
    x = t.add(x, attend(t, c, q, k, v, rope=c.rope, window=window, divisors=divisors))
    return t.add(x, mlp(t, c, t.rms_norm(x, "ffn_norm", c.eps)))


ARCHITECTURE = Architecture(
    name="Llama",
    from_hf=from_hf,
    from_gguf=from_gguf,
    to_gguf=to_gguf,
    forward=forward,
    # Mistral's code has none.
    biases=lambda config: () if config.text("model_type", "llama") == "mistral" else biases(config),
)
