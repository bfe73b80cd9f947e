"""Small files, byte by byte: right ones, and (with one argument changed) wrong ones."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

# GGUF's value types.
U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)


def gguf_string(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def gguf_entry(key: str | bytes, kind: int, value: bytes) -> bytes:
    """A metadata entry with the value's bytes as given."""
    return gguf_string(key) + struct.pack("<I", kind) + value


def gguf_text(key: str, text: str | bytes) -> bytes:
    return gguf_entry(key, STRING, gguf_string(text))


def gguf_array(key: str, kind: int, count: int, elements: bytes) -> bytes:
    return gguf_entry(key, ARRAY, struct.pack("<IQ", kind, count) + elements)


def gguf_strings(key: str, texts: Sequence[str | bytes]) -> bytes:
    return gguf_array(key, STRING, len(texts), b"".join(map(gguf_string, texts)))


def gguf_info(name: str | bytes, dims: Sequence[int], kind: int, offset: int) -> bytes:
    dimensions = struct.pack(f"<I{len(dims)}Q", len(dims), *dims)
    return gguf_string(name) + dimensions + struct.pack("<IQ", kind, offset)


def gguf_file(
    entries: Sequence[bytes] = (),
    infos: Sequence[bytes] = (),
    data: bytes = b"",
    *,
    version: int = 3,
    alignment: int = 32,
    key_count: int | None = None,
    tensor_count: int | None = None,
) -> bytes:
    tensors = len(infos) if tensor_count is None else tensor_count
    keys = len(entries) if key_count is None else key_count
    head = b"GGUF" + struct.pack("<IQQ", version, tensors, keys) + b"".join(entries) + b"".join(infos)
    if infos:
        head += bytes(-len(head) % alignment)
    return head + data


def safetensors_file(header: Mapping[str, Any] | str | bytes, data: bytes = b"") -> bytes:
    """A file with the header as given: an object, JSON text, or any bytes."""
    if isinstance(header, Mapping):
        header = json.dumps(header)
    raw = header.encode() if isinstance(header, str) else header
    return struct.pack("<Q", len(raw)) + raw + data


def safetensors_entry(dtype: Any, shape: Any, begin: Any, end: Any) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


AJC1_FIELDS = (
    "dim", "hidden_dim", "n_layers", "n_heads", "n_kv_heads",
    "vocab_size", "max_seq_len", "head_dim", "shared_classifier", "group_size",
)  # fmt: skip
AJC1_CONFIG = dict(zip(AJC1_FIELDS, (16, 24, 2, 4, 2, 10, 128, 6, 1, 8), strict=True))


def ajc1_header(config: Mapping[str, int], magic: int = 0x616A6331, version: int = 1) -> bytes:
    return struct.pack("<Ii10i", magic, version, *(config[name] for name in AJC1_FIELDS)).ljust(256, b"\0")


def ajc1_file(config: Mapping[str, int], seed: int = 0) -> tuple[bytes, dict[str, npt.NDArray[np.float32]]]:
    """A file with random weights, and the float32 values that its tensors have under their GGUF names."""
    random = np.random.default_rng(seed)
    c = config
    parts = [ajc1_header(c)]
    values: dict[str, npt.NDArray[np.float32]] = {}

    def norm(name: str, size: int) -> None:
        values[name] = random.standard_normal(size, np.float32)
        parts.append(values[name].tobytes())

    def matrix(name: str, rows: int, columns: int) -> None:
        group = c["group_size"]
        q = random.integers(-127, 128, (rows * columns // group, group), np.int8)
        s = random.random((len(q), 1), np.float32)
        values[name] = (q * s).reshape(rows, columns)
        parts.extend((q.tobytes(), s.tobytes()))

    layers = range(c["n_layers"])
    for i in layers:
        norm(f"blk.{i}.attn_norm.weight", c["dim"])
    for i in layers:
        norm(f"blk.{i}.ffn_norm.weight", c["dim"])
    norm("output_norm.weight", c["dim"])
    for i in layers:
        norm(f"blk.{i}.attn_q_norm.weight", c["head_dim"])
    for i in layers:
        norm(f"blk.{i}.attn_k_norm.weight", c["head_dim"])
    matrix("token_embd.weight", c["vocab_size"], c["dim"])
    for i in layers:
        matrix(f"blk.{i}.attn_q.weight", c["n_heads"] * c["head_dim"], c["dim"])
    for i in layers:
        matrix(f"blk.{i}.attn_k.weight", c["n_kv_heads"] * c["head_dim"], c["dim"])
    for i in layers:
        matrix(f"blk.{i}.attn_v.weight", c["n_kv_heads"] * c["head_dim"], c["dim"])
    for i in layers:
        matrix(f"blk.{i}.attn_output.weight", c["dim"], c["n_heads"] * c["head_dim"])
    for i in layers:
        matrix(f"blk.{i}.ffn_gate.weight", c["hidden_dim"], c["dim"])
    for i in layers:
        matrix(f"blk.{i}.ffn_down.weight", c["dim"], c["hidden_dim"])
    for i in layers:
        matrix(f"blk.{i}.ffn_up.weight", c["hidden_dim"], c["dim"])
    if not c["shared_classifier"]:
        matrix("output.weight", c["vocab_size"], c["dim"])
    return b"".join(parts), values
