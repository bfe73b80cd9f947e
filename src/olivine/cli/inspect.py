"""`olivine inspect`: what is in a model's files, from their headers alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from olivine.cache_fit import cache_size
from olivine.cli.options import ModelPath, mmproj_option
from olivine.cli.text import clean, count, echo_facts, echo_table, escaped, json_text, size
from olivine.cli.tool_habits import FamiliarTool
from olivine.cli.towers import tower_facts, tower_lines
from olivine.errors import ModelError, OlivineError, TokenizerError
from olivine.formats import Checkpoint, Tensor, open_checkpoint
from olivine.loading import DEFAULT_CONTEXT, model_of, tokenizer_of
from olivine.models import Model, ModelConfig
from olivine.models.tower import BuiltTower
from olivine.towers import is_mmproj, towers_in, towers_of

_ONLY_TOWERS = "these are the towers of a GGUF model, for images and sounds: it is used with that (--mmproj)"


@click.command("inspect", cls=FamiliarTool, short_help="Show what is in a model's files.")
@click.argument("model", type=ModelPath())
@mmproj_option
@click.option("--tensors", is_flag=True, help="List every tensor: name, type, shape, bytes.")
@click.option("--plan", is_flag=True, help="Print the traced plan: every op, buffer and cache group.")
@click.option("--metadata", is_flag=True, help="List the file's metadata.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
def command(
    model: Path, mmproj: Path | None, tensors: bool, plan: bool, metadata: bool, as_json: bool
) -> None:
    """Show what is in MODEL: architecture, sizes, types, tokenizer, template and context; what it sees and
    hears with, and how many tokens images and sounds are.

    Only headers are read, so this is quick for a model of any size.
    """
    checkpoint = open_checkpoint(model)
    built, problem = _try_model(checkpoint)
    if plan and built is None:
        raise ModelError(problem)
    facts = summary(checkpoint, built, problem, *_towers(checkpoint, built, mmproj))
    if as_json:
        if tensors:
            facts["tensors"] = [_tensor(tensor) for tensor in checkpoint.tensors.values()]
        if metadata:
            facts["metadata"] = {key: _plain(value) for key, value in checkpoint.metadata.items()}
        if plan and built is not None:
            facts["plan"] = [str(op) for op in built.plan.ops]
        click.echo(json_text(facts, indent=2))
        return
    echo_facts(lines(facts))
    if metadata:
        _echo_metadata(checkpoint)
    if tensors:
        _echo_tensors(checkpoint)
    if plan and built is not None:
        click.echo(clean(f"\n{built.plan}"))


def summary(
    checkpoint: Checkpoint,
    model: Model | None,
    problem: str,
    towers: Sequence[BuiltTower] = (),
    files: Sequence[Path] = (),
    warnings: Sequence[str] = (),
) -> dict[str, Any]:
    """Everything the table shows, as plain data. `files` and `warnings` are about the towers."""
    bytes_by_type: Counter[str] = Counter()
    count_by_type: Counter[str] = Counter()
    for tensor in checkpoint.tensors.values():
        bytes_by_type[tensor.dtype.name] += tensor.nbytes
        count_by_type[tensor.dtype.name] += 1
    facts: dict[str, Any] = {
        "path": str(checkpoint.path),
        "format": checkpoint.format,
        "architecture": checkpoint.architecture,
        "name": checkpoint.metadata.get("general.name") or checkpoint.metadata.get("_name_or_path"),
        "parameters": sum(tensor.size for tensor in checkpoint.tensors.values()),
        "file_bytes": checkpoint.file_bytes,
        "files": len(checkpoint.files),
        "tensor_count": len(checkpoint.tensors),
        "types": {
            name: {"tensors": count_by_type[name], "bytes": size}
            for name, size in bytes_by_type.most_common()
        },
    }
    if model is None:
        facts["runs"] = False
        facts["why_not"] = problem
    else:
        facts["runs"] = True
        facts |= _model_facts(model)
        facts["warnings"] += warnings
        facts["mmproj"] = [str(path) for path in files if path not in checkpoint.files]
    facts["towers"] = [tower_facts(tower) for tower in towers]
    if is_mmproj(checkpoint):
        return facts
    facts["tokenizer"] = _tokenizer_facts(checkpoint, model)
    template = checkpoint.chat_template
    facts["chat_template"] = None if template is None else {"characters": len(template)}
    return facts


def _model_facts(model: Model) -> dict[str, Any]:
    config, plan = model.config, model.plan
    widths = {name: _width(config, name) for name in ("width", "hidden", "heads", "kv_heads", "head_dim")}
    experts = getattr(config, "experts", None)
    context = min(DEFAULT_CONTEXT, config.context)
    return {
        "family": model.architecture.name,
        "layers": config.layers,
        **widths,
        "experts": None if experts is None else {"count": experts.count, "used": experts.used},
        "vocabulary": plan.logits.width,
        "context": config.context,
        "cache_groups": [
            {
                "layers": len(group.caches),
                "kv_heads": group.kv_heads,
                "head_dim": group.head_dim,
                "window": group.window,
                "bytes_per_token_f16": group.bytes_per_token(2),
            }
            for group in plan.groups
        ],
        "kv_cache": {
            "type": "bf16",
            "bytes_per_token": sum(group.bytes_per_token(2) for group in plan.groups),
            "context": context,
            "bytes": cache_size(model, context),
        },
        "activation_bytes_per_token": plan.activation_bytes(1, 0),
        "warnings": list(model.warnings),
    }


def _width(config: ModelConfig, name: str) -> int | list[int] | None:
    """A number of the configuration, or the different ones that its layers have."""
    if hasattr(config, name):
        return int(getattr(config, name))
    found = sorted({getattr(layer, name) for layer in getattr(config, "blocks", ())})
    return found[0] if len(found) == 1 else found or None


def _tokenizer_facts(checkpoint: Checkpoint, model: Model | None) -> dict[str, Any]:
    try:
        tokenizer = tokenizer_of(checkpoint)
        if model is not None:
            tokenizer.fit(model.plan.logits.width)
    except (OlivineError, OSError) as error:
        return {"problem": str(error)}
    return {
        "kind": tokenizer.kind,
        "tokens": tokenizer.vocab_size,
        "special": len(tokenizer.special_tokens),
        "bos": tokenizer.bos_id,
        "eos": tokenizer.eos_id,
        "stop": sorted(tokenizer.stop_ids),
        "warnings": list(tokenizer.warnings),
    }


def _towers(
    checkpoint: Checkpoint, model: Model | None, mmproj: Path | None
) -> tuple[tuple[BuiltTower, ...], tuple[Path, ...], tuple[str, ...]]:
    """What a model sees and hears with, or an mmproj file has; its files; and warnings."""
    if model is None:
        return towers_in(checkpoint) if is_mmproj(checkpoint) else (), (), ()
    towers, warnings = towers_of(checkpoint, model, mmproj)
    return tuple(tower.built for tower in towers), towers[0].files if towers else (), warnings


def _try_model(checkpoint: Checkpoint) -> tuple[Model | None, str]:
    """A file that we cannot run can still be looked at."""
    if is_mmproj(checkpoint):
        return None, _ONLY_TOWERS
    try:
        return model_of(checkpoint), ""
    except (ModelError, TokenizerError) as error:
        return None, str(error)


def lines(facts: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The summary as labels and values."""
    files = "" if facts["files"] == 1 else f" in {facts['files']} files"
    yield "file", escaped(facts["path"])
    yield "format", f"{facts['format']}, {size(facts['file_bytes'])}{files}"
    yield "architecture", escaped(facts["architecture"]) + (f" ({facts['family']})" if facts["runs"] else "")
    if facts["name"]:
        yield "name", escaped(str(facts["name"]))
    yield "parameters", f"{count(facts['parameters'])} in {facts['tensor_count']} tensors"
    types = (f"{name} {size(kind['bytes'])} in {kind['tensors']}" for name, kind in facts["types"].items())
    yield "types", "\n".join(types)
    if facts["runs"]:
        hidden, kv_heads, head_dim = (_either(facts[name]) for name in ("hidden", "kv_heads", "head_dim"))
        heads = f"{facts['heads']} heads ({kv_heads} KV) of {head_dim}"
        yield "layers", f"{facts['layers']} of width {facts['width']}, MLP {hidden}, {heads}"
        if facts["experts"]:
            yield "experts", f"{facts['experts']['used']} of {facts['experts']['count']} a token"
        yield "vocabulary", f"{facts['vocabulary']:,}"
        yield "context", f"{facts['context']:,} tokens"
        yield "cache", "\n".join([*map(_cache_line, facts["cache_groups"]), _cache_total(facts["kv_cache"])])
    else:
        yield "runs", f"no: {facts['why_not']}"
    for path in facts.get("mmproj", ()):
        yield "towers", escaped(path)
    yield from tower_lines(facts["towers"])
    if "tokenizer" not in facts:
        return
    tokenizer = facts["tokenizer"]
    if "problem" in tokenizer:
        yield "tokenizer", f"none: {tokenizer['problem']}"
    else:
        special = f"{tokenizer['tokens']:,} tokens ({tokenizer['special']:,} special)"
        yield "tokenizer", f"{tokenizer['kind']}, {special}"
        yield "stops at", ", ".join(map(str, tokenizer["stop"])) or "nothing"
    template = facts["chat_template"]
    yield "template", "none" if template is None else f"{template['characters']:,} characters"
    for warning in [*facts.get("warnings", []), *tokenizer.get("warnings", [])]:
        yield "warning", escaped(warning)


