"""One file an architecture. `build` turns a checkpoint's names and numbers into a plan and its weights."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal, NamedTuple

from olivine.errors import ModelError, printable
from olivine.models import names
from olivine.models.architecture import Architecture, ModelConfig
from olivine.models.fields import Fields
from olivine.plan import Plan, trace
from olivine.tensor import Tensor

__all__ = ["ARCHITECTURES", "Architecture", "Kinds", "Model", "ModelConfig", "build", "find"]


class Kinds(NamedTuple):
    """What files call the models of one module."""

    hf: tuple[str, ...]  # `model_type` in config.json
    gguf: tuple[str, ...]  # `general.architecture`


# By module, which is imported when a file needs it and has an `ARCHITECTURE`.
ARCHITECTURES = {
    "exaone4": Kinds(hf=("exaone4",), gguf=("exaone4",)),
    "gemma3": Kinds(hf=("gemma3", "gemma3_text"), gguf=("gemma3",)),
    "gemma4": Kinds(hf=("gemma4", "gemma4_text", "gemma4_unified", "gemma4_unified_text"), gguf=("gemma4",)),
    "granite": Kinds(hf=("granite", "granitemoehybrid"), gguf=("granite",)),
    "llama": Kinds(hf=("llama", "mistral"), gguf=("llama",)),
    "mistral": Kinds(hf=("mistral3", "ministral3"), gguf=("mistral3",)),
    "olmo": Kinds(hf=("olmo2", "olmo3"), gguf=("olmo2",)),
    "phi3": Kinds(hf=("phi3",), gguf=("phi3",)),
    "qwen3": Kinds(hf=("qwen3", "qwen3_moe", "qwen2"), gguf=("qwen3", "qwen3moe", "qwen2")),
    "smollm3": Kinds(hf=("smollm3",), gguf=("smollm3",)),
}


@dataclass(frozen=True)
class Model:
    """A plan with every weight it names found in the checkpoint."""

    architecture: Architecture
    config: ModelConfig
    plan: Plan
    weights: dict[str, names.Parts]
    warnings: tuple[str, ...]
    context: int  # the longest sequence that the plan is for

    @property
    def template_variables(self) -> dict[str, Any]:
        """Variables of our own chat template that depend on the model."""
        return self.architecture.template_variables(self.config)


def build(
    kind: str,
    naming: Literal["hf", "gguf"],
    metadata: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    *,
    context: int | None = None,
) -> Model:
    """Reads the configuration, traces the plan and binds its weights, or says all that does not fit.

    The plan is for sequences of up to `context` tokens, by default as many as the model was made for.
    """
    architecture = find(kind, naming)
    unknown: list[str] = []
    biases: tuple[str, ...] = ()
    # Tensors of unknown names too: a quantized weight may have one of its own (qweight).
    names.refuse_types(t for name, t in tensors.items() if not name.startswith(architecture.ignored))
    if naming == "hf":
        _refuse_embedders(Fields(metadata))
        config = architecture.from_hf(Fields(metadata))
        found, unknown = names.from_hf(
            tensors, architecture.top_names, architecture.block_names, architecture.ignored
        )
        if config.tied and "token_embd.weight" not in found and "output.weight" in found:
            # Of a tensor that is shared, a writer may keep either name.
            found["token_embd.weight"] = found.pop("output.weight")
        biases = architecture.biases(Fields(metadata))
        for name in [name for name in found if names.is_bias(name) and not names.is_bias(name, biases)]:
            unknown += [part.name for part in found.pop(name)]
    else:
        config = architecture.from_gguf(Fields(metadata, f"{kind}."))
        found = names.from_gguf(tensors)
    if architecture.fused:
        names.split_fused(found)
    shapes = {name: names.shape_of(parts) for name, parts in found.items()}
    longest = config.context if context is None else min(context, config.context)
    title = f"{architecture.name} ({kind})"
    plan = trace(title, architecture.forward, config, shapes, context=longest, biases=biases)
    check_weights(plan, found, shapes)
    _check_vocabulary(plan, shapes, Fields(metadata) if naming == "hf" else None)
    used = {weight.name for weight in plan.weights}
    spare = re.compile(rf"(blk\.\d+\.)?({'|'.join(map(re.escape, architecture.spare))})\.weight")
    unknown += [
        parts[0].name for name, parts in found.items() if name not in used and not spare.fullmatch(name)
    ]
    warnings: tuple[str, ...] = ()
    if unknown:
        listed = ", ".join(map(printable, unknown[:8])) + (", …" if len(unknown) > 8 else "")
        warnings = (f"{len(unknown)} tensors are not part of this architecture and are not used: {listed}",)
    return Model(architecture, config, plan, {name: found[name] for name in used}, warnings, longest)


def find(kind: str, naming: Literal["hf", "gguf"]) -> Architecture:
    """The architecture that a file names."""
    known = {name: module for module, kinds in ARCHITECTURES.items() for name in getattr(kinds, naming)}
    if kind not in known:
        raise ModelError(f"the architecture {kind!r} is not supported; known: {', '.join(sorted(known))}")
    architecture: Architecture = import_module(f"{__name__}.{known[kind]}").ARCHITECTURE
    return architecture


def _refuse_embedders(config: Fields) -> None:
    """Models whose tokens see those after them: the published code of every family does that for this key."""
    for told in (config, config.section("text_config")):
        if told is not None and told.has("is_causal") and not told.flag("is_causal"):
            raise told.refuse("is_causal", "makes this an embedding model: not supported")


def check_weights(
    plan: Plan, found: Mapping[str, names.Parts], shapes: Mapping[str, tuple[int, ...]]
) -> None:
    problems = []
    for weight in plan.weights:
        if weight.name not in found:
            problems.append(f"{weight.name} {list(weight.shape)} is missing")
        elif shapes[weight.name] != weight.shape:
            problems.append(
                f"{weight.name} ({printable(found[weight.name][0].name)}) is {list(shapes[weight.name])} "
                f"and should be {list(weight.shape)}"
            )
        elif len(weight.shape) == 1 and found[weight.name][0].dtype.is_quantized:
            problems.append(f"{weight.name} is {found[weight.name][0].dtype} and should be F32, F16 or BF16")
    if problems:
        shown = problems[:12] + ([f"… and {len(problems) - 12} more"] if len(problems) > 12 else [])
        raise ModelError("the checkpoint's tensors do not fit its configuration:\n  " + "\n  ".join(shown))


def _check_vocabulary(plan: Plan, shapes: Mapping[str, tuple[int, ...]], config: Fields | None) -> None:
    """The embedding, the head and config.json must count the same tokens."""
    rows, logits = shapes["token_embd.weight"][0], plan.logits.width
    if logits != rows:
        raise ModelError(f"the model's head has {logits} rows and its embedding {rows}: they must agree")
    if config is not None:
        told = config.section("text_config") or config
        if told.has("vocab_size") and told.integer("vocab_size") != rows:
            raise told.refuse("vocab_size", f"contradicts the embedding of {rows} rows")
