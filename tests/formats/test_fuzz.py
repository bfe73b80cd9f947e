"""Thousands of damaged files: each opens with all of its data inside the file, or is a CheckpointError.

The mutations are seeded, so a failure names the file that caused it and comes back on every run.
"""

from __future__ import annotations

import json
import random
import struct
import time
import tracemalloc
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from formats.builders import (
    AJC1_CONFIG,
    I32,
    U32,
    U64,
    ajc1_file,
    gguf_array,
    gguf_entry,
    gguf_file,
    gguf_info,
    gguf_strings,
    gguf_text,
    safetensors_entry,
    safetensors_file,
)
from olivine.errors import CheckpointError
from olivine.formats import Tensor, ajc1, gguf, open_checkpoint, safetensors
from olivine.formats.mapping import Source

COUNT = 3000
MAX_BYTES = 4 << 20  # what parsing a file of a few hundred bytes may allocate
MAX_SECONDS = 2.0  # generous: such a file takes well under a millisecond

EXTREMES = [0, 1, 2, 3, 31, 127, 128, 255, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**33, 2**40]
EXTREMES += [2**61, 2**62, 2**63 - 1, 2**63, 2**64 - 32, 2**64 - 1]
JSON_PIECES = [
    b"[",
    b"]",
    b"{",
    b"}",
    b",",
    b":",
    b'"',
    b"null",
    b"true",
    b"-1",
    b"1e9",
    b"NaN",
    b"[[[[",
    b'"w":',
]
JSON_PIECES += [b"18446744073709551615", b"0.5", b"\\u0000", b"\\ud800", b"../", b"[]", b"{}", b"\xff"]


def mutate(content: bytes, source: random.Random, pieces: list[bytes]) -> bytes:
    """One to four damages: flips, overwritten numbers, cuts, splices, insertions."""
    result = bytearray(content)
    for _ in range(source.randint(1, 4)):
        size = len(result)
        at = source.randrange(size + 1)
        kind = source.randrange(8)
        if kind == 0 and at < size:
            result[at] ^= 1 << source.randrange(8)
        elif kind == 1 and at < size:
            result[at] = source.choice((0, 1, 9, 13, 127, 255, source.randrange(256)))
        elif kind == 2:
            width = source.choice((4, 8))
            number = source.choice(EXTREMES) % (1 << 8 * width)
            result[at : at + width] = number.to_bytes(width, "little")
        elif kind == 3:
            # Near a number that is there: off by a little, at any place.
            if at + 4 <= size:
                (old,) = struct.unpack_from("<I", result, at)
                struct.pack_into("<I", result, at, (old + source.choice((-32, -1, 1, 32, 64))) % 2**32)
        elif kind == 4:
            del result[at:]
        elif kind == 5:
            del result[at : at + source.randint(1, 16)]
        elif kind == 6:
            start = source.randrange(size + 1)
            result[at:at] = result[start : start + source.randint(1, 48)]
        else:
            result[at:at] = source.choice(pieces)
    return bytes(result)


def mutations(seeds: list[bytes], pieces: list[bytes], count: int = COUNT) -> Iterator[tuple[int, bytes]]:
    for number in range(count):
        source = random.Random(number)
        yield number, mutate(source.choice(seeds), source, pieces)


def touch(tensors: Iterable[Tensor]) -> None:
    """Every tensor has exactly the bytes that its type and shape take, and they can be read."""
    for tensor in tensors:
        assert tensor.shape and all(extent > 0 for extent in tensor.shape)
        assert tensor.data.size == tensor.dtype.nbytes(tensor.size) or tensor.dtype.block_bytes == 0
        assert tensor.data.size > 0 or not tensor.dtype.runs
        int(tensor.data[:1].sum()) + int(tensor.data[-1:].sum())
        assert not tensor.data.flags.writeable
        if tensor.dtype.scale_bytes:
            assert tensor.scales is not None
            assert tensor.scales.size == tensor.size // tensor.dtype.block_size * tensor.dtype.scale_bytes


def run(cases: Iterable[tuple[int, bytes]], parse: Callable[[bytes], Iterable[Tensor]]) -> tuple[int, int]:
    """How many cases opened, and how many were refused. Whatever else happens is the test's failure."""
    opened = refused = 0
    tracemalloc.start()
    try:
        for number, content in cases:
            tracemalloc.reset_peak()
            before, began = tracemalloc.get_traced_memory()[0], time.process_time()
            try:
                touch(parse(content))
                opened += 1
            except CheckpointError as error:
                refused += 1
                str(error).encode()
            except BaseException as error:
                raise AssertionError(f"case {number}: {error!r}") from error
            used = tracemalloc.get_traced_memory()[1] - before
            assert used < MAX_BYTES, f"case {number} allocated {used} bytes"
            assert time.process_time() - began < MAX_SECONDS, f"case {number} took too long"
    finally:
        tracemalloc.stop()
    return opened, refused


def gguf_seeds() -> list[bytes]:
    entries = [
        gguf_text("general.architecture", "llama"),
        gguf_entry("general.alignment", U32, struct.pack("<I", 32)),
        gguf_entry("n", U64, struct.pack("<Q", 7)),
        gguf_strings("tokenizer.ggml.tokens", ["<s>", "a", "", "żó"]),
        gguf_array("tokenizer.ggml.token_type", I32, 4, struct.pack("<4i", 3, 1, 1, 1)),
        gguf_text("tokenizer.chat_template", "{{ x }}"),
    ]
    infos = [gguf_info("a", [32, 2], 8, 0), gguf_info("b", [4], 0, 96), gguf_info("c", [256], 12, 128)]
    whole = gguf_file(entries, infos, bytes(128 + 144))
    return [whole, whole, gguf_file(entries), gguf_file([], infos, bytes(128 + 144))]


