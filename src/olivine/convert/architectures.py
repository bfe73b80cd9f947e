"""What GGUF wants to know of each architecture that Hugging Face folders hold.

Names are translated by models/; here is what else differs: metadata keys, norms stored as 1 + w, rows of Q
and K in the order of interleaved pairs, and tensors that Hugging Face computes. What has been written is read
back and compared with the source's configuration, so nothing that GGUF cannot say is lost in silence.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from olivine import models
from olivine.backends.reference.dequantize import dequantize
from olivine.dtypes import F32
from olivine.errors import ModelError
from olivine.models import rope
from olivine.models.fields import Fields
from olivine.models.names import Parts, shape_of
from olivine.plan import Rotation
from olivine.tensor import Tensor


@dataclass(frozen=True)
class Recipe:
    """How one `model_type` becomes GGUF."""

    gguf: str  # general.architecture
    # Metadata beyond what all decoders have, from the model's own configuration and from config.json.
    keys: Callable[[Any, Fields], dict[str, Any]] = lambda c, config: {}
    # Files hold Q and K for rotation in pairs (2i, 2i + 1), and llama3's divisors of the frequencies.
    in_pairs: bool = False


@dataclass(frozen=True)
class Translation:
    """A model in GGUF's terms."""

    architecture: str
    metadata: dict[str, Any]
    weights: dict[str, Callable[[], Parts]]
    shapes: dict[str, tuple[int, ...]]
    warnings: tuple[str, ...]


def translate(kind: str, model: models.Model, config: Fields) -> Translation:
    """The model of a Hugging Face folder, whose `model_type` is `kind`."""
    recipe = RECIPES.get(kind)
    if recipe is None:
        raise ModelError(f"nothing is known of how {kind!r} is written as GGUF; known: {', '.join(RECIPES)}")
    c, warnings = _without_windows(recipe, model)
    text = config.section("text_config") or config
    keys = {
        "context_length": c.context,
        "embedding_length": c.width,
        "block_count": c.layers,
        "feed_forward_length": c.hidden,
        "attention.head_count": c.heads,
        "attention.head_count_kv": c.kv_heads,
        "attention.key_length": c.head_dim,
        "attention.value_length": c.head_dim,
        "attention.layer_norm_rms_epsilon": c.eps,
        **recipe.keys(c, text),
    }
    divisors = _add_rope(keys, c, text, recipe)
    metadata = {f"{recipe.gguf}.{key}": value for key, value in keys.items()}
    _check(model.architecture, recipe, metadata, c, divisors)

    weights = {name: _change(name, parts, c, recipe) for name, parts in model.weights.items()}
    shapes = {name: shape_of(parts) for name, parts in model.weights.items()}
    if divisors is not None:
        extra = Tensor("rope_freqs.weight", F32, (len(divisors),), np.array(divisors, "<f4").view(np.uint8))
        weights[extra.name] = lambda: (extra,)
        shapes[extra.name] = extra.shape
    return Translation(recipe.gguf, metadata, weights, shapes, warnings)


# ---- metadata


def _gemma3(c: Any, config: Fields) -> dict[str, Any]:
    window = next((window for window in c.windows if window is not None), 0)
    keys: dict[str, Any] = {"attention.sliding_window": window}
    if any(window != 0 and (w is None) != ((i + 1) % 6 == 0) for i, w in enumerate(c.windows)):
        keys["attention.sliding_window_pattern"] = np.array([w is not None for w in c.windows], np.bool_)
    local = c.local_rotation.frequencies
    keys["rope.freq_base_swa"] = _base(local)
    usual = c.head_dim if c.layers != 62 else c.width / c.heads  # 27B, by which readers know it
    if not math.isclose(c.scale, usual**-0.5, rel_tol=1e-6):
        keys["attention.scale"] = c.scale
    if c.softcap is not None:
        keys["final_logit_softcapping"] = c.softcap
    return keys


def _experts(c: Any, config: Fields) -> dict[str, Any]:
    return {
        "expert_count": c.experts.count,
        "expert_used_count": c.experts.used,
        "expert_feed_forward_length": c.experts.hidden,
    }


def _llama(c: Any, config: Fields) -> dict[str, Any]:
    return {"rope.dimension_count": c.head_dim}


def _base(frequencies: tuple[float, ...]) -> float:
    """The base of plain frequencies: base^(-2i/d)."""
    if len(frequencies) < 2:
        return 10_000.0
    return frequencies[1] ** -float(len(frequencies))


def _add_rope(keys: dict[str, Any], c: Any, text: Fields, recipe: Recipe) -> list[float] | None:
    """The keys of the rotation, and llama3's divisors where that is how it is scaled."""
    scaling = text.section("rope_parameters")
    if scaling is not None and scaling.has("full_attention"):
        scaling = scaling.section("full_attention")
    theta = 1e6 if recipe.gguf == "gemma3" else 10_000.0
    if scaling is None:
        scaling = text.section("rope_scaling") or Fields({})
        theta = text.number("rope_theta", theta)
    theta = scaling.number("rope_theta", theta)
    keys["rope.freq_base"] = theta
    kind = scaling.text("rope_type" if scaling.has("rope_type") else "type", "default")
    rotation: Rotation = getattr(c, "global_rotation", None) or c.rotation
    if kind == "llama3" and recipe.in_pairs:
        plain = rope.plain(theta, c.head_dim).frequencies
        return [f / scaled for f, scaled in zip(plain, rotation.frequencies, strict=True)]
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
    return None


def _without_windows(recipe: Recipe, model: models.Model) -> tuple[Any, tuple[str, ...]]:
    """GGUF knows the windows of Gemma. Within its window a model of another family is the same without."""
    c: Any = model.config
    if recipe.gguf == "gemma3":
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
    # How norms and rows are stored, and what tensors tell by being there.
    told_elsewhere = {"norm_offset", "tied", "sparse"}
    for field in dataclasses.fields(c):
        if field.name in told_elsewhere:
            continue
        ours, theirs = getattr(back, field.name), getattr(c, field.name)
        if isinstance(ours, Rotation):
            scaled = ours.frequencies
            if divisors is not None:
                scaled = tuple(f / d for f, d in zip(scaled, divisors, strict=True))
            ours, theirs = (*scaled, ours.magnitude), (*theirs.frequencies, theirs.magnitude)
        if not _close(ours, theirs):
            raise ModelError(
                f"GGUF has no way to say this model's {field.name} ({theirs!r:.80}): it cannot be converted"
            )


def _close(a: Any, b: Any) -> bool:
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(map(_close, a, b))
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b, rel_tol=1e-5)
    return bool(a == b)


# ---- weights


def _change(name: str, parts: Parts, c: Any, recipe: Recipe) -> Callable[[], Parts]:
    """What makes the weight as GGUF has it, when its turn comes."""
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


_GEMMA3 = Recipe("gemma3", _gemma3)
_LLAMA = Recipe("llama", _llama, in_pairs=True)
RECIPES: dict[str, Recipe] = {
    "gemma3": _GEMMA3,
    "gemma3_text": _GEMMA3,
    "qwen2": Recipe("qwen2"),
    "qwen3": Recipe("qwen3"),
    "qwen3_moe": Recipe("qwen3moe", _experts),
    "llama": _LLAMA,
    "mistral": _LLAMA,
}
