"""qwen3.c's `.bin` (magic "ajc1"): a Qwen3 model in int8 groups with float32 scales.

A header of 256 bytes, the float32 norms, then every matrix as its int8 values followed by its scales. The
file has no tensor names: the layout follows from the header, and tensors get GGUF's names here. Up to four
prompts beside the file become `Checkpoint.prompt_files`.
"""

from __future__ import annotations

import math
import os
import struct
from pathlib import Path
from typing import Any

from olivine.dtypes import F32, DType, grouped_int8
from olivine.errors import CheckpointError
from olivine.formats.checkpoint import Checkpoint, Tensor
from olivine.formats.mapping import Source, read_text

MAGIC = b"1cja"  # 0x616A6331, "ajc1", as a little-endian number
_VERSION = 1
_HEADER_BYTES = 256
_MAX_TEMPLATE_BYTES = 64 << 10

# Constants of qwen3.c's code that are not in the file.
_EPSILON = 1e-6
_ROPE_BASE = 1e6

# The header's numbers after magic and version, in order, and the valid range of each.
_LIMITS = {
    "dim": (1, 1 << 20),
    "hidden_dim": (1, 1 << 22),
    "n_layers": (1, 1024),
    "n_heads": (1, 1 << 16),
    "n_kv_heads": (1, 1 << 16),
    "vocab_size": (1, 1 << 24),
    "max_seq_len": (1, 2**31 - 1),  # only a claim: nothing is allocated from it
    "head_dim": (2, 1 << 16),
    "shared_classifier": (0, 1),
    "group_size": (2, 1 << 20),  # one value a group would be no quantization
}
_TEMPLATES = ("", "with-thinking", "with-system", "with-system-and-thinking")


def open_file(source: Source) -> Checkpoint:
    """The model in a `.bin`, with the prompts beside it."""
    metadata, tensors = parse(source)
    return Checkpoint(
        path=source.path,
        format="qwen3.c",
        naming="gguf",
        metadata=metadata,
        tensors=tensors,
        prompt_files=_prompt_files(source.path),
        files=(source.path,),
        file_bytes=source.size,
        maps=() if source.file is None else (source.file,),
    )


def parse(source: Source) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Metadata under GGUF's keys, and the tensors under GGUF's names."""
    h = _header(source)
    layout = _Layout(source)
    d, ffn, heads, kv_heads, head = h["dim"], h["hidden_dim"], h["n_heads"], h["n_kv_heads"], h["head_dim"]
    layers = range(h["n_layers"])
    q8 = grouped_int8(h["group_size"])

    for stem in ("attn_norm", "ffn_norm"):
        for i in layers:
            layout.add(f"blk.{i}.{stem}.weight", F32, (d,))
    layout.add("output_norm.weight", F32, (d,))
    for stem in ("attn_q_norm", "attn_k_norm"):
        for i in layers:
            layout.add(f"blk.{i}.{stem}.weight", F32, (head,))

    layout.add("token_embd.weight", q8, (h["vocab_size"], d))
    for stem, shape in {
        "attn_q": (heads * head, d),
        "attn_k": (kv_heads * head, d),
        "attn_v": (kv_heads * head, d),
        "attn_output": (d, heads * head),
        "ffn_gate": (ffn, d),
        "ffn_down": (d, ffn),
        "ffn_up": (ffn, d),
    }.items():
        for i in layers:
            layout.add(f"blk.{i}.{stem}.weight", q8, shape)
    if not h["shared_classifier"]:
        layout.add("output.weight", q8, (h["vocab_size"], d))

    metadata: dict[str, Any] = {
        "general.architecture": "qwen3",
        "qwen3.block_count": h["n_layers"],
        "qwen3.context_length": h["max_seq_len"],
        "qwen3.embedding_length": d,
        "qwen3.feed_forward_length": ffn,
        "qwen3.attention.head_count": heads,
        "qwen3.attention.head_count_kv": kv_heads,
        "qwen3.attention.key_length": head,
        "qwen3.attention.value_length": head,
        "qwen3.attention.layer_norm_rms_epsilon": _EPSILON,
        "qwen3.rope.freq_base": _ROPE_BASE,
    }
    return metadata, layout.tensors()


class _Layout:
    """The file's tensors in order. The total size is checked before any of them is read."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.end = _HEADER_BYTES
        self.entries: list[tuple[str, DType, tuple[int, ...], int, int, int]] = []

    def add(self, name: str, dtype: DType, shape: tuple[int, ...]) -> None:
        """The next tensor: its values, then its scales if the type has any."""
        begin, size = self.end, math.prod(shape)
        middle = begin + dtype.nbytes(size)
        self.end = middle + size // dtype.block_size * dtype.scale_bytes
        self.entries.append((name, dtype, shape, begin, middle, self.end))

    def tensors(self) -> dict[str, Tensor]:
        if self.end != self.source.size:
            problem = f"the header makes {self.end} bytes, the file has {self.source.size}"
            raise CheckpointError(self.source.path, "file size", problem)
        data = self.source.data
        return {
            name: Tensor(
                name, dtype, shape, data[begin:middle], data[middle:end] if dtype.scale_bytes else None
            )
            for name, dtype, shape, begin, middle, end in self.entries
        }


def _header(source: Source) -> dict[str, int]:
    """The header's numbers by name, each in range and all of them consistent."""
    path, buffer = source.path, source.buffer
    if buffer[:4] != MAGIC:
        raise CheckpointError(path, "magic", f"is {buffer[:4]!r}, not {MAGIC!r}")
    if source.size < _HEADER_BYTES:
        raise CheckpointError(
            path, "header", f"the file has {source.size} bytes, the header alone {_HEADER_BYTES}"
        )
    version, *numbers = struct.unpack_from(f"<{1 + len(_LIMITS)}i", buffer, 4)
    if version != _VERSION:
        raise CheckpointError(path, "version", f"{version} is not supported (supported: {_VERSION})")
    header = dict(zip(_LIMITS, numbers, strict=True))
    for name, value in header.items():
        least, most = _LIMITS[name]
        if not least <= value <= most:
            raise CheckpointError(path, name, f"{value} is not in {least}..{most}")
    if header["n_heads"] % header["n_kv_heads"]:
        problem = f"{header['n_heads']} heads cannot share {header['n_kv_heads']} evenly"
        raise CheckpointError(path, "n_kv_heads", problem)
    if header["head_dim"] % 2:
        raise CheckpointError(path, "head_dim", f"{header['head_dim']} is odd: rotary embeddings need pairs")
    rows = {
        "dim": header["dim"],
        "hidden_dim": header["hidden_dim"],
        "n_heads × head_dim": header["n_heads"] * header["head_dim"],
    }
    for what, row in rows.items():
        if row % header["group_size"]:
            problem = f"groups of {header['group_size']} do not divide {what}, {row}"
            raise CheckpointError(path, "group_size", problem)
    return header


def _prompt_files(path: Path) -> dict[str, str]:
    """The prompt files that exist: X.bin.template, X.bin.template.with-thinking and so on."""
    result = {}
    for kind in _TEMPLATES:
        file = path.with_name(f"{path.name}.template" + (f".{kind}" if kind else ""))
        if os.path.lexists(file):
            result[kind] = read_text(file, _MAX_TEMPLATE_BYTES)
    return result
