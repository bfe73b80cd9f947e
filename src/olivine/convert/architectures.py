"""A model of a Hugging Face folder in GGUF's terms.

Names are translated by models/ and keys are in recipes.py; here is what else differs: norms stored as 1 + w,
rows of Q and K in the order of interleaved pairs, experts with gate and up in one tensor, and tensors that
Hugging Face computes. What has been written is read back and compared with the source's configuration, so
nothing that GGUF cannot say is lost in silence.
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
from olivine.convert.recipes import RECIPES, Recipe
from olivine.dtypes import F32, DType
from olivine.errors import ModelError
from olivine.models import rope
from olivine.models.fields import Fields
from olivine.models.names import Parts, shape_of
from olivine.tensor import Tensor

_NO_TURN = 1e30  # the divisor of a pair that stands still


@dataclass(frozen=True)
class Weight:
    """A tensor as GGUF has it. `parts` makes its rows, in order, when its turn comes."""

    shape: tuple[int, ...]
    published: DType  # the type that the source has it in
    parts: Callable[[], Parts]


@dataclass(frozen=True)
class Translation:
    """A model in GGUF's terms."""

    architecture: str
    metadata: dict[str, Any]
    weights: dict[str, Weight]
    warnings: tuple[str, ...]


def translate(kind: str, model: models.Model, config: Fields) -> Translation:
    """The model of a Hugging Face folder, whose `model_type` is `kind`."""
    recipe = RECIPES.get(kind)
    if recipe is None:
        raise ModelError(f"nothing is known of how {kind!r} is written as GGUF; known: {', '.join(RECIPES)}")
    c, warnings = _without_windows(recipe, model)
    rope_keys, divisors = _rope(recipe, c, config.section("text_config") or config)
    keys = {
        "context_length": c.context,
        "embedding_length": c.width,
        "block_count": c.layers,
        "attention.head_count": c.heads,
        "attention.layer_norm_rms_epsilon": c.eps,
        **recipe.keys(c),
        **rope_keys,
    }
    metadata = {f"{recipe.gguf}.{key}": value for key, value in keys.items()}
    _check(model.architecture, recipe, metadata, c, divisors)

    weights = {
        name: Weight(shape_of(parts), parts[0].dtype, _change(name, parts, c, recipe))
        for name, parts in model.weights.items()
    }
    if recipe.fused_experts:
        _fuse_experts(weights)
    if divisors is not None:
        extra = Tensor("rope_freqs.weight", F32, (len(divisors),), np.array(divisors, "<f4").view(np.uint8))
        weights[extra.name] = Weight(extra.shape, F32, lambda: (extra,))
    doubts = recipe.doubts(c, {name: weight.shape for name, weight in weights.items()})
    return Translation(recipe.gguf, metadata, weights, (*warnings, *doubts))


# ---- metadata


def _rope(recipe: Recipe, c: Any, text: Fields) -> tuple[dict[str, Any], list[float] | None]:
    """The keys of the rotation, and divisors of its frequencies where files have those."""
    scaling = text.section("rope_parameters")
    if scaling is not None and scaling.has("full_attention"):
        scaling = scaling.section("full_attention")
    theta = recipe.theta
    if scaling is None:
        scaling = text.section("rope_scaling") or Fields({})
        theta = text.number("rope_theta", theta)
    theta = scaling.number("rope_theta", theta)
    keys: dict[str, Any] = {"rope.freq_base": theta}
    kind = scaling.text("rope_type" if scaling.has("rope_type") else "type", "default")
    rotation = recipe.rotation(c)
    if kind in recipe.divided:
        plain = rope.plain(theta, rotation.head_dim).frequencies
        pairs = zip(plain, rotation.frequencies, strict=True)
        return keys, [f / scaled if scaled else _NO_TURN for f, scaled in pairs]
    if kind in ("linear", "yarn"):
        factor = scaling.number("factor")
        keys |= {"rope.scaling.type": kind, "rope.scaling.factor": factor}
    if kind == "yarn":
        longest = text.integer("max_position_embeddings", high=1 << 31)
        original = scaling.number("original_max_position_embeddings", longest)
        keys["rope.scaling.original_context_length"] = round(original)
        # Readers have the usual magnitude in their code, and this multiplies it.
        usual_magnitude = 0.1 * math.log(factor) + 1.0 if factor > 1 else 1.0
        keys["rope.scaling.yarn_attn_factor"] = rotation.magnitude / usual_magnitude
        for name, usual in (("beta_fast", 32.0), ("beta_slow", 1.0)):
            if (value := scaling.number(name, usual)) != usual:
                keys[f"rope.scaling.yarn_{name}"] = value
    return keys, None


