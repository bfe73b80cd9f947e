"""A model of a Hugging Face folder in GGUF's terms.

Its model file says what the metadata is and how tensors lie (`to_gguf`); here it is done. What has been
written is read back and compared with the source's configuration, so nothing that GGUF cannot say is lost in
silence.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from olivine import models
from olivine.backends.reference.dequantize import dequantize
from olivine.dtypes import F32, DType
from olivine.errors import ModelError
from olivine.models.architecture import GgufForm
from olivine.models.fields import Fields
from olivine.models.names import Parts, shape_of
from olivine.tensor import Tensor


@dataclass(frozen=True)
class Weight:
    """A tensor as GGUF has it. `parts` makes its rows, in order, when they are to be written."""

    shape: tuple[int, ...]
    published: DType  # the type that the source has it in
    parts: Callable[[], Parts]


@dataclass(frozen=True)
class Translation:
    """A model in GGUF's terms."""

    architecture: str
    tokenizer: str  # `GgufForm.tokenizer`
    metadata: dict[str, Any]
    weights: dict[str, Weight]
    warnings: tuple[str, ...]


def translate(model: models.Model) -> Translation:
    """A model that was built from a Hugging Face folder."""
    form: GgufForm = model.architecture.to_gguf(model.config)
    metadata = {f"{form.architecture}.{key}": value for key, value in form.keys.items()}
    _check(model.architecture, form, metadata)
    weights = {
        name: Weight(shape_of(parts), parts[0].dtype, _changed(name, parts, form))
        for name, parts in model.weights.items()
    }
    if form.fused_experts:
        _fuse_experts(weights)
    if form.fused:
        _fuse_rows(weights)
    for name, vector in form.vectors.items():
        weights[name] = _vector(name, vector)
    warnings = (*model.warnings, *form.warnings, *_unequal_tables(weights))
    return Translation(form.architecture, form.tokenizer, metadata, weights, warnings)


# ---- metadata


def _check(architecture: models.Architecture, form: GgufForm, metadata: dict[str, Any]) -> None:
    """Refuses a model of which the metadata does not say what config.json said."""
    back = architecture.from_gguf(Fields(metadata, f"{form.architecture}."))
    for field, value in _differences(form.config, back):
        raise ModelError(
            f"GGUF has no way to say this model's {field} ({value!r:.80}): it cannot be converted"
        )


def _differences(a: Any, b: Any, where: str = "") -> Iterator[tuple[str, Any]]:
    """The fields in which two configurations differ, with what `a` has there."""
    if dataclasses.is_dataclass(a) and type(a) is type(b):
        for field in dataclasses.fields(a):
            path = f"{where}.{field.name}".lstrip(".")
            yield from _differences(getattr(a, field.name), getattr(b, field.name), path)
    elif isinstance(a, tuple) and isinstance(b, tuple) and len(a) == len(b):
        for i, pair in enumerate(zip(a, b, strict=True)):
            yield from _differences(*pair, f"{where}[{i}]")
    elif isinstance(a, float) and isinstance(b, float):
        if not math.isclose(a, b, rel_tol=1e-5, abs_tol=1e-20):
            yield where, a
    elif a != b:
        yield where, a


# ---- weights


def _changed(name: str, parts: Parts, form: GgufForm) -> Callable[[], Parts]:
    """What makes the weight as GGUF has it."""
    if form.norm_offset and name.endswith("norm.weight"):
        return lambda: tuple(_plus(part, form.norm_offset) for part in parts)
    if form.paired_heads and re.search(r"\.attn_[qk]\.(weight|bias)$", name):
        return lambda: tuple(_in_pairs(part, form.paired_heads) for part in parts)
    return lambda: parts


def _plus(tensor: Tensor, offset: float) -> Tensor:
    values = (dequantize(tensor) + np.float32(offset)).astype("<f4")
    return Tensor(tensor.name, F32, tensor.shape, values.view(np.uint8))


def _in_pairs(tensor: Tensor, head_dim: int) -> Tensor:
    """The rows of each head from halves (i, i + d/2) to pairs (2i, 2i + 1)."""
    rows = tensor.data.reshape(tensor.shape[0] // head_dim, 2, head_dim // 2, -1).swapaxes(1, 2)
    return dataclasses.replace(tensor, data=np.ascontiguousarray(rows).reshape(-1))


def _vector(name: str, numbers: tuple[float, ...]) -> Weight:
    values = np.array(numbers, "<f4")
    tensor = Tensor(name, F32, values.shape, values.view(np.uint8))
    return Weight(tensor.shape, F32, lambda: (tensor,))


def _fuse_rows(weights: dict[str, Weight]) -> None:
    """Q, k and v of a layer in one tensor, one after another, and gate and up in one."""
    for name in [name for name in weights if name.endswith(".attn_q.weight")]:
        layer = name.removesuffix("attn_q.weight")
        for fused, stems in (
            ("attn_qkv", ("attn_q", "attn_k", "attn_v")),
            ("ffn_up", ("ffn_gate", "ffn_up")),
        ):
            several = tuple(weights.pop(f"{layer}{stem}.weight") for stem in stems)

            def parts(several: tuple[Weight, ...] = several) -> Parts:
                return tuple(part for each in several for part in each.parts())

            rows = sum(each.shape[0] for each in several)
            shape = (rows, several[0].shape[1])
            weights[f"{layer}{fused}.weight"] = Weight(shape, several[0].published, parts)


def _fuse_experts(weights: dict[str, Weight]) -> None:
    """E parts of the gate and E of up, [F, D] each → [E, 2F, D], the gate's rows first in each expert."""
    for name in [name for name in weights if name.endswith(".ffn_gate_exps.weight")]:
        gate, up = weights.pop(name), weights.pop(name.replace("_gate_", "_up_"))
        experts, rows, width = gate.shape

        def parts(gate: Weight = gate, up: Weight = up) -> Parts:
            return tuple(part for pair in zip(gate.parts(), up.parts(), strict=True) for part in pair)

        fused = Weight((experts, 2 * rows, width), gate.published, parts)
        weights[name.replace("_gate_", "_gate_up_")] = fused


def _unequal_tables(weights: dict[str, Weight]) -> Iterator[str]:
    """Of embedding tables with another number of tokens than the model has."""
    rows = weights["token_embd.weight"].shape[0]
    table = weights.get("per_layer_token_embd.weight")
    if table is not None and table.shape[0] != rows:
        told = f"embeddings by layer have {table.shape[0]} rows, and the embedding {rows}"
        yield f"{told}: llama.cpp refuses that"
