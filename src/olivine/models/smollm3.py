"""SmolLM3: the Llama block, and every fourth layer without a rotary embedding."""

from __future__ import annotations

from dataclasses import dataclass

from olivine.models import decoder
from olivine.models.architecture import Architecture, GgufForm
from olivine.models.decoder import DecoderConfig, attend, head, mlp, qkv
from olivine.models.fields import Fields
from olivine.plan import Trace

_EVERY = 4  # which layers are not rotated, where a file does not say; GGUF files never do


@dataclass(frozen=True)
class SmolLM3Config(DecoderConfig):
    rotated: tuple[bool, ...]  # one a layer


def from_hf(config: Fields) -> SmolLM3Config:
    layers = config.integer("num_hidden_layers", high=1024)
    every = config.integer("no_rope_layer_interval", _EVERY, high=1024)
    # Despite its name, 1 is for the layers that have a rotary embedding.
    rotated = config.integers("no_rope_layers") or tuple((i + 1) % every for i in range(layers))
    if len(rotated) < layers:
        raise config.refuse("no_rope_layers", f"must have an entry for each of {layers} layers")
    window = decoder.window_from_hf(config) if config.flag("use_sliding_window", False) else None
    unrotated = [None if r else window for r in rotated[:layers]]
    windows = decoder.windows_from_hf(config, window, unrotated)
    tied = config.flag("tie_word_embeddings", True)
    common = decoder.from_hf(config, theta=2e6, windows=windows, tied=tied)
    return SmolLM3Config(**vars(common), rotated=tuple(map(bool, rotated[:layers])))


def from_gguf(meta: Fields) -> SmolLM3Config:
    common = decoder.from_gguf(meta, interleaved=True)
    return SmolLM3Config(**vars(common), rotated=tuple((i + 1) % _EVERY != 0 for i in range(common.layers)))


def to_gguf(c: SmolLM3Config) -> GgufForm:
    return decoder.to_gguf("smollm3", c, {"rope.dimension_count": c.head_dim}, interleaved=True)


def forward(t: Trace, c: SmolLM3Config) -> None:
    x = t.embed("token_embd", c.width)  # [T, D]
    for i in range(c.layers):
        layer, rope = t.scope(f"blk.{i}"), c.rope if c.rotated[i] else None
        q, k, v = qkv(layer, c, layer.rms_norm(x, "attn_norm", c.eps))
        x = t.add(x, attend(layer, c, q, k, v, rope=rope, window=c.windows[i]))
        x = t.add(x, mlp(layer, c, layer.rms_norm(x, "ffn_norm", c.eps)))
    x = t.rms_norm(t.take_outputs(x), "output_norm", c.eps)
    t.finish(hidden=x, logits=head(t, x, tied=c.tied))


ARCHITECTURE = Architecture(
    name="SmolLM3",
    from_hf=from_hf,
    from_gguf=from_gguf,
    to_gguf=to_gguf,
    forward=forward,
)
