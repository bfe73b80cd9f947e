"""What a model file provides."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from olivine.models.fields import Fields
from olivine.plan import Trace


class ModelConfig(Protocol):
    """What every model's configuration has, whatever else is in it."""

    @property
    def layers(self) -> int: ...
    @property
    def width(self) -> int: ...
    @property
    def context(self) -> int: ...


@dataclass(frozen=True)
class GgufForm:
    """A model as a GGUF file has it: its metadata, and what differs from Hugging Face's tensors."""

    architecture: str  # `general.architecture`
    keys: Mapping[str, Any]  # metadata, without the architecture's prefix
    config: Any  # what `from_gguf` must make of these keys, or the model is refused
    warnings: tuple[str, ...] = ()
    norm_offset: float = 0.0  # what is added to the weights of norms
    paired_heads: int = 0  # the head size of Q and K, if the rows of a head lie in pairs (2i, 2i + 1)
    fused_experts: bool = False  # gate and up of each expert in one tensor
    tokenizer: str = ""  # `tokenizer.ggml.model`, where it is the family's own
    fused: bool = False  # q, k and v in one tensor, and gate and up in one
    # Tensors that a folder has as numbers of its configuration: divisors of rotary frequencies.
    vectors: Mapping[str, tuple[float, ...]] = field(default_factory=dict)


ATTENTION = ("attn_q", "attn_k", "attn_v", "attn_output")
MLP = ("ffn_gate", "ffn_up", "ffn_down")


def attention_biases(config: Fields) -> tuple[str, ...]:
    """Projections with a bias, by config.json."""
    return ATTENTION if config.flag("attention_bias", False) else ()


def biases(config: Fields) -> tuple[str, ...]:
    """The same of families that may have biases in the MLP, too."""
    return attention_biases(config) + (MLP if config.flag("mlp_bias", False) else ())


@dataclass(frozen=True)
class Architecture:
    """One model file: how its configuration is read and written, and its forward."""

    name: str
    from_hf: Callable[[Fields], Any]
    from_gguf: Callable[[Fields], Any]
    to_gguf: Callable[[Any], GgufForm]
    forward: Callable[[Trace, Any], None]
    # Hugging Face stems, outside of the layers and within one, that are not in `names.TOP_NAMES` and
    # `names.BLOCK_NAMES` or differ from them. A layer's tensor without a stem stands there in full; the rows
    # of a tensor with several names are divided evenly among them.
    top_names: Mapping[str, str] = field(default_factory=dict)
    block_names: Mapping[str, str | tuple[str, ...]] = field(default_factory=dict)
    # Prefixes of Hugging Face tensors that belong to parts which the text model does not run.
    ignored: tuple[str, ...] = ()
    # Stems, within a layer or outside, that files carry along even where the plan has no use for them.
    spare: tuple[str, ...] = ()
    # Files have q, k and v in one tensor, and gate and up in one: `names.split_fused`.
    fused: bool = False
    # The projections of a layer that have a bias, by config.json: the published code has no others, whatever
    # the file holds. GGUF files have no key for it; there every bias that is present counts.
    biases: Callable[[Fields], tuple[str, ...]] = biases
    # Variables of our own chat template that depend on the configuration.
    template_variables: Callable[[Any], dict[str, Any]] = lambda config: {}
