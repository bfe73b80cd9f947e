"""EXAONE 4.0: norms behind the branches and of heads of Q and K; hybrid sizes do not rotate global layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from olivine.models import decoder
from olivine.models.architecture import Architecture, GgufForm
from olivine.models.decoder import DecoderConfig, attend, head, mlp, qkv
from olivine.models.fields import LONGEST_WINDOW, Fields
from olivine.plan import Trace, Value

# Where a file does not say otherwise, layers slide, and every fourth is a global one.
_WINDOW, _PERIOD = 4096, 4


@dataclass(frozen=True)
class Exaone4Config(DecoderConfig):
    window: int | None  # of local layers; None: all layers are global, and rotated


def from_hf(config: Fields) -> Exaone4Config:
    window = decoder.window_from_hf(config, _WINDOW)
    if window is None:
        return Exaone4Config(**vars(decoder.from_hf(config)), window=None)
    # The pattern may be a string (LLLG), but then `layer_types` says the same.
    told = config.has("layer_types")
    period = _PERIOD if told else config.integer("sliding_window_pattern", _PERIOD, high=1024)
    usual = decoder.windows_by_period(window, config.integer("num_hidden_layers", high=1024), period)
    c = decoder.from_hf(config, windows=decoder.windows_from_hf(config, window, usual))
    return Exaone4Config(**vars(c), window=window)


def from_gguf(meta: Fields) -> Exaone4Config:
    if meta.integer("nextn_predict_layers", 0, low=0):
        raise meta.refuse("nextn_predict_layers", "is not supported: layers that predict further tokens")
    c = decoder.from_gguf(meta, windows=decoder.windows_from_gguf(meta, _PERIOD))
    window = meta.integer("attention.sliding_window", 0, low=0, high=LONGEST_WINDOW) or None
    return Exaone4Config(**vars(c), window=window)


def to_gguf(c: Exaone4Config) -> GgufForm:
    keys: dict[str, Any] = {}
    if c.window is not None:
        keys["attention.sliding_window"] = c.window
        keys["attention.sliding_window_pattern"] = decoder.window_pattern(c.windows)
    return decoder.to_gguf("exaone4", c, keys, has_windows=True, has_divisors=True)


def forward(t: Trace, c: Exaone4Config) -> None:
    divisors = decoder.rope_divisors(t)
    x = t.embed("token_embd", c.width)  # [T, D]
    for i, window in enumerate(c.windows):
        x = block(t.scope(f"blk.{i}"), c, x, window, divisors)
    x = t.rms_norm(t.take_outputs(x), "output_norm", c.eps)
    t.finish(hidden=x, logits=head(t, x, tied=c.tied))


def block(t: Trace, c: Exaone4Config, x: Value, window: int | None, divisors: str | None) -> Value:
    q, k, v = qkv(t, c, x)
    q = t.rms_norm(q, "attn_q_norm", c.eps, size=c.head_dim)
    k = t.rms_norm(k, "attn_k_norm", c.eps, size=c.head_dim)
    rotary = None if c.window is not None and window is None else c.rope
    a = attend(t, c, q, k, v, rope=rotary, window=window, divisors=divisors)
    x = t.add(x, t.rms_norm(a, "post_attention_norm", c.eps))
    return t.add(x, t.rms_norm(mlp(t, c, x), "post_ffw_norm", c.eps))


ARCHITECTURE = Architecture(
    name="EXAONE 4",
    from_hf=from_hf,
    from_gguf=from_gguf,
    to_gguf=to_gguf,
    forward=forward,
    biases=lambda config: (),
    block_names={
        "post_attention_layernorm": "post_attention_norm",
        "post_feedforward_layernorm": "post_ffw_norm",
    },
)
