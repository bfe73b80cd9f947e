"""The vision and audio towers of a multimodal model as a second GGUF file, the mmproj of llama.cpp.

models/tower_tables.py has the tables. Every tensor that they list must be there in its shape, and no other.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from olivine import models
from olivine.backends.reference.dequantize import dequantize
from olivine.convert.gguf_writer import Metadata, TensorInfo
from olivine.convert.stream import Output
from olivine.convert.types import KINDS, Kind
from olivine.dtypes import BF16, F32, DType
from olivine.errors import ModelError, RequestError, printable
from olivine.formats import Checkpoint
from olivine.formats.processor import colours
from olivine.models import names
from olivine.models.fields import Fields
from olivine.models.tower_tables import LIMITS, PREFIXES, TOWERS, UNUSED, Sizes, TowerTable, short_name
from olivine.tensor import Tensor

_MAX_SHOWN = 12


def is_there(checkpoint: Checkpoint) -> bool:
    """Whether a model has vision or audio towers."""
    known = checkpoint.architecture in TOWERS
    return known and any(short_name(name).startswith(PREFIXES) for name in checkpoint.tensors)


def kind_beside(kind: Kind) -> Kind:
    """The type of the towers for a model of that type: they are not quantized."""
    return KINDS["F16"] if kind.dtype.is_quantized else kind


def path_beside(path: Path, kind: Kind) -> Path:
    """`mmproj-NAME-F16.gguf` for NAME.gguf or NAME-TYPE.gguf."""
    stem = re.sub(rf"[-.]{kind.name}$", "", path.stem, flags=re.IGNORECASE)
    return path.with_name(f"mmproj-{stem}-{kind_beside(kind).name}.gguf")


def plan(checkpoint: Checkpoint, folder: Path, kind: Kind) -> tuple[Metadata, list[Output]]:
    """Metadata and tensors of the file."""
    if not is_there(checkpoint):
        raise RequestError(f"{checkpoint.path} has no towers for images or sound")
    if kind.dtype.is_quantized:
        raise RequestError(f"towers are not quantized, to {kind.name} or any type: choose F16, BF16 or F32")
    config = Fields(checkpoint.metadata)
    width = models.find(checkpoint.architecture, "hf").from_hf(config).width
    metadata: dict[str, Any] = {
        "general.architecture": "clip",
        "general.type": "mmproj",
        "general.name": checkpoint.title,
        "general.file_type": kind.file_type,
    }
    left: dict[str, Tensor] = {}
    outputs, problems = [], []
    for name, tensor in checkpoint.tensors.items():
        short = short_name(name)
        if short.startswith(PREFIXES) and not short.startswith(UNUSED):
            if short in left:
                problems.append(
                    f"{printable(name)} and {printable(left[short].name)} are both {printable(short)}"
                )
            left[short] = tensor
    names.refuse_types(left.values())
    for tower in TOWERS[checkpoint.architecture]:
        if (section := config.section(f"{tower.about}_config")) is None:
            continue
        c = section.with_defaults(tower.defaults)
        _check_fixed(tower, c)
        sizes = {**tower.sizes(c, config), "W": width}
        metadata |= _keys(tower, c, sizes, folder)
        for row in _rows(tower, sizes):
            found = left.pop(row.source, None)
            if found is None:
                problems += [] if row.is_limit else [f"{row.source} {list(row.shape)} is missing"]
            elif found.shape != row.shape:
                problems.append(
                    f"{printable(found.name)} is {list(found.shape)} and should be {list(row.shape)}"
                )
            else:
                outputs.append(_output(tower, row, found, kind.dtype))
    problems += [f"{tensor.name} {list(tensor.shape)} is not known" for tensor in left.values()]
    if problems:
        more = [f"… and {len(problems) - _MAX_SHOWN} more"] if len(problems) > _MAX_SHOWN else []
        what = "the towers for images and sound do not fit their configuration (--no-mmproj leaves them out):"
        raise ModelError("\n  ".join([what, *problems[:_MAX_SHOWN], *more]))
    return metadata, outputs


# ---- tensors


class _Row(NamedTuple):
    line: str  # GGUF's name in the table
    source: str
    name: str
    shape: tuple[int, ...]
    new_shape: tuple[int, ...]
    is_limit: bool = False


def _rows(tower: TowerTable, sizes: Sizes) -> Iterator[_Row]:
    """The table, one row per tensor."""
    for text in tower.tensors.strip().splitlines():
        source, line, *letters = text.split()
        source = source if line.startswith("mm.") else tower.home + source
        shape, _, new_shape = " ".join(letters).partition(" → ")
        before, after = _shape(shape, sizes), _shape(new_shape or shape, sizes)
        if 0 in before:
            continue
        for layer in map(str, range(sizes["L"]) if ".N." in line else (0,)):
            one = _Row(line, source.replace("N", layer), line.replace("N", layer), before, after)
            if line.endswith(".*"):
                yield _ending(one, "*", "weight")
                yield _ending(one, "*", "bias", before[:1])
            else:
                yield one
            if source.endswith(".linear.weight"):
                limited = one._replace(source=one.source.replace(".linear.", "."), is_limit=True)
                yield from (_ending(limited, "weight", limit, (1,)) for limit in LIMITS)


def _shape(letters: str, sizes: Sizes) -> tuple[int, ...]:
    return tuple(int(letter) if letter.isdecimal() else sizes[letter] for letter in letters.split())


def _ending(row: _Row, old: str, new: str, shape: tuple[int, ...] | None = None) -> _Row:
    line, source, name = (text.removesuffix(old) + new for text in (row.line, row.source, row.name))
    return _Row(line, source, name, shape or row.shape, shape or row.new_shape, row.is_limit)


def _type(tower: TowerTable, row: _Row, wanted: DType) -> DType:
    if len(row.new_shape) < 2:
        return F32
    if row.line == "v.patch_embd.weight" and wanted == BF16:
        return F32  # readers have no convolution in BF16
    return tower.types.get(row.line, wanted)


def _output(tower: TowerTable, row: _Row, tensor: Tensor, wanted: DType) -> Output:
    dtype, change = _type(tower, row, wanted), tower.changes.get(row.line)
    if change is None and not row.is_limit:
        return Output.of(row.name, replace(tensor, shape=row.new_shape), dtype)

    def parts() -> tuple[Tensor, ...]:
        values = dequantize(tensor)  # clipping limits may be infinite, weights may not
        changed = np.ascontiguousarray(values if change is None else change(values), "<f4")
        return (Tensor(tensor.name, F32, row.new_shape, changed.reshape(-1).view(np.uint8)),)

    return Output(TensorInfo(row.name, dtype, row.new_shape), parts)


# ---- metadata


def _keys(tower: TowerTable, c: Fields, sizes: Sizes, folder: Path) -> dict[str, Any]:
    keys: dict[str, Any] = {
        "projection_dim": sizes["W"],
        "embedding_length": sizes["D"],
        "feed_forward_length": sizes["F"],
        "block_count": sizes["L"],
        "attention.head_count": sizes["H"],
        "attention.layer_norm_epsilon": c.number("layer_norm_eps", c.number("rms_norm_eps", 1e-6)),
    }
    if tower.about == "vision":
        keys |= {"image_size": c.integer("image_size"), "patch_size": c.integer("patch_size")}
        keys |= colours(folder, *tower.colours)
        if sizes["pool"] != tower.pooling:
            keys["projector.scale_factor"] = sizes["pool"]
    named = {f"clip.{tower.about}.{key}": value for key, value in keys.items()}
    return {f"clip.has_{tower.about}_encoder": True, **tower.told, **named}


def _check_fixed(tower: TowerTable, c: Fields) -> None:
    for key, usual in tower.fixed.items():
        section, _, name = key.rpartition(".")
        told = c.section(section) if section else c
        if told is None:
            continue
        found = told.text(name, usual) if isinstance(usual, str) else told.number(name, usual, low=-1.0)
        if found != usual:
            what = f"GGUF has no way to say this model's {tower.about}_config.{key} ({found!r})"
            raise ModelError(f"{what}; --no-mmproj leaves its towers out")
