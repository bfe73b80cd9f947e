"""GGUF, versions 2 and 3: metadata and tensors in one file, or in numbered parts of one model.

A file is: magic, version, the two counts, metadata entries, tensor infos, padding, data. All numbers are
little-endian and packed. Every size and count in a file is checked against its real size before it is used.

Metadata becomes Python values: int, float, bool, str; an array of strings is a list[str], every other array
is a read-only NumPy array of its type. Strings of arrays (vocabularies) keep bytes that are not UTF-8 as
surrogate escapes, so `text.encode("utf-8", "surrogateescape")` gives back what the file has; in a string of
its own such bytes become U+FFFD.
"""

from __future__ import annotations

import math
import os
import re
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from olivine.dtypes import DType
from olivine.errors import CheckpointError, printable
from olivine.formats.checkpoint import TOOL_USE, Bytes, Checkpoint, Tensor
from olivine.formats.checks import is_integer, refuse_overlap, shown, tensor_field
from olivine.formats.ggml_types import type_of
from olivine.formats.mapping import Source, map_file

MAGIC = b"GGUF"
# Recommended sampling parameters: the name in generation_config.json, and the key below general.sampling.
SAMPLING = {
    "temperature": "temp",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "penalty_repeat",
}
_VERSIONS = (2, 3)

_MAX_HEADER_BYTES = 512 << 20  # metadata and infos; limits what a sparse file can make us read
_MAX_KEYS = 65_536
_MAX_TENSORS = 2**20
_MIN_KEY_BYTES = 13  # an empty key, a type, a one-byte value
_MIN_INFO_BYTES = 24  # an empty name, no dimensions, a type, an offset
_MAX_KEY_BYTES = 65_535
_MAX_NAME_BYTES = 4096
_MAX_STRING_BYTES = 64 << 20
_MAX_STRINGS = 1 << 22  # in all arrays together; a short string takes six times its bytes in Python
_MANY_STRINGS = 256  # in one array: worth the vectorized path
_USUAL_STRING_BYTES = 24  # in such an array, with the length; published vocabularies need 15 to 18
_BLOCK = 1 << 16  # bytes that fit in the CPU's cache while NumPy works on them
_MAX_DIMENSIONS = 4
_MAX_DIMENSION = 2**40
_MAX_ALIGNMENT = 1 << 20
_DEFAULT_ALIGNMENT = 32

_STRING, _ARRAY, _BOOL = 8, 9, 7
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")
# Value type: the struct code of one value, and the NumPy type of an array's elements.
_FORMS = {
    0: ("B", "u1"), 1: ("b", "i1"), 2: ("H", "u2"), 3: ("h", "i2"), 4: ("I", "u4"), 5: ("i", "i4"),
    6: ("f", "f4"), 7: ("?", "u1"), 10: ("Q", "u8"), 11: ("q", "i8"), 12: ("d", "f8"),
}  # fmt: skip
_SCALARS = {number: struct.Struct("<" + code) for number, (code, _) in _FORMS.items()}
_ELEMENTS = {number: np.dtype("<" + name) for number, (_, name) in _FORMS.items()}

