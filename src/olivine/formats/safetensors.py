"""safetensors: a model folder as its publisher ships it, or one file of such a folder.

A file is a 64-bit header length, a JSON header {name: {dtype, shape, data_offsets}} and the data, whose
offsets count from the end of the header. A folder holds one such file, or several with an index that says
which tensor is in which; config.json, generation_config.json and the chat template are beside them.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from olivine.dtypes import BF16, F16, F32, not_run
from olivine.errors import CheckpointError, is_unicode, printable
from olivine.formats.checkpoint import TOOL_USE, Checkpoint, Tensor
from olivine.formats.checks import is_integer, refuse_overlap, shown, tensor_field, unsupported_format
from olivine.formats.mapping import Source, map_file, read_text
from olivine.formats.strict_json import parse_object, read_object

_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_SHARD = re.compile(r"model-(\d{5})-of-(\d{5})\.safetensors", re.ASCII)

_MAX_HEADER_BYTES = 100_000_000  # the safetensors library's own limit
_MAX_INDEX_BYTES = 64 << 20
_MAX_CONFIG_BYTES = 64 << 20  # tokenizer_config.json lists every added token
_MAX_TEMPLATE_BYTES = 1 << 20
_MAX_NAME_CHARACTERS = 4096
_MAX_DIMENSIONS = 8

_FLOATS = {"F32": F32, "F16": F16, "BF16": BF16}
# Buffers such as position_ids: checked like the rest, then left out.
_INTEGER_BYTES = {"BOOL": 1, "U8": 1, "I8": 1, "U16": 2, "I16": 2, "U32": 4, "I32": 4, "U64": 8, "I64": 8}
# Element sizes of types that no backend supports; the sizes of others are not known.
_OTHER_BYTES = {**_INTEGER_BYTES, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "F64": 8, "C64": 8}


@dataclass(frozen=True)
class Part:
    """What one file holds."""

    source: Source
    tensors: dict[str, Tensor]
    skipped: frozenset[str]  # integer tensors that are not weights


def is_model_folder(folder: Path) -> bool:
    """Whether the folder holds a safetensors model under the names that publishers use."""
    return (
        os.path.lexists(folder / _SINGLE)
        or os.path.lexists(folder / _INDEX)
        or any(_SHARD.fullmatch(name) for name in os.listdir(folder))
    )


def open_folder(folder: Path) -> Checkpoint:
    """The model in a folder: one file, or the shards that its index (else their numbering) names."""
    if os.path.lexists(folder / _SINGLE):
        names = [_SINGLE]
    elif os.path.lexists(folder / _INDEX):
        return _checkpoint(folder, folder, _indexed_parts(folder))
    else:
        names = _numbered_shards(folder)
    return _checkpoint(folder, folder, [parse(map_file(folder / name)) for name in names])


def open_file(source: Source) -> Checkpoint:
    """The model in one file, with config.json beside it."""
    path = source.path
    if _SHARD.fullmatch(path.name):
        raise CheckpointError(path, "", f"is one part of a model: open its folder, {path.parent}")
    return _checkpoint(path, path.parent, [parse(source)])


def parse(source: Source) -> Part:
    """The tensors of one file, as views of its data."""
    path, buffer = source.path, source.buffer
    if buffer[8:9] != b"{" and (what := unsupported_format(buffer[:32])):
        raise CheckpointError(path, "", f"is {what}")
    if source.size < 8:
        raise CheckpointError(path, "header length", "the file ends before it")
    length = int.from_bytes(buffer[:8], "little")
    if length > min(source.size - 8, _MAX_HEADER_BYTES):
        problem = f"{length} bytes do not fit a file of {source.size} (and {_MAX_HEADER_BYTES} is the limit)"
        raise CheckpointError(path, "header length", problem)
    try:
        text = buffer[8 : 8 + length].decode()
    except UnicodeDecodeError as error:
        raise CheckpointError(path, "header", f"byte {error.start} is not valid UTF-8") from error
    header = parse_object(path, "header", text, unique=True)
    if not isinstance(header.pop("__metadata__", {}), dict):
        raise CheckpointError(path, "__metadata__", "is not an object")

    tensors: dict[str, Tensor] = {}
    extents = []
    body = source.data[8 + length :]
    for name, entry in header.items():
        dtype, shape, begin, end = _check_entry(path, name, entry, body.size)
        extents.append((begin, end, name))
        if dtype in _FLOATS:
            tensors[name] = Tensor(name, _FLOATS[dtype], shape, body[begin:end])
        elif dtype not in _INTEGER_BYTES or _is_weight(name):
            kind = not_run(printable(dtype), 1, _OTHER_BYTES.get(dtype, 0))
            tensors[name] = Tensor(name, kind, shape, body[begin:end])
    refuse_overlap(path, extents)
    return Part(source, tensors, frozenset(header.keys() - tensors.keys()))


def _check_entry(path: Path, name: str, entry: object, size: int) -> tuple[str, tuple[int, ...], int, int]:
    """dtype, shape, begin and end of one header entry, every one of them checked."""

    def fail(problem: str) -> CheckpointError:
        return CheckpointError(path, tensor_field(name), problem)

    if not 0 < len(name) <= _MAX_NAME_CHARACTERS or not is_unicode(name):
        raise fail("is not a usable name")
    if not isinstance(entry, dict) or not {"dtype", "shape", "data_offsets"} <= entry.keys():
        raise fail("must have dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str):
        raise fail("dtype is not a string")
    if not isinstance(shape, list) or len(shape) > _MAX_DIMENSIONS:
        raise fail(f"shape is not a list of at most {_MAX_DIMENSIONS} numbers")
    if not all(is_integer(extent) and extent > 0 for extent in shape):
        raise fail("shape has an entry that is not a positive whole number")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(is_integer, offsets)):
        raise fail("data_offsets is not a pair of whole numbers")
    begin, end = offsets
    if not 0 <= begin <= end <= size:
        raise fail(f"data_offsets {begin}..{end} are not inside the file's {size} bytes of data")

    item = _FLOATS[dtype].block_bytes if dtype in _FLOATS else _OTHER_BYTES.get(dtype)
    if item is not None and math.prod(shape) * item != end - begin:
        raise fail(f"shape {shape} of {dtype} does not take the {end - begin} bytes of its data_offsets")
    return dtype, tuple(shape) or (1,), begin, end


def _is_weight(name: str) -> bool:
    """Whether a tensor of integers is a quantized weight, and not a buffer."""
    return "weight" in name.rpartition(".")[2]


def _indexed_parts(folder: Path) -> list[Part]:
    """The tensors that the index names, each from the file that it names."""
    path = folder / _INDEX
    weight_map = read_object(path, _MAX_INDEX_BYTES, unique=True).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(path, "weight_map", "is missing, empty or not an object")
    names: dict[str, set[str]] = {}
    for name, file in weight_map.items():
        if not isinstance(file, str) or not _is_plain_file_name(file):
            problem = f"{shown(file)} is not the plain name of a file in this folder"
            raise CheckpointError(path, f"weight_map.{printable(name)}", problem)
        names.setdefault(file, set()).add(name)

    parts = []
    for file, wanted in names.items():
        part = parse(map_file(folder / file))
        if missing := wanted - part.tensors.keys() - part.skipped:
            problem = f"is not in {printable(file)}, where the index puts it"
            raise CheckpointError(path, f"weight_map.{printable(min(missing))}", problem)
        chosen = {name: tensor for name, tensor in part.tensors.items() if name in wanted}
        parts.append(Part(part.source, chosen, part.skipped))
    return parts


def _numbered_shards(folder: Path) -> list[str]:
    """The names of model-00001-of-0000N.safetensors and so on; each must be there, and no other series."""
    matches = [match for name in os.listdir(folder) if (match := _SHARD.fullmatch(name))]
    totals = {match[2] for match in matches}
    if len(totals) != 1:
        raise CheckpointError(folder, "", f"has shards of different series (of {', '.join(sorted(totals))})")
    total = totals.pop()
    present = {match[0] for match in matches}
    expected = [f"model-{number:05}-of-{total}.safetensors" for number in range(1, int(total) + 1)]
    missing = [name for name in expected if name not in present]
    if missing or len(expected) != len(present):
        odd = missing or sorted(present.difference(expected))
        what = "are missing" if missing else "are out of range"
        shown = ", ".join(odd[:3]) + (", …" if len(odd) > 3 else "")
        raise CheckpointError(folder, "", f"{len(odd)} of {total} shards {what}: {shown}")
    return expected


def _checkpoint(path: Path, folder: Path, parts: Sequence[Part]) -> Checkpoint:
    tensors: dict[str, Tensor] = {}
    for part in parts:
        for name, tensor in part.tensors.items():
            if name in tensors:
                raise CheckpointError(part.source.path, tensor_field(name), "is in another shard as well")
            tensors[name] = tensor
    if not os.path.lexists(folder / "config.json"):
        raise CheckpointError(folder / "config.json", "", "is missing: it says what model the tensors make")
    generation = folder / "generation_config.json"
    templates = _chat_templates(folder)
    return Checkpoint(
        path=path,
        format="safetensors",
        naming="hf",
        metadata=read_object(folder / "config.json", _MAX_CONFIG_BYTES),
        tensors=tensors,
        chat_template=templates.get("default"),
        tool_template=templates.get(TOOL_USE),
        generation=read_object(generation, _MAX_CONFIG_BYTES) if os.path.lexists(generation) else {},
        files=tuple(part.source.path for part in parts),
        file_bytes=sum(part.source.size for part in parts),
        maps=tuple(part.source.file for part in parts if part.source.file is not None),
    )


def _chat_templates(folder: Path) -> dict[str, str]:
    """The templates by name, from the first of the three places that has one; where it has one only, that is
    the default."""
    further = folder / "additional_chat_templates" / f"{TOOL_USE}.jinja"
    files = {"default": folder / "chat_template.jinja", TOOL_USE: further}
    there = {name: path for name, path in files.items() if os.path.lexists(path)}
    found = {name: read_text(path, _MAX_TEMPLATE_BYTES) for name, path in there.items()}
    for path in (folder / "chat_template.json", folder / "tokenizer_config.json"):
        if found:
            break
        if os.path.lexists(path):
            found = _templates_of(path, read_object(path, _MAX_CONFIG_BYTES).get("chat_template"))
    return found


def _templates_of(path: Path, value: Any) -> dict[str, str]:
    if not isinstance(value, list):
        value = [{"name": "default", "template": value}]
    elif not all(isinstance(entry, dict) for entry in value):
        raise CheckpointError(path, "chat_template", "is not a list of objects with name and template")
    found = {}
    for name in ("default", TOOL_USE):
        text = next((entry.get("template") for entry in value if entry.get("name") == name), None)
        if text is None:
            continue
        if not isinstance(text, str) or len(text) > _MAX_TEMPLATE_BYTES or not is_unicode(text):
            raise CheckpointError(
                path, "chat_template", f"is not a text of at most {_MAX_TEMPLATE_BYTES} bytes"
            )
        found[name] = text
    return found


def _is_plain_file_name(name: str) -> bool:
    separators = ("/", "\\", "\0", ":")  # of every system: an index must mean the same on all of them
    return name not in ("", ".", "..") and not any(mark in name for mark in separators) and is_unicode(name)
