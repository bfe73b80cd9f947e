"""Malformed safetensors files and folders: each defect is one CheckpointError that names file and field."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import Any

import pytest

from formats.builders import safetensors_entry as entry
from formats.builders import safetensors_file
from olivine.errors import CheckpointError
from olivine.formats import open_checkpoint, safetensors
from olivine.formats.mapping import Source


def one(dtype: Any = "F32", shape: Any = (2,), begin: Any = 0, end: Any = 8, name: str = "w") -> bytes:
    """A file with one tensor and eight bytes of data."""
    return safetensors_file({name: entry(dtype, shape, begin, end)}, bytes(8))


def text(dtype: str, offsets: str) -> bytes:
    """The same file from JSON text."""
    return safetensors_file(f'{{"w": {{{dtype}, "shape": [2], "data_offsets": {offsets}}}}}', bytes(8))


def two(a: tuple[int, int], b: tuple[int, int]) -> bytes:
    header = {"a": entry("BF16", [(a[1] - a[0]) // 2], *a), "b": entry("BF16", [(b[1] - b[0]) // 2], *b)}
    return safetensors_file(header, bytes(32))


FILES = {
    "shorter than the header length": (b"\2\0\0", "header length", "ends before"),
    "header longer than the file": (struct.pack("<Q", 100) + b"{}", "header length", "do not fit"),
    "header of 2^64-1": (struct.pack("<Q", 2**64 - 1) + b"{}", "header length", "do not fit"),
    "header of 2^63": (struct.pack("<Q", 2**63) + b"{}", "header length", "do not fit"),
    "empty header": (safetensors_file(""), "header", "not valid JSON"),
    "header not UTF-8": (safetensors_file(b'{"\xff": 1}'), "header", "UTF-8"),
    "header cut": (safetensors_file('{"w": {'), "header", "not valid JSON"),
    "header with more after it": (safetensors_file("{} {}"), "header", "not valid JSON"),
    "header a list": (safetensors_file("[]"), "header", "not an object"),
    "duplicate name": (
        safetensors_file('{"w": %s, "w": %s}' % ((json.dumps(entry("F32", [2], 0, 8)),) * 2), bytes(8)),
        "header", '"w" occurs twice',
    ),
    "another duplicate": (safetensors_file('{"a": 1, "b": 2, "b": 3}'), "header", '"b" occurs twice'),
    "duplicate dtype": (
        text('"dtype": "F32", "dtype": "F16"', "[0, 8]"), "header", '"dtype" occurs twice'
    ),
    "nested too deeply": (safetensors_file("[" * 100_000), "header", "nested too deeply"),
    "objects nested too deeply": (safetensors_file('{"a":' * 100_000), "header", "nested too deeply"),
    "a million lists": (safetensors_file("[" + "[]," * 2**20 + "[]]"), "header", "lists and objects"),
    "number of 10^6 digits": (safetensors_file('{"w": ' + "9" * 10**6 + "}"), "header", "has 1000000 digits"),
    "__metadata__ a list": (safetensors_file('{"__metadata__": []}'), "__metadata__", "not an object"),
    "entry a list": (safetensors_file('{"w": []}'), "tensor w", "must have dtype"),
    "entry without dtype": (
        safetensors_file('{"w": {"shape": [1], "data_offsets": [0, 4]}}'), "tensor w", "must have dtype"
    ),
    "empty name": (one(name=""), "tensor ", "usable name"),
    "long name": (one(name="n" * 4097), "tensor " + "n" * 120 + "…", "usable name"),
    "half a surrogate pair": (one(name="\ud800"), "tensor \\ud800", "usable name"),
    "dtype a number": (one(dtype=1), "tensor w", "dtype is not a string"),
    "dtype F8 of other bytes": (one(dtype="F8_E4M3", shape=[7]), "tensor w", "does not take the 8 bytes"),
    "integer weights of other bytes": (
        one("U8", [7], name="q_proj.weight"), "tensor q_proj.weight", "does not take the 8 bytes"
    ),
    "shape a number": (one(shape=2), "tensor w", "shape is not a list"),
    "shape null": (one(shape=None), "tensor w", "shape is not a list"),
    "9 dimensions": (one(shape=[1] * 8 + [2]), "tensor w", "at most 8"),
    "dimension 0": (one(shape=[0], end=0), "tensor w", "not a positive whole number"),
    "dimension negative": (one(shape=[-1, -2]), "tensor w", "not a positive whole number"),
    "dimension true": (one(shape=[2, True]), "tensor w", "not a positive whole number"),
    "dimension 2.0": (one(shape=[2.0]), "tensor w", "not a positive whole number"),
    "dimension as a string": (one(shape=["2"]), "tensor w", "not a positive whole number"),
    "product that wraps to 2": (one(shape=[2**63, 2, 2**63, 2, 2]), "tensor w", "does not take"),
    "product too large": (one(shape=[3]), "tensor w", "does not take"),
    "product too small": (one(shape=[1]), "tensor w", "does not take"),
    "integer buffer of the wrong size": (one("I64", [2], name="ids"), "tensor ids", "does not take"),
    "offsets a number": (text('"dtype": "F32"', "8"), "tensor w", "not a pair"),
    "three offsets": (text('"dtype": "F32"', "[0, 8, 8]"), "tensor w", "not a pair"),
    "offsets not whole": (one(begin=0.0), "tensor w", "not a pair"),
    "offset false": (one(begin=False), "tensor w", "not a pair"),
    "offsets swapped": (one(begin=8, end=0), "tensor w", "not inside"),
    "offset negative": (one(begin=-8, end=0), "tensor w", "not inside"),
    "end past the data": (one(shape=[3], end=12), "tensor w", "not inside"),
    "begin 2^64-8": (one(begin=2**64 - 8, end=2**64), "tensor w", "not inside"),
    "overlap": (two((0, 16), (14, 32)), "tensor b", "overlap those of tensor a"),
    "overlap in the other order": (two((8, 16), (0, 10)), "tensor a", "overlap those of tensor b"),
    "one extent twice": (two((0, 16), (0, 16)), "tensor b", "overlap those of tensor a"),
    "overlap with a buffer": (
        safetensors_file({"ids": entry("I64", [1], 0, 8), "w": entry("F32", [2], 0, 8)}, bytes(8)),
        "tensor w", "overlap those of tensor ids",
    ),
    "Git LFS pointer": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "", "Git LFS pointer"),
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "model.safetensors").write_bytes(one())
    (tmp_path / "config.json").write_text('{"model_type": "qwen3"}')
    return tmp_path


def refuse(path: Path, at: Path, field: str, problem: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(path)
    assert (caught.value.path, caught.value.field) == (str(at), field)
    assert problem in caught.value.problem
    str(caught.value).encode()  # it can be printed


def test_the_unchanged_file_opens(folder: Path) -> None:
    assert list(open_checkpoint(folder).tensors) == ["w"]


@pytest.mark.parametrize("case", FILES)
def test_a_lie_in_a_file_is_refused_by_name(folder: Path, case: str) -> None:
    content, field, problem = FILES[case]
    path = folder / "model.safetensors"
    path.write_bytes(content)
    refuse(folder, path, field, problem)


def test_what_is_just_within_the_limits_opens() -> None:
    name = "n" * 4096
    part = safetensors.parse(Source(Path("x"), one(shape=[1] * 7 + [2], name=name)))
    assert part.tensors[name].shape == (1, 1, 1, 1, 1, 1, 1, 2)


def test_a_header_past_the_cap_is_not_read(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(struct.pack("<Q", 100_000_001) + b"{")
    os.truncate(path, 200_000_000)
    refuse(folder, path, "header length", "100000000 is the limit")


def test_every_truncation_is_refused() -> None:
    content = two((0, 16), (16, 32))
    safetensors.parse(Source(Path("whole"), content))
    for length in range(len(content)):
        with pytest.raises(CheckpointError) as caught:
            safetensors.parse(Source(Path("cut"), content[:length]))
        assert caught.value.field


# The index.

PLAIN = "is not the plain name"
INDEXES = {
    "not JSON": ("{", "", "not valid JSON"),
    "a list": ("[]", "", "not an object"),
    "nested too deeply": ("[" * 100_000, "", "nested too deeply"),
    "empty": ("", "", "not valid JSON"),
    "no weight_map": ('{"metadata": {}}', "weight_map", "is missing"),
    "weight_map empty": ('{"weight_map": {}}', "weight_map", "is missing"),
    "weight_map a list": ('{"weight_map": ["w"]}', "weight_map", "is missing"),
    "duplicate name": ('{"weight_map": {"w": "s.safetensors", "w": "t"}}', "", '"w" occurs twice'),
    "file a number": ('{"weight_map": {"w": 1}}', "weight_map.w", PLAIN),
    "file null": ('{"weight_map": {"w": null}}', "weight_map.w", PLAIN),
    "file a list": ('{"weight_map": {"w": ["s.safetensors"]}}', "weight_map.w", PLAIN),
    "file empty": ('{"weight_map": {"w": ""}}', "weight_map.w", PLAIN),
    "file ..": ('{"weight_map": {"w": ".."}}', "weight_map.w", PLAIN),
    "path upwards": ('{"weight_map": {"w": "../s.safetensors"}}', "weight_map.w", PLAIN),
    "path downwards": ('{"weight_map": {"w": "x/s.safetensors"}}', "weight_map.w", PLAIN),
    "absolute path": ('{"weight_map": {"w": "/etc/passwd"}}', "weight_map.w", PLAIN),
    "Windows path": ('{"weight_map": {"w": "..\\\\s.safetensors"}}', "weight_map.w", PLAIN),
    "Windows drive": ('{"weight_map": {"w": "c:s.safetensors"}}', "weight_map.w", PLAIN),
    "null character": ('{"weight_map": {"w": "s.safetensors\\u0000"}}', "weight_map.w", PLAIN),
    "half a surrogate pair": ('{"weight_map": {"w": "\\ud800"}}', "weight_map.w", PLAIN),
    "tensor not in its shard": (
        '{"weight_map": {"w": "s.safetensors", "v": "s.safetensors"}}',
        "weight_map.v", "is not in s.safetensors",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", INDEXES)
def test_a_lie_in_the_index_is_refused_by_name(folder: Path, case: str) -> None:
    text, field, problem = INDEXES[case]
    (folder / "model.safetensors").rename(folder / "s.safetensors")
    path = folder / "model.safetensors.index.json"
    path.write_text('{"weight_map": {"w": "s.safetensors"}}')
    assert list(open_checkpoint(folder).tensors) == ["w"]
    path.write_text(text)
    refuse(folder, path, field, problem)


def test_an_index_to_a_missing_shard_is_refused(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"w": "gone.safetensors"}}')
    refuse(folder, folder / "gone.safetensors", "", "no such file")


# Shards without an index.


def shards(folder: Path, *names: str) -> None:
    (folder / "model.safetensors").unlink()
    for index, name in enumerate(names):
        (folder / name).write_bytes(one(name=f"w{index}"))


def test_a_missing_shard_is_refused(folder: Path) -> None:
    shards(folder, "model-00001-of-00003.safetensors", "model-00003-of-00003.safetensors")
    refuse(folder, folder, "", "1 of 00003 shards are missing: model-00002-of-00003.safetensors")


def test_a_shard_out_of_range_is_refused(folder: Path) -> None:
    shards(folder, "model-00001-of-00001.safetensors", "model-00002-of-00001.safetensors")
    refuse(folder, folder, "", "out of range: model-00002-of-00001.safetensors")


def test_two_series_of_shards_are_refused(folder: Path) -> None:
    shards(folder, "model-00001-of-00001.safetensors", "model-00001-of-00002.safetensors")
    refuse(folder, folder, "", "different series")


def test_a_series_of_nothing_is_refused(folder: Path) -> None:
    shards(folder, "model-00000-of-00000.safetensors")
    refuse(folder, folder, "", "out of range")


def test_a_tensor_in_two_shards_is_refused(folder: Path) -> None:
    shards(folder, "model-00001-of-00002.safetensors")
    second = folder / "model-00002-of-00002.safetensors"
    second.write_bytes(one(name="w0"))
    refuse(folder, second, "tensor w0", "another shard")


def test_one_shard_alone_points_to_its_folder(folder: Path) -> None:
    path = folder / "model-00001-of-00001.safetensors"
    shards(folder, path.name)
    refuse(path, path, "", "open its folder")


# The files beside.

BESIDE = {
    "config not JSON": ("config.json", b"{", "", "not valid JSON"),
    "config a list": ("config.json", b"[1]", "", "not an object"),
    "config null": ("config.json", b"null", "", "not an object"),
    "config not UTF-8": ("config.json", b'{"a": "\xff"}', "byte 7", "not valid UTF-8"),
    "config nested too deeply": ("config.json", b'{"a":' * 100_000, "", "nested too deeply"),
    "config a number of 99 digits": ("config.json", b'{"a": ' + b"1" * 99 + b"}", "", "has 99 digits"),
    "generation config a list": ("generation_config.json", b"[]", "", "not an object"),
    "generation config empty": ("generation_config.json", b"", "", "not valid JSON"),
    "template not UTF-8": ("chat_template.jinja", b"\xff", "byte 0", "not valid UTF-8"),
    "template too large": ("chat_template.jinja", b" " * (2**20 + 1), "", "at most 1048576"),
    "template a number": ("chat_template.json", b'{"chat_template": 1}', "chat_template", "not a text"),
    "template with half a surrogate pair": (
        "tokenizer_config.json", b'{"chat_template": "\\ud800"}', "chat_template", "not a text"
    ),
    "template in JSON too large": (
        "tokenizer_config.json", b'{"chat_template": "' + b" " * (2**20 + 1) + b'"}',
        "chat_template", "not a text",
    ),
    "list of templates with a number": (
        "tokenizer_config.json", b'{"chat_template": [1]}', "chat_template", "not a list of objects"
    ),
    "default template a number": (
        "tokenizer_config.json", b'{"chat_template": [{"name": "default", "template": 1}]}',
        "chat_template", "not a text",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BESIDE)
def test_a_bad_file_beside_the_weights_is_refused_by_name(folder: Path, case: str) -> None:
    name, content, field, problem = BESIDE[case]
    (folder / name).write_bytes(content)
    refuse(folder, folder / name, field, problem)


def test_a_missing_config_is_refused(folder: Path) -> None:
    (folder / "config.json").unlink()
    refuse(folder, folder / "config.json", "", "is missing")
    refuse(folder / "model.safetensors", folder / "config.json", "", "is missing")


def test_a_config_past_the_cap_is_not_read(folder: Path) -> None:
    os.truncate(folder / "config.json", 2**33)
    refuse(folder, folder / "config.json", "", "at most")


def test_a_config_that_is_a_pipe_is_refused_without_waiting(folder: Path) -> None:
    (folder / "config.json").unlink()
    os.mkfifo(folder / "config.json")
    refuse(folder, folder / "config.json", "", "not a regular file")
