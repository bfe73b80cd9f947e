"""Converts an open checkpoint to a file."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from olivine import models
from olivine.backends.cpu import default_threads
from olivine.convert import mmproj as projector
from olivine.convert import qwen3c
from olivine.convert.files import refuse_destination, refuse_full_disk, refuse_strays, temporary_files
from olivine.convert.gguf_writer import Metadata, TensorInfo, Verbatim, header, padding
from olivine.convert.stream import Output, converted
from olivine.convert.translate import translate
from olivine.convert.types import Kind, Mixture, kind_of
from olivine.convert.vocabulary import from_hugging_face, lost_ends, more_spaces
from olivine.errors import RequestError, TokenizerError
from olivine.formats import Checkpoint, open_checkpoint
from olivine.formats import gguf as gguf_reader
from olivine.formats.checkpoint import TOOL_USE
from olivine.formats.mapping import map_file
from olivine.models import names
from olivine.models.fields import Fields
from olivine.tokenizer import from_gguf
from olivine.tokenizer.gguf import KEY
from olivine.tokenizer.settings import Settings

QWEN3C = "qwen3.c"
_BESIDE = (".json", ".jinja", ".model", ".txt")  # the files of a folder beside its tensors
_QUANTIZATION_VERSION = 2
# Metadata of the source file that is not copied.
_REPLACED = ("general.file_type", "general.quantization_version", "general.alignment", "split.")
# Called with bytes done, bytes in total, and the current tensor.
Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Report:
    """The file that was written."""

    path: Path
    bytes: int
    types: dict[str, tuple[int, int]]  # tensors and bytes of each storage type
    warnings: tuple[str, ...] = ()
    mmproj: Report | None = None  # the second file, of a multimodal model


@dataclass(frozen=True)
class _File:
    """A GGUF file to write."""

    path: Path
    metadata: Metadata
    outputs: list[Output]


def convert(
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    type: str,
    *,
    mmproj: Literal["with", "without", "only"] = "with",
    threads: int | None = None,
    force: bool = False,
    progress: Progress = lambda done, total, name: None,
) -> Report:
    """Writes a model in another type: as GGUF, or for `type` "qwen3.c" as that program's files.

    A model that sees or hears is two GGUF files, of which `mmproj` may leave out the second, or the first.
    Files appear under their names when they are complete. `force` replaces those that are there.
    """
    path = Path(destination)
    checkpoint = open_checkpoint(source)
    sources = list(checkpoint.files)
    if checkpoint.path.is_dir():  # its settings and its tokenizer are read too
        sources += [each for each in checkpoint.path.iterdir() if each.suffix in _BESIDE]
    refuse_destination(path, sources, force=force)
    threads = threads or default_threads()
    if checkpoint.format == "qwen3.c":
        raise RequestError(
            f"{checkpoint.path} is a qwen3.c file, which leaves out too much: convert its original"
        )
    if type.lower() == QWEN3C:
        if mmproj == "only":
            raise RequestError("qwen3.c neither sees nor hears: for mmproj choose F16, BF16 or F32")
        return _to_qwen3c(checkpoint, path, threads, force, progress)
    kind = kind_of(type)
    warnings: tuple[str, ...] = ()
    if mmproj == "only":
        files = [_File(path, *projector.plan(checkpoint, checkpoint.folder, kind))]
    else:
        plan = _plan_from_gguf if checkpoint.naming == "gguf" else _plan_from_hf
        metadata, outputs, warnings = plan(checkpoint, kind)
        files = [_File(path, metadata, outputs)]
        if mmproj == "with" and projector.is_there(checkpoint):
            second = projector.path_beside(path, kind)
            refuse_destination(second, sources, force=force, otherwise="--no-mmproj leaves it")
            beside = projector.kind_beside(kind)
            files.append(_File(second, *projector.plan(checkpoint, checkpoint.folder, beside)))
    first, *more = _write_gguf(files, threads, progress)
    return replace(first, warnings=warnings, mmproj=more[0] if more else None)


def _plan_from_hf(checkpoint: Checkpoint, kind: Kind) -> tuple[Metadata, list[Output], tuple[str, ...]]:
    """Metadata, tensors and warnings of a safetensors folder."""
    model = models.build(checkpoint.architecture, "hf", checkpoint.metadata, checkpoint.tensors)
    t = translate(model)
    rows = t.weights["token_embd.weight"].shape[0]
    vocabulary = from_hugging_face(checkpoint.folder, rows, t.tokenizer)
    metadata = {
        "general.architecture": t.architecture,
        "general.type": "model",
        "general.name": checkpoint.title,
        **_sampling(checkpoint),
        **_file_type(kind),
        **t.metadata,
        f"{t.architecture}.vocab_size": rows,
        **vocabulary,
        **_suppressed(checkpoint, rows),
    }
    if checkpoint.chat_template is not None:
        metadata["tokenizer.chat_template"] = checkpoint.chat_template
    if checkpoint.tool_template is not None:
        metadata["tokenizer.chat_templates"] = [TOOL_USE]
        metadata[f"tokenizer.chat_template.{TOOL_USE}"] = checkpoint.tool_template
    experts = t.metadata.get(f"{t.architecture}.expert_count", 0)
    mixture = Mixture(kind, t.architecture, model.config.layers, t.weights.keys(), experts)
    outputs = []
    for name in sorted(t.weights, key=_place):
        weight = t.weights[name]
        dtype = mixture.from_published(name, weight.shape, weight.published)
        outputs.append(Output(TensorInfo(name, dtype, weight.shape), weight.parts))
    stop_ids = Settings.read(checkpoint.folder).stop_ids
    lost = lost_ends(stop_ids, from_gguf(vocabulary), "GGUF has no key")
    return metadata, outputs, (*t.warnings, *lost, *more_spaces(checkpoint.folder, vocabulary))


def _plan_from_gguf(checkpoint: Checkpoint, kind: Kind) -> tuple[Metadata, list[Output], tuple[str, ...]]:
    """The same of a GGUF file. Everything but the tensors' types is copied, for any architecture."""
    architecture = checkpoint.architecture
    if architecture == "clip":
        raise RequestError(f"{checkpoint.path} is a mmproj file: --mmproj-only makes it of the original")
    names.refuse_types(checkpoint.tensors.values())
    told = Fields(checkpoint.metadata, f"{architecture}.")
    layers = told.integer("block_count", high=1024)
    experts = told.integer("expert_count", 0, low=0)
    kept = gguf_reader.entries(map_file(checkpoint.files[0]))
    new = _file_type(kind)
    metadata: dict[str, Any] = {
        key: new.pop(key) if key in new else Verbatim(data)
        for key, data in kept.items()
        if key in new or not key.startswith(_REPLACED)
    }
    mixture = Mixture(kind, architecture, layers, checkpoint.tensors.keys(), experts)
    outputs, coarse = [], Counter[str]()
    for name, tensor in checkpoint.tensors.items():
        dtype = mixture.type_of(name, tensor.shape, tensor.dtype)
        outputs.append(Output.of(name, tensor, dtype))
        if tensor.dtype.is_quantized and dtype != tensor.dtype:
            coarse[tensor.dtype.name] += 1
    warnings: tuple[str, ...] = ()
    if coarse:
        types = " and ".join(coarse)
        warnings = (f"the source is already quantized ({types}): what that lost stays lost",)
    return {**metadata, **new}, outputs, warnings


