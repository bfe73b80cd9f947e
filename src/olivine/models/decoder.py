"""What plain decoders share: their configuration, read and written once, and the blocks of their forward.

A model file makes its configuration of the common one (`MyConfig(**vars(decoder.from_hf(config)), mine=…)`),
and writes its forward with the functions below and its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from olivine.models import rope
from olivine.models.architecture import GgufForm
from olivine.models.fields import LONGEST_HEAD, LONGEST_WINDOW, Fields
from olivine.models.rope import Rope
from olivine.plan import Activation, Trace, Value


@dataclass(frozen=True)
class DecoderConfig:
    layers: int
    width: int  # D
    hidden: int  # F, the width inside the MLP
    heads: int  # H
    kv_heads: int  # G
    head_dim: int  # d
    eps: float
    activation: Activation
    rope: Rope
    windows: tuple[int | None, ...]  # one a layer; None: all that went before
    context: int
    tied: bool  # the embedding is the head


# ---- the configuration


def from_hf(
    config: Fields, *, theta: float = 10_000.0, layer_type: str = "", **otherwise: Any
) -> DecoderConfig:
    """From config.json. `otherwise` has the fields that a model does not read from the common keys.

    `theta` is the rotary base where the file has none, and `layer_type` the layers that `rope` is about.
    """
    layers = config.integer("num_hidden_layers", high=1024)
    heads, kv_heads, head_dim = _heads(config, *_HF_HEADS)
    common: dict[str, Any] = {
        "layers": layers,
        "width": config.integer("hidden_size"),
        "hidden": config.integer("intermediate_size"),
        "heads": heads,
        "kv_heads": kv_heads,
        "head_dim": head_dim,
        "eps": config.number("rms_norm_eps", high=1.0),
        "windows": (None,) * layers,
        "context": config.integer("max_position_embeddings", high=1 << 32),
        "tied": config.flag("tie_word_embeddings", False),
    }
    if "activation" not in otherwise:
        common["activation"] = config.choice("hidden_act", {"silu": "silu", "swish": "silu"}, "silu")
    if "rope" not in otherwise:
        common["rope"] = rope.from_hf(config, head_dim, theta=theta, layer_type=layer_type)
    return DecoderConfig(**{**common, **otherwise})


def from_gguf(meta: Fields, *, interleaved: bool = False, **otherwise: Any) -> DecoderConfig:
    """From GGUF metadata. `interleaved`: the rows of Q and K lie in the order of interleaved pairs."""
    layers = meta.integer("block_count", high=1024)
    heads, kv_heads, head_dim = _heads(meta, *_GGUF_HEADS)
    if meta.integer("attention.value_length", head_dim) != head_dim:
        raise meta.refuse("attention.value_length", f"must equal the key length, {head_dim}")
    common: dict[str, Any] = {
        "layers": layers,
        "width": meta.integer("embedding_length"),
        "hidden": meta.integer("feed_forward_length"),
        "heads": heads,
        "kv_heads": kv_heads,
        "head_dim": head_dim,
        "eps": meta.number("attention.layer_norm_rms_epsilon", high=1.0),
        "activation": "silu",
        "windows": (None,) * layers,
        "context": meta.integer("context_length", high=1 << 32),
        "tied": True,  # where there is no other head
    }
    if "rope" not in otherwise:
        if meta.integer("rope.dimension_count", head_dim) != head_dim:
            raise meta.refuse("rope.dimension_count", f"must be the head size, {head_dim}")
        common["rope"] = rope.from_gguf(meta, head_dim, interleaved=interleaved)
    return DecoderConfig(**{**common, **otherwise})


def to_gguf(
    architecture: str,
    c: DecoderConfig,
    keys: Mapping[str, Any] | None = None,
    *,
    has_windows: bool = False,
    interleaved: bool = False,
    has_divisors: bool = False,
    **read_back: Any,
) -> GgufForm:
    """The common keys and a model's own; `read_back` has fields that `from_gguf` makes otherwise of them.

    `has_windows`: the model's own keys tell the windows. `interleaved`: as in `from_gguf`. `has_divisors`:
    the model applies `rope_freqs.weight`, so scaling that GGUF has no keys for can be written as that.
    """
    warnings: tuple[str, ...] = ()
    if not has_windows and (windows := [w for w in c.windows if w is not None]):
        # Within its window such a model is the same as without.
        c = replace(c, windows=(None,) * c.layers, context=min(c.context, *windows))
        told = f"GGUF cannot say that this model looks {min(windows)} tokens back: its context is cut to that"
        warnings = (told,)
    common = {
        "context_length": c.context,
        "embedding_length": c.width,
        "block_count": c.layers,
        "feed_forward_length": c.hidden,
        "attention.head_count": c.heads,
        "attention.head_count_kv": c.kv_heads,
        "attention.key_length": c.head_dim,
        "attention.value_length": c.head_dim,
        "attention.layer_norm_rms_epsilon": c.eps,
        **c.rope.to_gguf(),
    }
    vectors = {}
    if has_divisors and isinstance(c.rope, rope.Llama3):
        vectors = {"rope_freqs.weight": c.rope.divisors}
        read_back = {"rope": Rope(c.head_dim, c.rope.theta), **read_back}
    expected = replace(c, **{"tied": True, **read_back})
    if interleaved:
        expected = replace(expected, rope=replace(expected.rope, interleaved=True))
    return GgufForm(
        architecture,
        {**common, **(keys or {})},
        expected,
        warnings,
        paired_heads=c.head_dim if interleaved else 0,
        vectors=vectors,
    )


# Where query heads, KV heads, head size and model width stand in config.json and in GGUF metadata.
_HF_HEADS = ("num_attention_heads", "num_key_value_heads", "head_dim", "hidden_size")
_GGUF_HEADS = ("attention.head_count", "attention.head_count_kv", "attention.key_length", "embedding_length")


def _heads(
    fields: Fields, heads_key: str, kv_key: str, size_key: str, width_key: str
) -> tuple[int, int, int]:
    heads = fields.integer(heads_key, high=1 << 14)
    kv_heads = fields.integer(kv_key, heads, high=1 << 14)
    if heads % kv_heads:
        raise fields.refuse(kv_key, f"must divide {heads_key}, {heads}")
    if not fields.has(size_key) and fields.integer(width_key) % heads:
        raise fields.refuse(heads_key, f"must divide {width_key} where there is no {size_key}")
    head_dim = fields.integer(size_key, fields.integer(width_key) // heads, high=LONGEST_HEAD)
    if head_dim % 2:
        raise fields.refuse(size_key, "must be even")
    return heads, kv_heads, head_dim


# ---- sliding windows


def window_from_hf(config: Fields, missing: int | None = None) -> int | None:
    """`sliding_window`: None where it is null, and `missing` where there is no such key."""
    if not config.has("sliding_window"):
        return None if config.is_null("sliding_window") else missing
    return config.integer("sliding_window", high=LONGEST_WINDOW)


def windows_from_hf(
    config: Fields, window: int | None, without: Sequence[int | None]
) -> tuple[int | None, ...]:
    """The window of each layer by `layer_types`; `without` has the windows where there is no such key."""
    kinds = config.items("layer_types", len(without))
    if kinds is None:
        return tuple(without)
    if not all(kind in ("sliding_attention", "full_attention") for kind in kinds):
        raise config.refuse("layer_types", "must be a list of sliding_attention and full_attention")
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


def windows_from_gguf(meta: Fields, period: int) -> tuple[int | None, ...]:
    """By a pattern of layers, or a period, that the file has, or else by this period."""
    layers = meta.integer("block_count", high=1024)
    window = meta.integer("attention.sliding_window", 0, low=0, high=LONGEST_WINDOW) or None
    if meta.is_list("attention.sliding_window_pattern"):
        slides = meta.items("attention.sliding_window_pattern", layers) or ()
        return tuple(window if sliding else None for sliding in slides)
    period = meta.integer("attention.sliding_window_pattern", period, high=1024)
    return windows_by_period(window, layers, period)


def windows_by_period(window: int | None, layers: int, period: int) -> tuple[int | None, ...]:
    """Every `period`-th layer is a full one, and the others slide."""
    return tuple(None if (i + 1) % period == 0 else window for i in range(layers))


def window_pattern(windows: Sequence[int | None]) -> npt.NDArray[np.bool_]:
    """`attention.sliding_window_pattern`: which layers slide."""
    return np.array([window is not None for window in windows], np.bool_)


# ---- the forward


def qkv(t: Trace, c: DecoderConfig, h: Value) -> tuple[Value, Value, Value]:
    """Queries [T, H·d], keys and values [T, G·d]."""
    return (
        t.linear(h, "attn_q", c.heads * c.head_dim),
        t.linear(h, "attn_k", c.kv_heads * c.head_dim),
        t.linear(h, "attn_v", c.kv_heads * c.head_dim),
    )


def attend(
    t: Trace,
    c: DecoderConfig,
    q: Value,
    k: Value,
    v: Value,
    *,
    rope: Rope | None,
    window: int | None = None,
    scale: float | None = None,
    divisors: str | None = None,
    bidirectional: bool = False,
) -> Value:
    """Rotates, stores the keys and values, attends and projects. Without a `rope` nothing is rotated; the
    scale is 1/√d unless given. `bidirectional`: soft tokens of an image see the whole of it. [T, D]"""
    cache = t.cache(c.kv_heads, c.head_dim, window)
    if rope is not None:
        k = t.rope(k, rope.rotation, divisors=divisors)
    t.store(cache, k, v)
    if rope is not None:
        q = t.rope(q, rope.rotation, divisors=divisors)
    scale = c.head_dim**-0.5 if scale is None else scale
    a = t.attention(q, cache, scale=scale, bidirectional=bidirectional)
    return t.linear(a, "attn_output", c.width)


def rope_divisors(t: Trace) -> str | None:
    """The tensor that divides the frequencies, where a file has one; asked outside of the layers."""
    return "rope_freqs.weight" if t.has("rope_freqs.weight") else None


def mlp(t: Trace, c: DecoderConfig, h: Value) -> Value:
    gate, up = t.linear(h, "ffn_gate", c.hidden), t.linear(h, "ffn_up", c.hidden)  # [T, F]
    return t.linear(t.gate(gate, up, c.activation), "ffn_down", c.width)


def head(t: Trace, x: Value, *, tied: bool) -> Value:
    """Logits by the model's own head, or by the embedding where there is none and the model ties them."""
    name = "token_embd" if tied and not t.has("output.weight") else "output"
    return t.linear(x, name, t.rows_of(f"{name}.weight"))
