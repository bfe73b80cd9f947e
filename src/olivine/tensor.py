"""A tensor as it lies in a file. A leaf module: formats make them, models name them, backends read them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from olivine.dtypes import DType

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Tensor:
    """A view of stored bytes. The last axis of `shape` is contiguous and holds whole blocks."""

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

    def columns(self, start: int, stop: int) -> Tensor:
        """Columns [start, stop) of every row, which must be whole blocks. They are copied together."""
        size = self.dtype.block_size
        if not 0 <= start <= stop <= self.shape[-1] or start % size or stop % size:
            told = f"columns {start}:{stop} of {self.shape[-1]} in {self.name}"
            raise IndexError(f"{told}, which has blocks of {size}")
        first, last = start // size, stop // size

        def cut(data: Bytes, size: int) -> Bytes:
            rows = data.reshape(self.row_count, -1)[:, first * size : last * size]
            return np.ascontiguousarray(rows).reshape(-1)

        scales = None if self.scales is None else cut(self.scales, self.dtype.scale_bytes)
        shape = (*self.shape[:-1], stop - start)
        return Tensor(self.name, self.dtype, shape, cut(self.data, self.dtype.block_bytes), scales)