def _write_gguf(files: list[_File], threads: int, progress: Progress) -> list[Report]:
    starts = [header(file.metadata, [output.info for output in file.outputs]) for file in files]
    reports = [_report(file, len(start)) for file, start in zip(files, starts, strict=True)]
    done, total = 0, sum(report.bytes for report in reports)
    refuse_full_disk(files[0].path, total)
    with temporary_files(*(file.path for file in reversed(files))) as paths:  # the model appears last
        for file, start, path in zip(files, starts, reversed(paths), strict=True):
            with path.open("wb") as draft:
                done += draft.write(start)
                of_tensor = 0
                for output, data in converted(file.outputs, threads):
                    done += draft.write(data.data)
                    of_tensor += len(data)
                    if of_tensor == output.info.nbytes:
                        done += draft.write(padding(of_tensor))
                        of_tensor = 0
                    progress(done, total, output.info.name)
    return reports


def _report(file: _File, start: int) -> Report:
    types: dict[str, tuple[int, int]] = {}
    for info in (output.info for output in file.outputs):
        count, size = types.get(info.dtype.name, (0, 0))
        types[info.dtype.name] = (count + 1, size + info.nbytes)
        start += info.nbytes + len(padding(info.nbytes))
    return Report(file.path, start, types)


def _to_qwen3c(checkpoint: Checkpoint, path: Path, threads: int, force: bool, progress: Progress) -> Report:
    model = models.build(checkpoint.architecture, checkpoint.naming, checkpoint.metadata, checkpoint.tensors)
    shape = qwen3c.Shape.of(model)
    stop_ids = set[int]()
    if checkpoint.naming == "hf":
        vocabulary = from_hugging_face(checkpoint.folder, shape.vocabulary)
        stop_ids = Settings.read(checkpoint.folder).stop_ids
    else:
        vocabulary = dict(checkpoint.metadata)
    warnings = model.warnings
    templates = qwen3c.templates(checkpoint.chat_template)
    if not templates:
        without = "the model has no chat template of Qwen's, so no .template files are written"
        warnings += (f"{without}: qwen3.c itself does not start without them",)
    tokenizer, lost = qwen3c.tokenizer_file(vocabulary, stop_ids)
    warnings += lost
    contents = {".tokenizer": tokenizer}
    contents |= {ending: text.encode() for ending, text in templates.items()}
    beside = {path.with_name(path.name + ending): data for ending, data in contents.items()}
    for companion in beside:
        refuse_destination(companion, checkpoint.files, force=force)
    companions = [path.with_name(path.name + ending) for ending in qwen3c.COMPANIONS]
    refuse_strays(companion for companion in companions if companion not in beside)
    refuse_full_disk(path, shape.nbytes + sum(map(len, beside.values())))
    with temporary_files(*beside, path) as (*small, large):
        for draft, data in zip(small, beside.values(), strict=True):
            draft.write_bytes(data)
        with large.open("wb") as file:
            done = 0
            for name, part in qwen3c.model_file(model, shape, threads):
                done += file.write(part)
                progress(done, shape.nbytes, name)
    types = {
        f"Q8_G{shape.group}": (len([*shape.matrices()]), shape.matrix_bytes),
        "F32": (len([*shape.norms()]), shape.norm_bytes),
    }
    return Report(path, shape.nbytes, types, warnings)


