"""A model with a published shape and random weights, without a file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from olivine import models
from olivine.dtypes import DTYPES
from olivine.tensor import Tensor
from synthetic.blocks import RandomWeights
from synthetic.shapes import Shape
from synthetic.types import type_of


def metadata_of(shape: Shape) -> dict[str, Any]:
    """What a GGUF file of the shape would say."""
    named: dict[str, Any] = {f"{shape.architecture}.{key}": value for key, value in shape.metadata().items()}
    return {"general.architecture": shape.architecture, **named}


def tensors_of(shape: Shape, kind: str, *, pure: bool = False, seed: int = 0) -> Mapping[str, Tensor]:
    types = {name: type_of(name, size, kind, shape.layers, pure=pure) for name, size in shape.tensors()}
    matrices = RandomWeights(seed).tensors(
        (types[name], size) for name, size in shape.tensors() if len(size) > 1
    )
    found: dict[str, Tensor] = {}
    for name, size in shape.tensors():
        if len(size) == 1:
            found[name] = Tensor(name, DTYPES["F32"], size, shape.vector(name, size[0]).view(np.uint8))
            continue
        data = np.concatenate(list(next(matrices)))
        found[name] = Tensor(name, DTYPES[types[name].name], size, data)
    return found


def model_in_memory(shape: Shape, kind: str, *, pure: bool = False, seed: int = 0) -> models.Model:
    tensors = tensors_of(shape, kind, pure=pure, seed=seed)
    return models.build(shape.architecture, "gguf", metadata_of(shape), tensors)


def hollow_model(shape: Shape, kind: str) -> models.Model:
    """A model that can be planned and divided, and not run: its tensors have a size, and no memory."""
    found: dict[str, Tensor] = {}
    for name, size in shape.tensors():
        if len(size) == 1:  # which the plan may depend on
            found[name] = Tensor(name, DTYPES["F32"], size, shape.vector(name, size[0]).view(np.uint8))
            continue
        dtype = DTYPES[type_of(name, size, kind, shape.layers, pure=False).name]
        stored = int(np.prod(size)) // dtype.block_size * dtype.block_bytes
        found[name] = Tensor(name, dtype, size, np.broadcast_to(np.uint8(0), (stored,)))
    return models.build(shape.architecture, "gguf", metadata_of(shape), found)