def _without_windows(recipe: Recipe, model: models.Model) -> tuple[Any, tuple[str, ...]]:
    """GGUF knows the windows of Gemma. Within its window a model of another family is the same without."""
    c: Any = model.config
    if recipe.has_windows:
        return c, model.warnings
    windows = [w for w in getattr(c, "windows", (getattr(c, "window", None),)) if w is not None]
    if not windows:
        return c, model.warnings
    unlimited = {"windows": (None,) * c.layers} if hasattr(c, "windows") else {"window": None}
    c = dataclasses.replace(c, **unlimited, context=min(c.context, *windows))
    told = f"GGUF cannot say that this model looks {min(windows)} tokens back: its context is cut to that"
    return c, (*model.warnings, told)


def _check(
    architecture: models.Architecture,
    recipe: Recipe,
    metadata: dict[str, Any],
    c: Any,
    divisors: list[float] | None,
) -> None:
    """Refuses a model of which the metadata does not say what config.json said."""
    back = architecture.from_gguf(Fields(metadata, f"{recipe.gguf}."))
    if divisors is not None:
        back = recipe.with_divisors(back, divisors)
    for field, value in _differences(c, back):
        raise ModelError(
            f"GGUF has no way to say this model's {field} ({value!r:.80}): it cannot be converted"
        )


# How norms and rows are stored, and what tensors tell by being there.
_TOLD_ELSEWHERE = {"norm_offset", "interleaved", "tied", "sparse", "keys_are_values"}


def _differences(a: Any, b: Any, where: str = "") -> Iterator[tuple[str, Any]]:
    """The fields in which two configurations differ, with what `a` has there."""
    if dataclasses.is_dataclass(a) and type(a) is type(b):
        for field in dataclasses.fields(a):
            if field.name not in _TOLD_ELSEWHERE:
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


def _change(name: str, parts: Parts, c: Any, recipe: Recipe) -> Callable[[], Parts]:
    """What makes the weight as GGUF has it."""
    if getattr(c, "norm_offset", 0.0) and name.endswith("norm.weight"):
        return lambda: tuple(_plus(part, c.norm_offset) for part in parts)
    if recipe.in_pairs and (match := re.search(r"\.attn_([qk])\.(weight|bias)$", name)):
        heads = c.heads if match[1] == "q" else c.kv_heads
        return lambda: tuple(_in_pairs(part, heads) for part in parts)
    return lambda: parts


def _plus(tensor: Tensor, offset: float) -> Tensor:
    values = (dequantize(tensor) + np.float32(offset)).astype("<f4")
    return Tensor(tensor.name, F32, tensor.shape, values.view(np.uint8))


def _in_pairs(tensor: Tensor, heads: int) -> Tensor:
    """The rows of each head from halves (i, i + d/2) to pairs (2i, 2i + 1)."""
    half = tensor.shape[0] // heads // 2
    rows = tensor.data.reshape(heads, 2, half, -1).swapaxes(1, 2)
    return dataclasses.replace(tensor, data=np.ascontiguousarray(rows).reshape(-1))


def _fuse_experts(weights: dict[str, Weight]) -> None:
    """E parts of the gate and E of up, [F, D] each → [E, 2F, D], the gate's rows first in each expert."""
    for name in [name for name in weights if name.endswith(".ffn_gate_exps.weight")]:
        gate, up = weights.pop(name), weights.pop(name.replace("_gate_", "_up_"))
        experts, rows, width = gate.shape

        def parts(gate: Weight = gate, up: Weight = up) -> Parts:
            return tuple(part for pair in zip(gate.parts(), up.parts(), strict=True) for part in pair)

        fused = Weight((experts, 2 * rows, width), gate.published, parts)
        weights[name.replace("_gate_", "_gate_up_")] = fused
