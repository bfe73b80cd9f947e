"""What the files of Gemma 4 say of the text model: config.json in its older and newer spelling, and GGUF."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from olivine.errors import ModelError
from olivine.models import decoder, rope
from olivine.models.architecture import GgufForm
from olivine.models.fields import LONGEST_HEAD, LONGEST_WINDOW, Fields
from olivine.models.rope import Proportional, Rope

_ROTARY_SHARE = 0.25  # of a head's pairs, on full layers
# What config.json leaves out.
_DEFAULTS = {
    "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "hidden_size": 2304,
    "intermediate_size": 9216, "num_hidden_layers": 30, "sliding_window": 512, "rms_norm_eps": 1e-6,
    "max_position_embeddings": 131072, "hidden_activation": "gelu_pytorch_tanh",
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        "full_attention": {
            "rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": _ROTARY_SHARE
        },
    },
}  # fmt: skip
_BIDIRECTIONAL = "attention.bidirectional_images"  # our own key, where a model is unlike the published ones
_UNIFIED_DEFAULTS = {"sliding_window": 1024, "max_position_embeddings": 262144}


@dataclass(frozen=True)
class Layer:
    window: int | None  # None: a full layer
    kv_heads: int  # G
    head_dim: int  # d
    hidden: int  # F, the width inside the MLP
    rope: Rope
    donor: int | None  # the layer whose keys and values this one reads, having none of its own
    keys_are_values: bool | None  # one projection makes both; None: where the file has no other


@dataclass(frozen=True)
class Experts:
    count: int
    used: int
    hidden: int  # the width inside one expert


@dataclass(frozen=True)
class Gemma4Config:
    width: int  # D
    heads: int  # H
    eps: float
    blocks: tuple[Layer, ...]
    divided_rope: Rope | None  # of full layers, where a GGUF file has divisors for it
    experts: Experts | None
    per_layer: int  # P, the width of a layer's own embedding; 0: there are none
    softcap: float | None
    context: int
    tied: bool
    bidirectional_images: bool  # the tokens of an image see the whole of it, on sliding layers

    @property
    def layers(self) -> int:
        return len(self.blocks)

    def __post_init__(self) -> None:
        for i, layer in enumerate(self.blocks):
            where = f"the model's configuration of layer {i} has"
            if self.heads % layer.kv_heads:
                raise ModelError(f"{where} {layer.kv_heads} KV heads, which must divide {self.heads} heads")
            if layer.head_dim % 2:
                raise ModelError(f"{where} heads of {layer.head_dim}, which must be even")
            donor = layer if layer.donor is None else self.blocks[layer.donor]
            if (donor.kv_heads, donor.head_dim) != (layer.kv_heads, layer.head_dim):
                raise ModelError(f"{where} other heads than layer {layer.donor}, whose keys it shares")


def from_hf(config: Fields) -> Gemma4Config:
    told = config.section("text_config") or config
    is_unified = "unified" in config.text("model_type", "")
    text = told.with_defaults({**_DEFAULTS, **_UNIFIED_DEFAULTS} if is_unified else _DEFAULTS)
    text.choice("hidden_activation", {"gelu_pytorch_tanh": "gelu_tanh"})
    bidirectional = is_unified and not told.is_null("use_bidirectional_attention")
    if text.has("use_bidirectional_attention"):
        bidirectional = text.choice("use_bidirectional_attention", {"vision": True})
    windows = _windows_from_hf(text)
    donors = _donors(text, "num_kv_shared_layers", windows)
    k_eq_v = text.flag("attention_k_eq_v", False)
    shapes = _shapes_from_hf(text, windows, k_eq_v)
    hidden, wide = text.integer("intermediate_size"), text.flag("use_double_wide_mlp", False)
    experts = None
    if text.flag("enable_moe_block", False):
        count = text.integer("num_experts", high=1 << 14)
        used = text.integer("top_k_experts", high=count)
        experts = Experts(count, used, text.integer("moe_intermediate_size"))
    no_per_layer = is_unified or told.is_null("hidden_size_per_layer_input")
    return Gemma4Config(
        width=text.integer("hidden_size"),
        heads=text.integer("num_attention_heads", high=1 << 14),
        eps=text.number("rms_norm_eps", high=1.0),
        blocks=tuple(
            Layer(
                window=window,
                kv_heads=kv_heads,
                head_dim=head_dim,
                hidden=2 * hidden if wide and donor is not None else hidden,
                rope=rope.from_hf(text, head_dim, layer_type=_kind(window)),
                donor=donor,
                keys_are_values=k_eq_v and window is None,
            )
            for window, donor, (kv_heads, head_dim) in zip(windows, donors, shapes, strict=True)
        ),
        divided_rope=None,
        experts=experts,
        per_layer=0 if no_per_layer else text.integer("hidden_size_per_layer_input", 256, low=0),
        softcap=text.number("final_logit_softcapping") if text.has("final_logit_softcapping") else None,
        context=text.integer("max_position_embeddings", high=1 << 32),
        tied=config.flag("tie_word_embeddings", True),
        bidirectional_images=bidirectional,
    )


def _kind(window: int | None) -> str:
    return "full_attention" if window is None else "sliding_attention"


def _windows_from_hf(text: Fields) -> tuple[int | None, ...]:
    layers, window = (
        text.integer("num_hidden_layers", high=1024),
        text.integer("sliding_window", high=LONGEST_WINDOW),
    )
    kinds = text.items("layer_types", layers)
    if kinds is None:
        return tuple(None if (i + 1) % 6 == 0 or i + 1 == layers else window for i in range(layers))
    if not all(kind in (_kind(None), _kind(window)) for kind in kinds):
        raise text.refuse("layer_types", f"must be a list of {_kind(window)} and {_kind(None)}")
    # The last layer is a full one, whatever is said of it.
    return (*(None if kind == _kind(None) else window for kind in kinds[:-1]), None)


def _shapes_from_hf(text: Fields, windows: tuple[int | None, ...], k_eq_v: bool) -> list[tuple[int, int]]:
    """KV heads and head size of each layer: by layer in the newer spelling, of full layers in the older."""

    def shape(fields: Fields, heads_key: str, size_key: str, heads: int, size: int) -> tuple[int, int]:
        return fields.integer(heads_key, heads, high=1 << 14), fields.integer(
            size_key, size, high=LONGEST_HEAD
        )

    names = ("num_key_value_heads", "head_dim")
    plain = shape(text, *names, 0, 0)
    if (by_layer := text.section("per_layer_config")) is None:
        heads, size = shape(text, "num_global_key_value_heads", "global_head_dim", plain[0], 512)
        full = (heads if k_eq_v else plain[0], size)
        return [full if window is None else plain for window in windows]
    shapes = [plain] * len(windows)
    for key, layer in by_layer.sections():
        if not (key.isascii() and key.isdigit() and len(key) < 8 and int(key) < len(windows)):
            raise text.refuse("per_layer_config", f"must name layers of 0..{len(windows) - 1}")
        shapes[int(key)] = shape(layer, *names, *plain)
    return shapes


def _donors(fields: Fields, key: str, windows: tuple[int | None, ...]) -> list[int | None]:
    """The last layers have no keys: each reads those of the last layer of its kind that has some."""
    owners = len(windows) - fields.integer(key, 0, low=0, high=len(windows) - 1)
    donors: list[int | None] = [None] * owners
    for i in range(owners, len(windows)):
        same = [j for j in range(owners) if windows[j] == windows[i]]
        if not same:
            raise fields.refuse(key, f"leaves no {_kind(windows[i])} layer with keys for layer {i}")
        donors.append(same[-1])
    return donors


def from_gguf(meta: Fields) -> Gemma4Config:
    layers = meta.integer("block_count", high=1024)
    window = meta.integer("attention.sliding_window", high=LONGEST_WINDOW)
    slides = meta.items("attention.sliding_window_pattern", layers)
    if slides is None:
        raise meta.refuse("attention.sliding_window_pattern", "must say which layers slide")
    windows = tuple(window if sliding else None for sliding in slides)
    donors = _donors(meta, "attention.shared_kv_layers", windows)
    kv_heads = meta.per_layer("attention.head_count_kv", layers, high=1 << 14)
    hidden = meta.per_layer("feed_forward_length", layers)
    full_dim, sliding_dim = _head_dim(meta, ""), _head_dim(meta, "_swa")
    theta = meta.number("rope.freq_base", 1e6)
    full_rope = Proportional(full_dim, theta, _ROTARY_SHARE)
    sliding_rope = Rope(sliding_dim, meta.number("rope.freq_base_swa", 1e4))
    experts = None
    if count := meta.integer("expert_count", 0, low=0, high=1 << 14):
        used = meta.integer("expert_used_count", high=count)
        inside = meta.per_layer("expert_feed_forward_length", layers)
        if len(set(inside)) > 1:
            raise meta.refuse("expert_feed_forward_length", "must be the same for all layers")
        experts = Experts(count, used, inside[0])
    softcap = meta.number("final_logit_softcapping", 0.0, low=-1e-9)
    per_layer = meta.integer("embedding_length_per_layer_input", 0, low=0)
    return Gemma4Config(
        width=meta.integer("embedding_length"),
        heads=meta.integer("attention.head_count", high=1 << 14),
        eps=meta.number("attention.layer_norm_rms_epsilon", high=1.0),
        blocks=tuple(
            Layer(
                window=windows[i],
                kv_heads=kv_heads[i],
                head_dim=full_dim if windows[i] is None else sliding_dim,
                hidden=hidden[i],
                rope=full_rope if windows[i] is None else sliding_rope,
                donor=donors[i],
                keys_are_values=None if windows[i] is None else False,
            )
            for i in range(layers)
        ),
        divided_rope=Rope(full_dim, theta),
        experts=experts,
        per_layer=per_layer,
        softcap=softcap or None,
        context=meta.integer("context_length", high=1 << 32),
        tied=True,
        bidirectional_images=meta.flag(_BIDIRECTIONAL, _usually_bidirectional(per_layer)),
    )


def _usually_bidirectional(per_layer: int) -> bool:
    """GGUF does not say whether images are: those of the large models are, which have no per-layer inputs."""
    return not per_layer


def _head_dim(meta: Fields, suffix: str) -> int:
    size = meta.integer(f"attention.key_length{suffix}", high=LONGEST_HEAD)
    for key in (f"attention.value_length{suffix}", f"rope.dimension_count{suffix}"):
        if meta.integer(key, size) != size:
            raise meta.refuse(key, f"must equal the key length, {size}")
    return size


def to_gguf(c: Gemma4Config) -> GgufForm:
    full = c.blocks[-1]  # as in every Gemma 4
    sliding = next((layer for layer in c.blocks if layer.window is not None), None)
    near = sliding or full  # where no layer slides nobody asks for these
    keys = {
        "context_length": c.context,
        "embedding_length": c.width,
        "block_count": c.layers,
        "feed_forward_length": _one_or_all([layer.hidden for layer in c.blocks]),
        "attention.head_count": c.heads,
        "attention.head_count_kv": _one_or_all([layer.kv_heads for layer in c.blocks]),
        "attention.key_length": full.head_dim,
        "attention.value_length": full.head_dim,
        "attention.key_length_swa": near.head_dim,
        "attention.value_length_swa": near.head_dim,
        "attention.layer_norm_rms_epsilon": c.eps,
        "attention.sliding_window": near.window or c.context,
        "attention.sliding_window_pattern": decoder.window_pattern([layer.window for layer in c.blocks]),
        "attention.shared_kv_layers": sum(layer.donor is not None for layer in c.blocks),
        "embedding_length_per_layer_input": c.per_layer,
        "rope.freq_base": full.rope.theta,
        "rope.freq_base_swa": 10_000.0 if sliding is None else sliding.rope.theta,
        "rope.dimension_count": full.head_dim,
        "rope.dimension_count_swa": near.head_dim,
    }
    if c.softcap is not None:
        keys["final_logit_softcapping"] = c.softcap
    if c.bidirectional_images != _usually_bidirectional(c.per_layer):
        keys[_BIDIRECTIONAL] = c.bidirectional_images
    if c.experts is not None:
        keys["expert_count"] = c.experts.count
        keys["expert_used_count"] = c.experts.used
        keys["expert_feed_forward_length"] = c.experts.hidden
    return GgufForm(
        "gemma4",
        keys,
        _read_back(c, full.rope),
        _doubts(c),
        fused_experts=True,
        tokenizer="gemma4",
        vectors={"rope_freqs.weight": full.rope.divisors},
    )


def _read_back(c: Gemma4Config, full: Rope) -> Gemma4Config:
    """The configuration without what tensors say: whether keys are values, and divisors of full layers."""
    is_divided = full.rotation.magnitude == 1.0
    usual = Proportional(full.head_dim, full.theta, _ROTARY_SHARE)
    return replace(
        c,
        blocks=tuple(
            replace(
                layer,
                rope=usual if layer.rope == full and is_divided else layer.rope,
                keys_are_values=None if layer.window is None else False,
            )
            for layer in c.blocks
        ),
        divided_rope=Rope(full.head_dim, full.theta),
        tied=True,
    )


def _doubts(c: Gemma4Config) -> tuple[str, ...]:
    """What llama.cpp asserts when it makes a cache: some layer slides, and where layers share keys, the last
    that has some is full and the one before it slides."""
    owners = sum(layer.donor is None for layer in c.blocks)
    if all(layer.window is None for layer in c.blocks):
        return ("no layer has a sliding window: llama.cpp aborts on a Gemma 4 without one",)
    if any(layer.donor not in (None, owners - (1 if layer.window is None else 2)) for layer in c.blocks):
        return (
            "layers share keys in an order unusual for Gemma 4: llama.cpp aborts unless the last two layers "
            "that have keys are a sliding one and a full one",
        )
    return ()


def _one_or_all(values: list[int]) -> Any:
    """One number where all layers agree, and a list where they do not."""
    return values[0] if len(set(values)) == 1 else np.array(values, np.int32)