def _file_type(kind: Kind) -> dict[str, Any]:
    told: dict[str, Any] = {"general.file_type": kind.file_type}
    if kind.dtype.is_quantized:
        told["general.quantization_version"] = _QUANTIZATION_VERSION
    return told


def _sampling(checkpoint: Checkpoint) -> dict[str, Any]:
    """The publisher's sampling parameters, if generation_config.json has any."""
    told = checkpoint.generation
    if told.get("do_sample") is False:
        return {"general.sampling.temp": 0.0}
    found: dict[str, Any] = {}
    for name, key in gguf_reader.SAMPLING.items():
        value = told.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1 << 31:
            return {}  # invalid: readers of the folder ignore all of it too
        found[f"general.sampling.{key}"] = int(value) if name == "top_k" else float(value)
    if "general.sampling.penalty_repeat" in found:
        found["general.sampling.penalty_last_n"] = -1  # all tokens, not the last 64
    if found or told.get("do_sample") is True:
        found.setdefault("general.sampling.temp", 1.0)  # transformers' default; llama.cpp's differs
    return found


def _suppressed(checkpoint: Checkpoint, rows: int) -> dict[str, Any]:
    """The tokens that generation_config.json suppresses, if any."""
    listed = checkpoint.generation.get("suppress_tokens")
    if not isinstance(listed, list) or not listed:
        return {}
    if not all(type(token) is int and 0 <= token < rows for token in listed):
        raise TokenizerError(f"generation_config.json: suppress_tokens: must be token ids below {rows}")
    return {f"{KEY}suppress_tokens": np.array(listed, np.int32)}


def _place(name: str) -> tuple[int, int, str]:
    """The embedding first, then the layers in order, then the rest."""
    if match := re.match(r"blk\.(\d+)\.", name):
        return 1, int(match[1]), name
    return (0 if name.startswith(("token_embd", "per_layer_", "rope_freqs")) else 2), 0, name
