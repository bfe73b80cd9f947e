"""Which tensor gets which storage type in a file of a given kind: the mixtures of llama.cpp."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property

from olivine.dtypes import BF16, F16, F32, Q4_0, Q4_1, Q4_K, Q5_0, Q5_1, Q5_K, Q6_K, Q8_0, DType
from olivine.errors import RequestError


@dataclass(frozen=True)
class Kind:
    """A target: the type of most matrices, and its number in files."""

    name: str
    dtype: DType
    file_type: int  # general.file_type


KINDS: dict[str, Kind] = {
    name: Kind(name, dtype, number)
    for name, dtype, number in (
        ("F32", F32, 0),
        ("F16", F16, 1),
        ("BF16", BF16, 32),
        ("Q8_0", Q8_0, 7),
        ("Q4_0", Q4_0, 2),
        ("Q4_1", Q4_1, 3),
        ("Q5_0", Q5_0, 8),
        ("Q5_1", Q5_1, 9),
        ("Q4_K_S", Q4_K, 14),
        ("Q4_K_M", Q4_K, 15),
        ("Q5_K_S", Q5_K, 16),
        ("Q5_K_M", Q5_K, 17),
        ("Q6_K", Q6_K, 18),
    )
}
# As in llama.cpp, the short names mean the medium mixture.
_SHORT = {"Q4_K": "Q4_K_M", "Q5_K": "Q5_K_M"}
NAMES = (*KINDS, *_SHORT)

# Rows that are not a multiple of 256 take a type with blocks of 32, one size up.
_NARROW = {Q4_K: Q5_0, Q5_K: Q5_1, Q6_K: Q8_0}
_LAYER = re.compile(r"blk\.(\d+)\.(\w+)\.weight")
_TABLES = ("token_embd.weight", "per_layer_token_embd.weight")
# Small matrices that llama.cpp reads as they are, mostly in F32: of positions and kinds of tokens (BERT), of
# convolutions (Mamba, LFM2), of Gemma 3n, of relative positions (T5) and of RWKV.
_SMALL = re.compile(
    r"(position_embd|token_types)\.weight|.*(altup|laurel).*|.*\.(ssm_conv1d(_[qkv])?|shortconv\.conv)\.weight"
    r"|.*\.attn_rel_b\.weight|.*\.time_mix_(first|lerp_fused|[wvag][0-2]|decay_w[12])\.weight"
)
_PROJECTION = "per_layer_model_proj.weight"  # of all layers together, and small compared with the table


def kind_of(name: str) -> Kind:
    kind = KINDS.get(_SHORT.get(name.upper(), name.upper()))
    if kind is None:
        raise RequestError(f"there is no type {name!r} to convert to; known: {', '.join(NAMES)} and qwen3.c")
    return kind


@dataclass(frozen=True)
class Mixture:
    """The types of one file's tensors."""

    kind: Kind
    architecture: str  # as GGUF names it
    layers: int
    names: Collection[str]  # of all the file's tensors
    experts: int = 0

    @cached_property
    def _values(self) -> list[int]:
        """The layers that have a value projection: in Gemma 4 not all do."""
        found = (_LAYER.fullmatch(name) for name in self.names)
        return sorted(int(match[1]) for match in found if match and match[2] == "attn_v")

    def from_published(self, name: str, shape: tuple[int, ...], published: DType) -> DType:
        """The type for a tensor of a safetensors folder. Small tensors that are not quantized are F32."""
        if name == _PROJECTION:
            return published if self.kind.dtype.is_quantized else self.kind.dtype
        return self.type_of(name, shape, F32)

    def type_of(self, name: str, shape: tuple[int, ...], stored: DType) -> DType:
        """The type for a tensor of another GGUF file; `stored` is its type, which it may keep."""
        if len(shape) < 2 or not name.endswith(".weight") or _is_kept(name):
            return stored
        chosen = self.kind.dtype
        if chosen.is_quantized:
            chosen = self._exception(name) or chosen
        if shape[-1] % chosen.block_size:
            chosen = _NARROW.get(chosen, chosen)
        if shape[-1] % chosen.block_size:
            chosen = F16
        return chosen

    def _exception(self, name: str) -> DType | None:
        """The larger type of the LM head, and in the K mixtures of the most sensitive tensors."""
        if name == "output.weight" or (name in _TABLES and "output.weight" not in self.names):
            return None if self.kind.dtype == Q8_0 else Q6_K
        match = _LAYER.fullmatch(name)
        if match is None:
            return None
        layer, stem = int(match[1]), match[2]
        if stem == "attn_v":
            return self._of_values(self._values.index(layer))
        if stem == "attn_qkv":
            return {"Q4_K_M": Q5_K, "Q5_K_M": Q6_K}.get(self.kind.name)
        if self.experts == 8 and stem == "attn_k":
            return Q8_0
        if self.experts == 8 and stem == "attn_output" and self.kind.dtype == Q4_K:
            return Q5_K
        if stem in ("ffn_down", "ffn_down_exps"):
            if self.kind.name in ("Q4_K_M", "Q5_K_M") and _more_bits(layer, self.layers):
                return Q6_K
            if self.kind.name == "Q4_K_S" and layer < self.layers // 8:
                return Q5_K
        return None

    def _of_values(self, place: int) -> DType | None:
        """The type of the value projection with this index among all of them."""
        if self.experts == 8:
            return Q8_0  # small compared with the experts
        if self.kind.name in ("Q4_K_M", "Q5_K_M") and _more_bits(place, len(self._values)):
            return Q6_K
        # In Llama 70B eight query heads share a KV head: more bits cost little.
        is_70b = self.architecture == "llama" and self.layers == 80
        if (self.kind.name == "Q4_K_S" and place < 4) or (self.kind.dtype == Q4_K and is_70b):
            return Q5_K
        return None


def _more_bits(place: int, count: int) -> bool:
    """The first and the last eighth, and every third between."""
    eighth = count // 8
    return place < eighth or place >= 7 * count // 8 or (place - eighth) % 3 == 2


def _is_kept(name: str) -> bool:
    """Norms, routers, one projection and what `_SMALL` has: small, and everything after depends on them."""
    return (
        name == _PROJECTION
        or _SMALL.fullmatch(name) is not None
        or name.endswith(("_norm.weight", ".ffn_gate_inp.weight"))
    )
