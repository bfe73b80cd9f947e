"""Writes a GGUF file, version 3, up to its tensors' data."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from olivine.dtypes import DType
from olivine.errors import ModelError
from olivine.formats.ggml_types import TYPE_NAMES
from olivine.formats.gguf import MAGIC

ALIGNMENT = 32
_VERSION = 3
_MAX_NAME_BYTES = 63  # llama.cpp's limit
_TYPE_NUMBERS = {name: number for number, name in TYPE_NAMES.items()}

_U32, _I32, _F32, _BOOL, _STRING, _ARRAY, _U64, _I64, _F64 = 4, 5, 6, 7, 8, 9, 10, 11, 12
_ELEMENTS = {"i4": _I32, "u4": _U32, "f4": _F32, "i8": _I64, "u8": _U64, "f8": _F64, "b1": _BOOL}


@dataclass(frozen=True)
class Verbatim:
    """The raw bytes of a value, with its type, from another file."""

    data: bytes


# bool, int, float, str, a list of strings, a NumPy array, or `Verbatim`.
Metadata = Mapping[str, Any]


@dataclass(frozen=True)
class TensorInfo:
    name: str
    dtype: DType
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return self.dtype.nbytes(int(np.prod(self.shape, dtype=object)))


def padding(size: int) -> bytes:
    """The padding after so many bytes, to align the next tensor."""
    return bytes(-size % ALIGNMENT)


def header(metadata: Metadata, tensors: Iterable[TensorInfo]) -> bytes:
    """Everything before the data. Data follows in the tensors' order, with `padding` after each."""
    infos, offset = [], 0
    for tensor in tensors:
        name = tensor.name.encode()
        if len(name) > _MAX_NAME_BYTES:
            raise ModelError(f"the tensor name {tensor.name!r} is longer than the {_MAX_NAME_BYTES} of GGUF")
        extents = tensor.shape[::-1]  # the fastest-varying dimension first
        infos.append(
            _string(name)
            + struct.pack(f"<I{len(extents)}Q", len(extents), *extents)
            + struct.pack("<IQ", _TYPE_NUMBERS[tensor.dtype.name], offset)
        )
        offset += tensor.nbytes + len(padding(tensor.nbytes))
    entries = [_string(key.encode()) + _value(key, value) for key, value in metadata.items()]
    start = MAGIC + struct.pack("<IQQ", _VERSION, len(infos), len(entries))
    made = b"".join([start, *entries, *infos])
    return made + padding(len(made))


def _string(data: bytes) -> bytes:
    return struct.pack("<Q", len(data)) + data


def _text(value: str) -> bytes:
    """A string of the file; bytes of the source that are not UTF-8 are preserved."""
    return _string(value.encode("utf-8", "surrogateescape"))


def _value(key: str, value: Any) -> bytes:
    """A type and a value. Integers are u32 and other numbers f32, as readers expect, if they fit."""
    match value:
        case Verbatim(data):
            return data
        case bool():
            return struct.pack("<I?", _BOOL, value)
        case int():
            if 0 <= value < 2**32:
                return struct.pack("<II", _U32, value)
            if -(2**63) <= value < 2**63:
                return struct.pack("<Iq", _I64, value)
        case float():
            return struct.pack("<If", _F32, value)
        case str():
            return struct.pack("<I", _STRING) + _text(value)
        case list():
            return struct.pack("<IIQ", _ARRAY, _STRING, len(value)) + b"".join(map(_text, value))
        case np.ndarray():
            return struct.pack("<IIQ", _ARRAY, _ELEMENTS[value.dtype.str[1:]], len(value)) + _little(value)
    raise ModelError(f"{key} = {value!r} has no type in GGUF")


def _little(values: npt.NDArray[Any]) -> bytes:
    return values.astype(values.dtype.newbyteorder("<")).tobytes()