def test_gguf() -> None:
    def parse(content: bytes) -> Iterable[Tensor]:
        return gguf.parse(Source(Path("fuzz"), content)).tensors.values()

    pieces = [struct.pack("<Q", value) for value in EXTREMES] + [
        struct.pack("<I", value) for value in range(14)
    ]
    opened, refused = run(mutations(gguf_seeds(), pieces), parse)
    assert opened > COUNT // 20 and refused > COUNT // 4


def safetensors_seeds() -> list[bytes]:
    header = {
        "__metadata__": {"format": "pt"},
        "w": safetensors_entry("F32", [2, 3], 0, 24),
        "v": safetensors_entry("BF16", [4], 24, 32),
        "ids": safetensors_entry("I64", [2], 32, 48),
    }
    return [safetensors_file(header, bytes(48)), safetensors_file({"w": header["w"]}, bytes(24))]


def test_safetensors() -> None:
    def parse(content: bytes) -> Iterable[Tensor]:
        return safetensors.parse(Source(Path("fuzz"), content)).tensors.values()

    opened, refused = run(mutations(safetensors_seeds(), JSON_PIECES), parse)
    assert opened > COUNT // 20 and refused > COUNT // 4


HOSTILE_VALUES = [
    *EXTREMES,
    -1,
    -(2**63),
    10**30,
    2.0,
    1e300,
    True,
    False,
    None,
    "",
    "F32",
    "I64",
    "F64",
    [],
    {},
]
HOSTILE_VALUES += [
    [0],
    [0, 8],
    [8, 0],
    [2],
    [True],
    [[2]],
    [-1, -2],
    ["2"],
    [1] * 9,
    [2**32, 2**32],
    {"dtype": "F32"},
]


def replace_values(value: Any, source: random.Random) -> Any:
    """The same JSON with a few of its values replaced."""
    if source.random() < 0.1:
        return source.choice(HOSTILE_VALUES)
    if isinstance(value, dict):
        return {name: replace_values(item, source) for name, item in value.items()}
    if isinstance(value, list):
        return [replace_values(item, source) for item in value]
    return value


def test_safetensors_headers() -> None:
    """Valid JSON with wrong values, which is what the checks after the JSON parser see."""
    header = json.loads(safetensors_seeds()[0][8:-48])

    def files() -> Iterator[tuple[int, bytes]]:
        for number in range(COUNT):
            source = random.Random(number)
            changed = {name: replace_values(entry, source) for name, entry in header.items()}
            yield number, safetensors_file(changed, bytes(48))

    def parse(content: bytes) -> Iterable[Tensor]:
        return safetensors.parse(Source(Path("fuzz"), content)).tensors.values()

    opened, refused = run(files(), parse)
    assert opened > COUNT // 20 and refused > COUNT // 4


def test_qwen3c() -> None:
    def parse(content: bytes) -> Iterable[Tensor]:
        return ajc1.parse(Source(Path("fuzz"), content))[1].values()

    config = AJC1_CONFIG | {"n_layers": 1, "vocab_size": 3}
    seeds = [ajc1_file(config)[0], ajc1_file(config | {"shared_classifier": 0})[0]]
    opened, refused = run(mutations(seeds, [struct.pack("<I", value % 2**32) for value in EXTREMES]), parse)
    assert opened > COUNT // 50 and refused > COUNT // 4

    # Most of such a file is weights: damage the header alone as well.
    def with_header(content: bytes) -> Iterable[Tensor]:
        return parse(content.ljust(256, b"\0")[:256] + seeds[0][256:])

    opened, refused = run(mutations([seeds[0][:48]], [b"\0\0\0\0"]), with_header)
    assert opened and refused > COUNT // 4


@pytest.mark.parametrize(
    "name",
    ["config.json", "generation_config.json", "chat_template.json", "tokenizer_config.json",
     "model.safetensors.index.json"],
)  # fmt: skip
def test_the_json_files_of_a_folder(tmp_path: Path, name: str) -> None:
    shard = "s.safetensors"
    (tmp_path / shard).write_bytes(safetensors_seeds()[1])
    texts = {
        "config.json": {"model_type": "qwen3", "hidden_size": 8, "rope": {"theta": 1e6}, "list": [1, 2]},
        "generation_config.json": {"temperature": 0.6, "eos_token_id": [1, 2]},
        "chat_template.json": {"chat_template": None},
        "tokenizer_config.json": {"chat_template": [{"name": "default", "template": "{{ x }}"}]},
        "model.safetensors.index.json": {"metadata": {"total_size": 24}, "weight_map": {"w": shard}},
    }
    for file, value in texts.items():
        (tmp_path / file).write_text(json.dumps(value))

    def parse(content: bytes) -> Iterable[Tensor]:
        (tmp_path / name).write_bytes(content)
        return open_checkpoint(tmp_path).tensors.values()

    opened, refused = run(mutations([json.dumps(texts[name]).encode()], JSON_PIECES, 300), parse)
    assert opened > 5 and refused > 100
