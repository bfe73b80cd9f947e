"""What a model file provides, and the few lines that several of them share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from olivine.models.fields import Fields
from olivine.plan import Trace, Value


class ModelConfig(Protocol):
    """What every model's configuration has, whatever else is in it."""

    @property
    def layers(self) -> int: ...
    @property
    def context(self) -> int: ...


@dataclass(frozen=True)
class Architecture:
    """One model file: how its configuration is read, and its forward."""

    name: str
    hf: tuple[str, ...]  # `model_type` in config.json
    gguf: tuple[str, ...]  # `general.architecture`
    from_hf: Callable[[Fields], Any]
    from_gguf: Callable[[Fields], Any]
    forward: Callable[[Trace, Any], None]
    # Hugging Face stems, outside of the layers and within one, that are not in `names.TOP_NAMES` and
    # `names.BLOCK_NAMES` or differ from them. A layer's tensor without a stem stands there in full.
    top_names: Mapping[str, str] = field(default_factory=dict)
    block_names: Mapping[str, str] = field(default_factory=dict)
    # Prefixes of Hugging Face tensors that belong to parts which the text model does not run.
    ignored: tuple[str, ...] = ()
    # Stems within a layer that files carry along even where the layer has no use for them.
    spare: tuple[str, ...] = ()


def head(t: Trace, x: Value, *, tied: bool) -> Value:
    """Logits by the model's own head, or by the embedding where there is none and the model ties them."""
    name = "token_embd" if tied and not t.has("output.weight") else "output"
    return t.linear(x, name, t.rows_of(f"{name}.weight"))


# Where query heads, KV heads, head size and model width stand in config.json and in GGUF metadata.
_HF_HEADS = ("num_attention_heads", "num_key_value_heads", "head_dim", "hidden_size")
_GGUF_HEADS = ("attention.head_count", "attention.head_count_kv", "attention.key_length", "embedding_length")


def heads_from_hf(config: Fields) -> tuple[int, int, int]:
    """Query heads, KV heads and head size of config.json."""
    return _heads(config, *_HF_HEADS)


def heads_from_gguf(meta: Fields) -> tuple[int, int, int]:
    """Query heads, KV heads and head size of GGUF metadata."""
    heads, kv_heads, head_dim = _heads(meta, *_GGUF_HEADS)
    if meta.integer("attention.value_length", head_dim) != head_dim:
        raise meta.refuse("attention.value_length", f"must equal the key length, {head_dim}")
    return heads, kv_heads, head_dim


def _heads(
    fields: Fields, heads_key: str, kv_key: str, size_key: str, width_key: str
) -> tuple[int, int, int]:
    heads = fields.integer(heads_key, high=1 << 14)
    kv_heads = fields.integer(kv_key, heads, high=1 << 14)
    if heads % kv_heads:
        raise fields.refuse(kv_key, f"must divide {heads_key}, {heads}")
    if not fields.has(size_key) and fields.integer(width_key) % heads:
        raise fields.refuse(heads_key, f"must divide {width_key} where there is no {size_key}")
    head_dim = fields.integer(size_key, fields.integer(width_key) // heads, high=1 << 13)
    if head_dim % 2:
        raise fields.refuse(size_key, "must be even")
    return heads, kv_heads, head_dim
