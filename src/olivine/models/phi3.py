"""Phi-3, Phi-3.5, Phi-4 and Phi-4-mini: the Llama block with fused projections, partial rotary embeddings and
LongRoPE, with one set of factors for contexts up to the original one and another for longer ones. Keys stay
in a cache as they were rotated, so a plan has one set, by the longest sequence that it is for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from olivine.models import decoder, llama, rope
from olivine.models.architecture import Architecture, GgufForm
from olivine.models.decoder import DecoderConfig
from olivine.models.fields import LONGEST_WINDOW, Fields
from olivine.models.rope import LongRope
from olivine.plan import Trace

_TENSORS = ("rope_factors_short", "rope_factors_long")


@dataclass(frozen=True)
class Phi3Config(DecoderConfig):
    long_rope: LongRope  # instead of `rope`, for contexts of more than `original` tokens
    original: int


def from_hf(config: Fields) -> Phi3Config:
    common = _windowed(decoder.from_hf(config, rope=None), decoder.window_from_hf(config))
    told = rope.parameters(config)
    here = told if told.has("partial_rotary_factor") else config
    rotated = int(common.head_dim * here.number("partial_rotary_factor", 1.0, high=1.0))
    if rotated % 2 or not rotated:
        raise here.refuse("partial_rotary_factor", f"makes {rotated} columns of a head: they must be pairs")
    plain = LongRope(common.head_dim, told.number("rope_theta"), unrotated=common.head_dim - rotated)
    # The published code reads this one key, and not what `rope_parameters` may have by the same name.
    original = config.integer("original_max_position_embeddings", 4096, low=2, high=1 << 32)
    short = long = plain
    if told.choice("rope_type", {"default": False, "longrope": True, "su": True, "yarn": True}):  # all one
        factor = told.number("factor", common.context / original)
        magnitude = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
        scaled = replace(plain, magnitude=told.number("attention_factor", magnitude))
        short = replace(scaled, factors=told.numbers("short_factor", rotated // 2))
        long = replace(scaled, factors=told.numbers("long_factor", rotated // 2))
    return Phi3Config(**{**vars(common), "rope": short}, long_rope=long, original=original)


def from_gguf(meta: Fields) -> Phi3Config:
    """The factors are tensors, where there are some."""
    window = meta.integer("attention.sliding_window", 0, low=0, high=LONGEST_WINDOW) or None
    common = _windowed(decoder.from_gguf(meta, rope=None), window)
    rotated = meta.integer("rope.dimension_count", common.head_dim, low=2, high=common.head_dim)
    if rotated % 2:
        raise meta.refuse("rope.dimension_count", "must be even")
    theta, magnitude = meta.number("rope.freq_base", 10_000.0), meta.number("rope.scaling.attn_factor", 1.0)
    plain = LongRope(common.head_dim, theta, (), magnitude, unrotated=common.head_dim - rotated)
    original = meta.integer("rope.scaling.original_context_length", common.context, high=1 << 32)
    return Phi3Config(**{**vars(common), "rope": plain}, long_rope=plain, original=original)


def _windowed(c: DecoderConfig, window: int | None) -> DecoderConfig:
    """A window as long as the context is none."""
    return replace(c, windows=(window if window and window < c.context else None,) * c.layers)


def to_gguf(c: Phi3Config) -> GgufForm:
    assert isinstance(c.rope, LongRope)
    keys: dict[str, float] = {
        "rope.dimension_count": c.head_dim - c.rope.unrotated,
        "rope.scaling.original_context_length": c.original,
        "attention.sliding_window": c.windows[0] or 0,
    }
    vectors = {}
    if c.rope.factors:
        keys["rope.scaling.attn_factor"] = c.rope.magnitude
        short, long = (f"{name}.weight" for name in _TENSORS)
        vectors = {short: c.rope.factors, long: c.long_rope.factors}
    plain = replace(c.rope, factors=())
    form = decoder.to_gguf("phi3", c, keys, has_windows=True, rope=plain, long_rope=plain)
    return replace(form, fused=True, vectors=vectors)


def forward(t: Trace, c: Phi3Config) -> None:
    long = t.context > c.original
    name = f"{_TENSORS[long]}.weight"
    llama.forward(t, replace(c, rope=c.long_rope if long else c.rope), name if t.has(name) else None)


ARCHITECTURE = Architecture(
    name="Phi",
    from_hf=from_hf,
    from_gguf=from_gguf,
    to_gguf=to_gguf,
    forward=forward,
    biases=lambda config: (),
    block_names={"self_attn.qkv_proj": "attn_qkv", "mlp.gate_up_proj": "ffn_up"},
    spare=_TENSORS,
    fused=True,
)
