"""A Qwen3 shape as qwen3.c's `.bin` with its `.tokenizer`: int8 groups of 64 with float32 scales."""

from __future__ import annotations

import math
import struct
from pathlib import Path

import numpy as np

from synthetic.blocks import POOL_BYTES, codes_int8
from synthetic.shapes import Shape
from synthetic.vocabulary import NORMAL, UNUSED, Vocabulary, vocabulary_for

GROUP = 64
_MAGIC = 0x616A6331
_MATRICES = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_down", "ffn_up")
_RMS_INT8 = math.sqrt((255**2 - 1) / 12)


def write_qwen3c(path: Path, shape: Shape, *, seed: int = 0) -> Path:
    """Writes `path` and, beside it, the tokenizer that belongs to it."""
    assert shape.architecture == "qwen3", "qwen3.c runs Qwen3 and nothing else"
    rng = np.random.default_rng(seed)
    codes = codes_int8(rng, POOL_BYTES | GROUP)
    unfinished = path.with_name(path.name + ".part")
    with unfinished.open("wb") as file:
        numbers = (shape.width, shape.hidden, shape.layers, shape.heads, shape.kv_heads, shape.vocabulary)
        header = struct.pack("<I11i", _MAGIC, 1, *numbers, shape.context, shape.head_dim, 1, GROUP)
        file.write(header.ljust(256, b"\0"))
        norms = 2 * shape.layers * (shape.width + shape.head_dim) + shape.width
        file.write(np.ones(norms, np.float32))
        matrices = shape.matrices()
        sizes = [(shape.vocabulary, shape.width)]
        sizes += [matrices[stem] for stem in _MATRICES for _ in range(shape.layers)]
        for outputs, inputs in sizes:
            left, start = outputs * inputs, int(rng.integers(len(codes)))
            while left:
                piece = codes[start : start + left]
                file.write(piece)
                left, start = left - len(piece), 0
            scales = rng.uniform(0.75, 1.25, outputs * inputs // GROUP) * inputs**-0.5 / _RMS_INT8
            file.write(scales.astype("<f4"))
    _write_tokenizer(path.with_name(path.name + ".tokenizer"), vocabulary_for("qwen3", shape.vocabulary))
    return unfinished.replace(path)


def _write_tokenizer(path: Path, made: Vocabulary) -> None:
    """f32 score, u32 length and raw bytes a token; merges score by rank, everything else -1e6."""
    table = _char_to_byte()
    records = []
    for rank, (token, kind) in enumerate(zip(made.tokens, made.types, strict=True), start=-256):
        if kind == UNUSED:
            break
        data = bytes(table[char] for char in token) if kind == NORMAL else token.encode()
        score = -math.log(rank + 1) if kind == NORMAL and rank >= 0 else -1e6
        records.append(struct.pack("<fI", score, len(data)) + data)
    longest = max(len(record) - 8 for record in records)
    path.write_bytes(struct.pack("<III", longest, made.bos, made.eos) + b"".join(records))


def _char_to_byte() -> dict[str, int]:
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}
