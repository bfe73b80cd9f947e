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
    # Hugging Face stems within a layer that differ from `names.BLOCK_NAMES`.
    block_names: Mapping[str, str] = field(default_factory=dict)
    # Prefixes of Hugging Face tensors that belong to parts which the text model does not run.
    ignored: tuple[str, ...] = ()


def head(t: Trace, x: Value, *, tied: bool) -> Value:
    """Logits by the model's own head, or by the embedding where there is none and the model ties them."""
    name = "token_embd" if tied and not t.has("output.weight") else "output"
    return t.linear(x, name, t.rows_of(f"{name}.weight"))


def heads_from_hf(config: Fields) -> tuple[int, int, int]:
    """Query heads, KV heads and head size of config.json."""
    heads = config.integer("num_attention_heads", high=1 << 14)
    kv_heads = config.integer("num_key_value_heads", heads, high=1 << 14)
    if heads % kv_heads:
        raise config.refuse("num_key_value_heads", f"must divide num_attention_heads, {heads}")
    if not config.has("head_dim") and config.integer("hidden_size") % heads:
        raise config.refuse("num_attention_heads", "must divide hidden_size where there is no head_dim")
    head_dim = config.integer("head_dim", config.integer("hidden_size") // heads, high=1 << 13)
    if head_dim % 2:
        raise config.refuse("head_dim", "must be even")
    return heads, kv_heads, head_dim


def heads_from_gguf(meta: Fields) -> tuple[int, int, int]:
    """Query heads, KV heads and head size of GGUF metadata."""
    heads = meta.integer("attention.head_count", high=1 << 14)
    kv_heads = meta.integer("attention.head_count_kv", heads, high=1 << 14)
    if heads % kv_heads:
        raise meta.refuse("attention.head_count_kv", f"must divide attention.head_count, {heads}")
    if not meta.has("attention.key_length") and meta.integer("embedding_length") % heads:
        raise meta.refuse("attention.head_count", "must divide embedding_length where there is no key_length")
    head_dim = meta.integer("attention.key_length", meta.integer("embedding_length") // heads, high=1 << 13)
    if head_dim % 2:
        raise meta.refuse("attention.key_length", "must be even")
    if meta.integer("attention.value_length", head_dim) != head_dim:
        raise meta.refuse("attention.value_length", f"must equal the key length, {head_dim}")
    return heads, kv_heads, head_dim
