"""What every file format becomes: names, and views of the memory map. No reader copies tensor data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from olivine.dtypes import DType
from olivine.errors import CheckpointError

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Tensor:
    """A tensor as it lies in the file. The last axis of `shape` is contiguous and holds whole blocks."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    data: Bytes  # 1-D, read-only, exactly the tensor's bytes
    scales: Bytes | None = None  # qwen3.c only: the bytes of one float32 a block, perhaps unaligned

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.data.size + (0 if self.scales is None else self.scales.size)

    @property
    def row_count(self) -> int:
        return math.prod(self.shape[:-1])

    def rows(self, start: int, stop: int) -> Tensor:
        """Rows [start, stop) of the tensor seen as a matrix with rows of `shape[-1]` elements. No copy."""
        if not 0 <= start <= stop <= self.row_count:
            raise IndexError(f"rows {start}:{stop} of {self.row_count} in {self.name}")
        blocks = self.shape[-1] // self.dtype.block_size
        step = blocks * self.dtype.block_bytes
        data = self.data[start * step : stop * step]
        scales = None
        if self.scales is not None:
            step = blocks * self.dtype.scale_bytes
            scales = self.scales[start * step : stop * step]
        return Tensor(self.name, self.dtype, (stop - start, self.shape[-1]), data, scales)


@dataclass(frozen=True)
class Checkpoint:
    """A read-only view of one model's files."""

    path: Path  # what the user named: a folder, or a file
    format: Literal["safetensors", "gguf", "qwen3.c"]
    # Whose names `metadata` and `tensors` use: Hugging Face's config.json, or GGUF's keys.
    naming: Literal["hf", "gguf"]
    metadata: Mapping[str, Any]
    tensors: Mapping[str, Tensor]
    chat_template: str | None = None
    # generation_config.json of a safetensors folder; empty elsewhere.
    generation: Mapping[str, Any] = field(default_factory=dict)
    files: tuple[Path, ...] = ()  # the files that hold the tensors
    file_bytes: int = 0

    @property
    def architecture(self) -> str:
        """The publisher's name of the architecture: `general.architecture`, or config.json's `model_type`."""
        key = "general.architecture" if self.naming == "gguf" else "model_type"
        value = self.metadata.get(key)
        if not isinstance(value, str) or not value:
            raise CheckpointError(self.path, key, "is missing, so nothing says what model this is")
        return value
