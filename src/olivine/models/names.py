"""From a checkpoint's tensor names to ours, which are GGUF's.

Hugging Face's names are translated by a table; experts that a file stores one by one, or with gate and up in
one tensor, become the same three weights. Nothing is copied: a weight is a tuple of tensors, row after row.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace

from olivine.dtypes import DTYPES
from olivine.errors import ModelError, printable
from olivine.tensor import Tensor

Parts = tuple[Tensor, ...]

# Hugging Face stem → GGUF stem, for what all decoders share. An architecture's own table comes on top.
TOP_NAMES = {"embed_tokens": "token_embd", "norm": "output_norm", "lm_head": "output"}
BLOCK_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
}
# Prefixes of a vision tower and its projector, in the older naming and in the newer.
VISION = ("vision_tower.", "multi_modal_projector.", "model.vision_tower.", "model.multi_modal_projector.")

# A text model inside a multimodal one has been saved under each of these; the longest match is taken off.
_PREFIXES = ("model.language_model.", "language_model.model.", "language_model.", "model.", "")
_BLOCK = re.compile(r"layers\.(\d{1,4})\.(.+)")
_EXPERT = re.compile(r"(?:mlp\.)?experts\.(\d{1,4})\.(gate|up|down)_proj\.weight")
_PACKED = re.compile(r"(?:mlp\.)?experts\.(gate_up|down)_proj")
_FUSED = re.compile(r"blk\.\d{1,4}\.(attn_qkv|ffn_up)\.weight")
_GATE_UP = re.compile(r"(blk\.\d{1,4}\.ffn)_gate_up_exps\.weight")
# Buffers that old checkpoints carry along.
_NOT_WEIGHTS = re.compile(r".*\.rotary_emb\.inv_freq$")


def from_gguf(tensors: Mapping[str, Tensor]) -> dict[str, Parts]:
    found: dict[str, Parts] = {}
    for name, tensor in tensors.items():
        tensor = _with_experts(name, tensor)
        if (both := _GATE_UP.fullmatch(name)) and _holds_experts(tensor):
            _add_gate_up(found, both[1], tensor)
        else:
            _add(found, name, (tensor,))
    return found


def from_hf(
    tensors: Mapping[str, Tensor],
    top_names: Mapping[str, str],
    block_names: Mapping[str, str | tuple[str, ...]],
    ignored: tuple[str, ...],
) -> tuple[dict[str, Parts], list[str]]:
    """Our names → tensors, and the names we do not know. `ignored` are prefixes of parts not run here."""
    top: dict[str, str] = {**TOP_NAMES, **top_names}
    table: dict[str, str | tuple[str, ...]] = {**BLOCK_NAMES, **block_names}
    found: dict[str, Parts] = {}
    experts: dict[str, dict[int, Tensor]] = {}
    unknown = []
    for name, tensor in tensors.items():
        if name.startswith(ignored) or _NOT_WEIGHTS.match(name):
            continue
        short = name[len(next(p for p in _PREFIXES if name.startswith(p))) :]
        block = _BLOCK.fullmatch(short)
        if block is None:
            stem, _, kind = short.rpartition(".")
            if stem in top:
                _add(found, f"{top[stem]}.{kind}", (tensor,))
            else:
                unknown.append(name)
            continue
        layer, rest = f"blk.{int(block[1])}", block[2]
        stem, _, kind = rest.rpartition(".")
        if expert := _EXPERT.fullmatch(rest):
            parts = experts.setdefault(f"{layer}.ffn_{expert[2]}_exps.weight", {})
            parts[int(expert[1])] = tensor
        elif (packed := _PACKED.fullmatch(rest)) and _holds_experts(tensor):
            if packed[1] == "down":
                _add(found, f"{layer}.ffn_down_exps.weight", (tensor,))
            else:
                _add_gate_up(found, f"{layer}.ffn", tensor)
        elif rest in table:
            _add(found, f"{layer}.{table[rest]}", (tensor,))
        elif stem in table:
            stems = table[stem]
            for new, part in _divided((stems,) if isinstance(stems, str) else stems, tensor):
                _add(found, f"{layer}.{new}.{kind}", (part,))
        else:
            unknown.append(name)
    for name, by_index in experts.items():
        missing = sorted(set(range(len(by_index))) - set(by_index))
        if missing:
            raise ModelError(f"{name}: expert {missing[0]} is missing, though there are {len(by_index)}")
        _add(found, name, tuple(by_index[index] for index in range(len(by_index))))
    return found, unknown


def is_bias(name: str, of: Collection[str] | None = None) -> bool:
    """Whether this is the bias of a projection, or of one of these in a layer."""
    stem, _, kind = name.rpartition(".")
    return kind == "bias" and (of is None or stem.rpartition(".")[2] in of)


def split_fused(found: dict[str, Parts]) -> None:
    """attn_qkv → attn_q, attn_k, attn_v, and an ffn_up of two halves → ffn_gate, ffn_up: views of rows.

    The output projection reads what the queries make, so its width is theirs; keys and values share the rest.
    """
    for name in [name for name in found if _FUSED.fullmatch(name)]:
        layer, _, stem = name.removesuffix(".weight").rpartition(".")
        (tensor,) = found[name]
        rows = tensor.shape[0]
        if len(tensor.shape) != 2:
            continue  # reported when weights are checked
        if stem == "ffn_up" and f"{layer}.ffn_gate.weight" not in found:
            _split(found, name, {"ffn_gate": rows // 2, "ffn_up": rows - rows // 2})
        elif stem == "attn_qkv" and (output := found.get(f"{layer}.attn_output.weight")):
            queries = min(output[0].shape[-1], rows)
            keys = (rows - queries) // 2
            _split(found, name, {"attn_q": queries, "attn_k": keys, "attn_v": rows - queries - keys})


def _split(found: dict[str, Parts], name: str, sizes: Mapping[str, int]) -> None:
    """The rows of a matrix as weights of so many rows each."""
    layer = name.removesuffix(".weight").rpartition(".")[0]
    (tensor,) = found.pop(name)
    start = 0
    for stem, rows in sizes.items():
        _add(found, f"{layer}.{stem}.weight", (tensor.rows(start, start + rows),))
        start += rows


def shape_of(parts: Parts) -> tuple[int, ...]:
    """The shape of a weight: of its tensor, or [parts, …] of several equal ones."""
    if len(parts) == 1:
        return parts[0].shape
    if any(part.shape != parts[0].shape for part in parts):
        raise ModelError(f"{printable(parts[0].name)} and its siblings differ in shape")
    return (len(parts), *parts[0].shape)


def _holds_experts(tensor: Tensor) -> bool:
    return len(tensor.shape) == 3 and tensor.size > 0


def _divided(stems: tuple[str, ...], tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    """The rows of a tensor, divided evenly among names."""
    if len(stems) == 1:
        yield stems[0], tensor
        return
    rows, rest = divmod(tensor.row_count, len(stems))
    if rest or len(tensor.shape) != 2:
        shape = list(tensor.shape)
        raise ModelError(f"{printable(tensor.name)} is {shape}, which {' and '.join(stems)} cannot share")
    for i, stem in enumerate(stems):
        yield stem, tensor.rows(i * rows, (i + 1) * rows)


def _add_gate_up(found: dict[str, Parts], prefix: str, tensor: Tensor) -> None:
    """[E, 2F, D] with the gate's rows first in each expert → E parts of gate and E parts of up."""
    experts, both, _ = tensor.shape
    half = both // 2
    gate = tuple(tensor.rows(e * both, e * both + half) for e in range(experts))
    up = tuple(tensor.rows(e * both + half, (e + 1) * both) for e in range(experts))
    _add(found, f"{prefix}_gate_exps.weight", gate)
    _add(found, f"{prefix}_up_exps.weight", up)