_PART_NAME = re.compile(r"(?P<prefix>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.ASCII | re.DOTALL)


@dataclass(frozen=True)
class Part:
    """One file: the whole model, or a part of it."""

    source: Source
    metadata: dict[str, Any]
    tensors: dict[str, Tensor]


def open_file(source: Source, path: Path | None = None) -> Checkpoint:
    """The model in a file, or in the set of which the file is the first part. `path`: what the user named."""
    first = parse(source)
    count = _split_value(first, "split.count", 1)
    parts = [first] if count <= 1 else [first, *_other_parts(first, count)]
    tensors: dict[str, Tensor] = {}
    for part in parts:
        for name, tensor in part.tensors.items():
            if name in tensors:
                raise CheckpointError(part.source.path, tensor_field(name), "is in another part as well")
            tensors[name] = tensor
    promised = _split_value(first, "split.tensors.count", len(tensors)) if count > 1 else len(tensors)
    if promised != len(tensors):
        problem = f"promises {promised} tensors, the parts hold {len(tensors)}"
        raise CheckpointError(source.path, "split.tensors.count", problem)
    return Checkpoint(
        path=path or source.path,
        format="gguf",
        naming="gguf",
        metadata=first.metadata,
        tensors=tensors,
        chat_template=_chat_template(first, "tokenizer.chat_template"),
        tool_template=_chat_template(first, f"tokenizer.chat_template.{TOOL_USE}"),
        files=tuple(part.source.path for part in parts),
        file_bytes=sum(part.source.size for part in parts),
        maps=tuple(part.source.file for part in parts if part.source.file is not None),
    )


def is_later_part(name: str) -> bool:
    """Whether a file name is that of a second or later part."""
    match = _PART_NAME.fullmatch(name)
    return match is not None and int(match["number"]) != 1


def whole_name(name: str) -> str:
    """The name of a file without the number of its part: `model-00001-of-00003.gguf` → `model.gguf`."""
    match = _PART_NAME.fullmatch(name)
    return name if match is None else f"{match['prefix']}.gguf"


def parse(source: Source) -> Part:
    """Metadata and tensors of one file."""
    reader = _Reader(source)
    tensor_count, key_count = reader.start()
    metadata: dict[str, Any] = {}
    for index in range(key_count):
        key = reader.name(f"key of metadata entry {index}", _MAX_KEY_BYTES)
        if key in metadata:
            raise CheckpointError(source.path, printable(key), "the key occurs twice")
        metadata[key] = reader.value(printable(key))
    alignment = _alignment(source.path, metadata)
    infos = [reader.tensor_info(index, alignment) for index in range(tensor_count)]
    data_start = -(-reader.position // alignment) * alignment
    return Part(source, metadata, _tensors(source, infos, data_start))


def entries(source: Source) -> dict[str, bytes]:
    """Every metadata value of one file as raw bytes with its type, for lossless copies."""
    reader = _Reader(source)
    _, key_count = reader.start()
    found: dict[str, bytes] = {}
    for index in range(key_count):
        key = reader.name(f"key of metadata entry {index}", _MAX_KEY_BYTES)
        start = reader.position
        reader.value(printable(key))
        found[key] = source.buffer[start : reader.position]
    return found


@dataclass(frozen=True)
class _Info:
    name: str
    shape: tuple[int, ...]
    type: DType
    offset: int


class _Reader:
    """Reads the header field by field, checking that none reaches past the end."""

    def __init__(self, source: Source) -> None:
        self.path = source.path
        self.buffer = source.buffer
        self.position = 0
        self.end = min(source.size, _MAX_HEADER_BYTES)
        self.strings_left = _MAX_STRINGS

    def fail(self, field: str, problem: str) -> CheckpointError:
        return CheckpointError(self.path, field, problem)

    def start(self) -> tuple[int, int]:
        """Check magic and version; the numbers of tensors and of metadata entries."""
        if self.buffer[:4] != MAGIC:
            raise self.fail("magic", f"is {self.buffer[:4]!r}, not {MAGIC!r}")
        self.position = 4
        version = self.number(_U32, "version")
        if version and version & 0xFFFF == 0:
            raise self.fail(
                "version", "the file is big-endian: not supported (little-endian editions are common)"
            )
        if version not in _VERSIONS:
            raise self.fail("version", f"{version} is not supported (supported: 2 and 3)")
        tensors = self.number(_U64, "tensor_count")
        keys = self.number(_U64, "kv_count")
        for field, count, least, most in (
            ("kv_count", keys, _MIN_KEY_BYTES, _MAX_KEYS),
            ("tensor_count", tensors, _MIN_INFO_BYTES, _MAX_TENSORS),
        ):
            if count > min(most, (self.end - self.position) // least):
                raise self.fail(field, f"{count} entries do not fit the file (and {most} is the limit)")
        return tensors, keys

    def need(self, size: int, field: str) -> None:
        """Refuse a field of `size` bytes that the header cannot hold."""
        if size > self.end - self.position:
            where = "the file" if self.end < _MAX_HEADER_BYTES else f"the first {self.end} bytes"
            raise self.fail(
                field, f"{size} bytes at {self.position} reach past the end of {where} ({self.end})"
            )

    def number(self, form: struct.Struct, field: str) -> Any:
        self.need(form.size, field)
        (value,) = form.unpack_from(self.buffer, self.position)
        self.position += form.size
        return value

    def string(self, field: str, limit: int) -> bytes:
        length = self.number(_U64, field)
        if length > limit:
            raise self.fail(field, f"a string claims {length} bytes; {limit} is the limit")
        self.need(length, field)
        start, self.position = self.position, self.position + length
        return self.buffer[start : self.position]

    def name(self, field: str, limit: int) -> str:
        """A key or a tensor name: not empty, and UTF-8."""
        raw = self.string(field, limit)
        if not raw:
            raise self.fail(field, "is empty")
        try:
            return raw.decode()
        except UnicodeDecodeError:
            raise self.fail(field, f"{raw[:80]!a} is not valid UTF-8") from None

    def value(self, field: str) -> Any:
        kind = self.number(_U32, field)
        if kind in _SCALARS:
            return self.number(_SCALARS[kind], field)
        if kind == _STRING:
            return self.string(field, _MAX_STRING_BYTES).decode("utf-8", "replace")
        if kind == _ARRAY:
            return self.array(field)
        raise self.fail(field, f"value type {kind} does not exist")

    def array(self, field: str) -> Any:
        kind = self.number(_U32, field)
        count = self.number(_U64, field)
        if kind == _STRING:
            return self.strings(field, count)
        if kind not in _ELEMENTS:
            what = "is an array of arrays" if kind == _ARRAY else f"array element type {kind} does not exist"
            raise self.fail(field, what)
        dtype = _ELEMENTS[kind]
        self.need(count * dtype.itemsize, field)
        values = np.frombuffer(self.buffer, dtype, count, self.position)
        self.position += values.nbytes
        # A copy, because arrays may be unaligned in the file.
        result = values != 0 if kind == _BOOL else values.astype(dtype.newbyteorder("="))
        result.flags.writeable = False
        return result

    def strings(self, field: str, count: int) -> list[str]:
        self.need(8 * count, field)
        if count > self.strings_left:
            raise self.fail(field, f"{count} strings; {_MAX_STRINGS} in all are the limit")
        self.strings_left -= count
        # A vocabulary has hundreds of thousands of entries: reading them one by one dominates start-up time.
        if count >= _MANY_STRINGS and (result := self.short_strings(count)) is not None:
            return result
        buffer, position, end = self.buffer, self.position, self.end
        unpack = _U64.unpack_from
        result = []
        try:
            for _ in range(count):
                (length,) = unpack(buffer, position)
                start = position + 8
                position = start + length
                if position > end:
                    break
                result.append(buffer[start:position].decode("utf-8", "surrogateescape"))
        except struct.error:  # the file ends inside a length
            position = end + 1
        if position > end:
            raise self.fail(field, f"entry {len(result)} of {count} reaches past the end of the file")
        self.position = position
        return result

    def short_strings(self, count: int) -> list[str] | None:
        """The strings, if each has 1 to 65535 bytes and no zero byte; None if that is not certain.

        A length is then two bytes and six zeros, and nothing else looks like that: NumPy finds all of them.
        """
        room = min(self.end - self.position, _USUAL_STRING_BYTES * count)
        window = np.frombuffer(self.buffer, np.uint8, room, self.position)
        found = [
            np.flatnonzero(_looks_like_length(window[at : at + _BLOCK + 8])) + at
            for at in range(0, room, _BLOCK)
        ]
        starts = np.concatenate(found)[:count]
        ends = starts + 8 + window[starts] + 256 * window[starts + 1].astype(np.int64)
        # Valid if the strings found are contiguous from the first byte on, with no other zero byte.
        if len(starts) < count or starts[0] or (starts[1:] != ends[:-1]).any() or ends[-1] > room:
            return None
        packed = window[: ends[-1]].copy()
        packed[starts] = packed[starts + 1] = 0
        if np.count_nonzero(packed) != len(packed) - 8 * count:
            return None
        self.position += len(packed)
        return str(packed.data, "utf-8", "surrogateescape").split("\0" * 8)[1:]

    def tensor_info(self, index: int, alignment: int) -> _Info:
        name = self.name(f"name of tensor {index}", _MAX_NAME_BYTES)
        field = tensor_field(name)
        dimensions = self.number(_U32, field)
        if dimensions > _MAX_DIMENSIONS:
            raise self.fail(field, f"{dimensions} dimensions; {_MAX_DIMENSIONS} is the limit")
        extents = [self.number(_U64, field) for _ in range(dimensions)]
        kind = self.number(_U32, field)
        offset = self.number(_U64, field)
        if not all(1 <= extent <= _MAX_DIMENSION for extent in extents):
            raise self.fail(field, f"dimensions {extents} are not all in 1..{_MAX_DIMENSION}")
        if offset % alignment:
            raise self.fail(field, f"offset {offset} is not a multiple of the alignment, {alignment}")
        return _Info(name, tuple(reversed(extents)) or (1,), type_of(kind), offset)


def _looks_like_length(data: Bytes) -> npt.NDArray[np.bool_]:
    """For each byte but the last eight: whether six zeros and then no zero come two bytes after it."""
    zero = data == 0
    twos = zero[2:-1] & zero[3:]
    sixes = twos[:-4] & twos[2:-2] & twos[4:]
    return sixes[:-1] & ~zero[8:]


def _alignment(path: Path, metadata: dict[str, Any]) -> int:
    value = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
    if not is_integer(value) or not 0 < value <= _MAX_ALIGNMENT or value & (value - 1):
        problem = f"{shown(value)} is not a power of two of at most {_MAX_ALIGNMENT}"
        raise CheckpointError(path, "general.alignment", problem)
    return int(value)


def _tensors(source: Source, infos: list[_Info], data_start: int) -> dict[str, Tensor]:
    """Views of the data, after checking that every extent is whole, in the file and not shared."""
    data = source.data
    tensors: dict[str, Tensor] = {}
    extents = []
    for info in infos:
        field, dtype = tensor_field(info.name), info.type
        if info.name in tensors:
            raise CheckpointError(source.path, field, "the name occurs twice")
        if info.shape[-1] % dtype.block_size:
            problem = f"rows of {info.shape[-1]} are not whole blocks of {dtype.block_size} ({dtype})"
            raise CheckpointError(source.path, field, problem)
        begin = data_start + info.offset
        end = begin + dtype.nbytes(math.prod(info.shape))
        if end > source.size:
            problem = f"its bytes {begin}..{end} reach past the end of the file ({source.size})"
            raise CheckpointError(source.path, field, problem)
        if begin < end:  # the size of an unknown type is not known
            extents.append((begin, end, info.name))
        tensors[info.name] = Tensor(info.name, dtype, info.shape, data[begin:end])
    refuse_overlap(source.path, extents)
    return tensors


def _other_parts(first: Part, count: int) -> list[Part]:
    """Parts 2 to `count`, from the first one's folder and under its name."""
    path = first.source.path
    match = _PART_NAME.fullmatch(path.name)
    number = _split_value(first, "split.no", -1)
    if not match or (int(match["number"]), int(match["count"])) != (number + 1, count):
        ending = f"-{number + 1:05}-of-{count:05}.gguf"
        problem = f"the file is part {number + 1} of {count}, but its name does not end with {ending}"
        raise CheckpointError(path, "split.no", problem)
    names = [f"{match['prefix']}-{index:05}-of-{count:05}.gguf" for index in range(1, count + 1)]
    if number != 0:
        raise CheckpointError(path, "split.no", f"is part {number + 1} of {count}: open part 1, {names[0]}")
    # A download cache links every part into one other folder; a part may be there or here, not elsewhere.
    folders = {os.path.realpath(path.parent), os.path.dirname(os.path.realpath(path))}
    parts = []
    for index, name in enumerate(names[1:], 1):
        sibling = path.with_name(name)
        if os.path.dirname(os.path.realpath(sibling)) not in folders:
            raise CheckpointError(sibling, "", "is a link that leads out of the model's folder")
        part = parse(map_file(sibling))
        for key, expected in (("split.no", index), ("split.count", count)):
            if (found := _split_value(part, key, -1)) != expected:
                raise CheckpointError(sibling, key, f"is {found}, not {expected}")
        parts.append(part)
    return parts


def _split_value(part: Part, key: str, default: int) -> int:
    value = part.metadata.get(key, default)
    if not is_integer(value):
        raise CheckpointError(part.source.path, key, f"{shown(value)} is not a whole number")
    return int(value)


def _chat_template(part: Part, key: str) -> str | None:
    value = part.metadata.get(key)
    if value is not None and not isinstance(value, str):
        raise CheckpointError(part.source.path, key, "is not a string")
    return value
