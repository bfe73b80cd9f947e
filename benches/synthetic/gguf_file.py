"""A shape and a storage type as a GGUF file that any engine opens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from olivine.convert.files import temporary_files
from olivine.convert.gguf_writer import TensorInfo, header, padding
from olivine.dtypes import DTYPES
from synthetic.blocks import RandomWeights
from synthetic.in_memory import metadata_of
from synthetic.shapes import Shape
from synthetic.types import KINDS, type_of
from synthetic.vocabulary import vocabulary_for


def write_gguf(
    path: Path, shape: Shape, kind: str, *, name: str = "random", seed: int = 0, pure: bool = False
) -> Path:
    """Writes the file, tensor by tensor and never holding one whole. `kind` is a key of `KINDS`."""
    metadata = {
        **{key: _stored(value) for key, value in metadata_of(shape).items()},
        "general.name": name,
        "general.file_type": int(KINDS[kind][1]),
        "general.quantization_version": 2,
        "general.sampling.temp": 0.0,  # random weights: the likeliest token, so that runs can be compared
        **_vocabulary(shape),
    }
    types = {tensor: type_of(tensor, size, kind, shape.layers, pure=pure) for tensor, size in shape.tensors()}
    infos = [TensorInfo(tensor, DTYPES[types[tensor].name], size) for tensor, size in shape.tensors()]
    matrices = RandomWeights(seed).tensors(
        (types[info.name], info.shape) for info in infos if len(info.shape) > 1
    )
    with temporary_files(path) as (draft,), draft.open("wb") as file:
        file.write(header(metadata, infos))
        for info in infos:
            if len(info.shape) == 1:
                file.write(shape.vector(info.name, info.shape[0]))
            else:
                for piece in next(matrices):
                    file.write(piece)
            file.write(padding(info.nbytes))
    return path


def _stored(value: Any) -> Any:
    """Lists of numbers as the arrays that a file has: of 32 bits, or of flags."""
    if not isinstance(value, list):
        return value
    return np.array(value, bool if isinstance(value[0], bool) else np.int32)


def _vocabulary(shape: Shape) -> dict[str, Any]:
    made = vocabulary_for(shape.architecture, shape.vocabulary)
    told: dict[str, Any] = {
        "model": made.model,
        "pre": made.pre,
        "tokens": made.tokens,
        "token_type": np.array(made.types, np.int32),
    }
    if made.scores:
        told["scores"] = np.array(made.scores, np.float32)
    if made.model != "gpt2":
        told["add_space_prefix"] = False
    if made.merges:
        told["merges"] = [f"{left} {right}" for left, right in made.merges]
    told |= {"bos_token_id": made.bos, "eos_token_id": made.eos, "padding_token_id": made.pad}
    if made.unknown is not None:
        told["unknown_token_id"] = made.unknown
    told["add_bos_token"] = made.add_bos
    return {f"tokenizer.ggml.{key}": value for key, value in told.items()}