def _with_experts(name: str, tensor: Tensor) -> Tensor:
    """Of a mixture with one expert, [F, D] → [1, F, D]."""
    alone = name.endswith("_exps.weight") and len(tensor.shape) == 2
    return replace(tensor, shape=(1, *tensor.shape)) if alone else tensor


def _add(found: dict[str, Parts], name: str, parts: Parts) -> None:
    if len(parts) == 1:
        parts = (_with_experts(name, parts[0]),)
    if name in found:
        both = f"{printable(parts[0].name)} and {printable(found[name][0].name)}"
        raise ModelError(f"{both} are both {printable(name)}")
    found[name] = parts


def refuse_types(tensors: Iterable[Tensor]) -> None:
    """Refuses tensors of types that no backend decodes."""
    names: dict[str, list[str]] = {}
    for tensor in tensors:
        if not tensor.dtype.runs:
            names.setdefault(tensor.dtype.name, []).append(printable(tensor.name))
    if names:
        found = ", ".join(
            f"{kind} ({each[0]}{f' and {len(each) - 1} more' if len(each) > 1 else ''})"
            for kind, each in names.items()
        )
        raise ModelError(
            f"weights of these types do not run: {found}. Look for an edition of the model in another type; "
            f"those that run are {', '.join(DTYPES)}"
        )