def _either(value: int | list[int]) -> str:
    return " or ".join(map(str, value)) if isinstance(value, list) else str(value)


def _cache_line(group: dict[str, Any]) -> str:
    window = "all tokens" if group["window"] is None else f"the last {group['window']:,} tokens"
    layers = "1 layer keeps" if group["layers"] == 1 else f"{group['layers']} layers keep"
    return f"{layers} {window}: {size(group['bytes_per_token_f16'])} a token in 16 bits"


def _cache_total(cache: dict[str, Any]) -> str:
    each, whole = size(cache["bytes_per_token"]), size(cache["bytes"])
    return f"together {each} a token; {whole} for {cache['context']:,} tokens ({cache['type']})"


def _echo_tensors(checkpoint: Checkpoint) -> None:
    rows = [
        (tensor.name, tensor.dtype.name, " × ".join(map(str, tensor.shape)), f"{tensor.nbytes:,}")
        for tensor in checkpoint.tensors.values()
    ]
    click.echo()
    echo_table(("tensor", "type", "shape", "bytes"), rows, right=frozenset({2, 3}))


def _echo_metadata(checkpoint: Checkpoint) -> None:
    click.echo()
    for key, value in checkpoint.metadata.items():
        text = json_text(_plain(value))
        click.echo(f"{escaped(key)} = {text if len(text) <= 120 else text[:117] + '...'}")


def _tensor(tensor: Tensor) -> dict[str, Any]:
    return {
        "name": tensor.name,
        "type": tensor.dtype.name,
        "shape": list(tensor.shape),
        "bytes": tensor.nbytes,
    }


def _plain(value: Any) -> Any:
    """Metadata as JSON can hold it: long lists are cut, and bytes that are no text are replaced."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, list | tuple) and len(value) > 16:
        return [*map(_plain, value[:8]), f"… {len(value) - 8} more"]
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    return value
