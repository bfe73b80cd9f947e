"""GGUF files that the format's own library writes, read back: the same names, types, shapes and bytes."""

from __future__ import annotations

import struct
from pathlib import Path

import gguf
import numpy as np
import pytest

from formats.builders import (
    BOOL,
    F32,
    F64,
    I8,
    I16,
    I32,
    I64,
    U8,
    U16,
    U32,
    U64,
    gguf_array,
    gguf_entry,
    gguf_file,
    gguf_info,
    gguf_strings,
    gguf_text,
)
from olivine.dtypes import DTYPES
from olivine.errors import CheckpointError
from olivine.formats import Checkpoint, open_checkpoint
from olivine.formats.ggml_types import REMOVED_NAMES, SUPPORTED, TYPE_NAMES, type_of
from oracles import sampled

VECTORS = Path(__file__).parents[3] / "shared" / "data" / "vectors"


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def writer(path: Path, **options: object) -> gguf.GGUFWriter:
    return gguf.GGUFWriter(path, "llama", **options)


def finish(result: gguf.GGUFWriter) -> None:
    result.write_header_to_file()
    result.write_kv_data_to_file()
    result.write_tensors_to_file()
    result.close()


def add_random(result: gguf.GGUFWriter, name: str, shape: tuple[int, ...], type_name: str, seed: int) -> None:
    """A tensor of random bytes: any bytes are blocks."""
    kind = gguf.GGMLQuantizationType[type_name]
    block, size = gguf.GGML_QUANT_SIZES[kind]
    row = shape[-1] // block * size
    raw = np.random.default_rng(seed).integers(0, 256, (*shape[:-1], row), np.uint8)
    result.add_tensor(name, raw, raw_dtype=kind)


def assert_equal_to_library(checkpoint: Checkpoint, path: Path) -> None:
    expected = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    assert list(checkpoint.tensors) == list(expected)
    for name, tensor in checkpoint.tensors.items():
        other = expected[name]
        assert tensor.name == name
        assert tensor.dtype.name == other.tensor_type.name
        assert tensor.shape == tuple(int(extent) for extent in reversed(other.shape))
        np.testing.assert_array_equal(tensor.data, other.data.reshape(-1).view(np.uint8))
        assert tensor.scales is None


@pytest.mark.parametrize("alignment", [None, 8, 64])
def test_every_supported_type_reads_as_the_library_reads_it(tmp_path: Path, alignment: int | None) -> None:
    path = tmp_path / "model.gguf"
    result = writer(path)
    if alignment:
        result.add_custom_alignment(alignment)
    for seed, name in enumerate(DTYPES):
        # One row more or less per tensor, so that padding differs.
        add_random(result, f"{name}.weight", (seed % 3 + 1, 512), name, seed)
    add_random(result, "experts.weight", (2, 3, 64), "Q8_0", 1)
    add_random(result, "norm.weight", (5,), "F32", 2)
    finish(result)
    checkpoint = open_checkpoint(path)
    assert_equal_to_library(checkpoint, path)
    assert checkpoint.format == checkpoint.naming == "gguf"
    assert checkpoint.architecture == "llama"
    assert checkpoint.files == (path,)
    assert checkpoint.file_bytes == path.stat().st_size


def test_the_type_table_is_the_librarys() -> None:
    for kind in gguf.GGMLQuantizationType:
        assert TYPE_NAMES[kind.value] == kind.name
    assert {dtype.name for dtype in SUPPORTED.values()} == set(DTYPES)
    assert not REMOVED_NAMES.keys() & TYPE_NAMES.keys()
    for kind, sizes in gguf.GGML_QUANT_SIZES.items():
        dtype = type_of(kind.value)
        assert dtype.name == kind.name and dtype.runs == (kind.name in DTYPES)
        # The library has an old layout of Q8_1, which is in no file.
        assert (dtype.block_size, dtype.block_bytes) == sizes or kind.name == "Q8_1"


def test_metadata_of_every_value_type(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    result = writer(path)
    result.add_uint8("a.u8", 255)
    result.add_int8("a.i8", -128)
    result.add_uint16("a.u16", 65535)
    result.add_int16("a.i16", -32768)
    result.add_uint32("a.u32", 2**32 - 1)
    result.add_int32("a.i32", -(2**31))
    result.add_float32("a.f32", 0.1)
    result.add_bool("a.yes", True)
    result.add_bool("a.no", False)
    result.add_string("a.text", "Grüße ✓")
    result.add_uint64("a.u64", 2**64 - 1)
    result.add_int64("a.i64", -(2**63))
    result.add_float64("a.f64", 0.1)
    result.add_array("a.texts", ["", "one", "žwei"])
    result.add_array("a.integers", [1, -2, 3])
    result.add_array("a.floats", [0.5, -0.25])
    result.add_array("a.flags", [True, False, True])
    finish(result)
    metadata = dict(open_checkpoint(path).metadata)
    arrays = {key: metadata.pop(key) for key in ("a.integers", "a.floats", "a.flags")}
    assert metadata == {
        "general.architecture": "llama",
        "a.u8": 255, "a.i8": -128, "a.u16": 65535, "a.i16": -32768, "a.u32": 2**32 - 1, "a.i32": -(2**31),
        "a.f32": float(np.float32(0.1)), "a.yes": True, "a.no": False, "a.text": "Grüße ✓",
        "a.u64": 2**64 - 1, "a.i64": -(2**63), "a.f64": 0.1, "a.texts": ["", "one", "žwei"],
    }  # fmt: skip
    assert type(metadata["a.yes"]) is bool and type(metadata["a.u8"]) is int
    assert arrays["a.integers"].tolist() == [1, -2, 3] and arrays["a.integers"].dtype == np.int32
    assert arrays["a.floats"].tolist() == [0.5, -0.25] and arrays["a.floats"].dtype == np.float32
    assert arrays["a.flags"].tolist() == [True, False, True] and arrays["a.flags"].dtype == np.bool_


@pytest.mark.parametrize(
    ("kind", "code", "values"),
    [
        (U8, "B", [0, 255]),
        (I8, "b", [-128, 127]),
        (U16, "H", [0, 65535]),
        (I16, "h", [-32768, 7]),
        (U32, "I", [0, 2**32 - 1]),
        (I32, "i", [-(2**31), 5]),
        (F32, "f", [0.5, -1.0]),
        (BOOL, "B", [2, 0]),
        (U64, "Q", [2**64 - 1, 1]),
        (I64, "q", [-(2**63), 1]),
        (F64, "d", [0.1, -3.0]),
    ],
)
def test_arrays_of_every_number_type(tmp_path: Path, kind: int, code: str, values: list[float]) -> None:
    elements = struct.pack(f"<{len(values)}{code}", *values)
    path = write(
        tmp_path / "a.gguf", gguf_file([gguf_array("odd", kind, 2, elements), gguf_text("after", "x")])
    )
    metadata = open_checkpoint(path).metadata
    result = metadata["odd"]
    assert result.tolist() == ([bool(value) for value in values] if kind == BOOL else values)
    assert metadata["after"] == "x"
    assert not result.flags.writeable and result.flags.aligned and result.dtype.isnative


def test_empty_arrays(tmp_path: Path) -> None:
    path = write(tmp_path / "a.gguf", gguf_file([gguf_array("n", I32, 0, b""), gguf_strings("s", [])]))
    metadata = open_checkpoint(path).metadata
    assert metadata["n"].shape == (0,) and metadata["s"] == []


def test_a_token_that_is_not_utf8_keeps_its_bytes(tmp_path: Path) -> None:
    path = write(tmp_path / "a.gguf", gguf_file([gguf_strings("tokens", [b"ok", b"\xff\x00\xc3"])]))
    tokens = open_checkpoint(path).metadata["tokens"]
    assert [token.encode("utf-8", "surrogateescape") for token in tokens] == [b"ok", b"\xff\x00\xc3"]


def test_a_text_that_is_not_utf8_still_becomes_text(tmp_path: Path) -> None:
    path = write(tmp_path / "a.gguf", gguf_file([gguf_text("tokenizer.chat_template", b"a\xffb")]))
    assert open_checkpoint(path).chat_template == "a\ufffdb"


def test_version_2_reads_like_version_3(tmp_path: Path) -> None:
    infos = [gguf_info("t", [4, 2], 0, 0)]
    data = np.arange(8, dtype=np.float32).tobytes()
    for version in (2, 3):
        path = write(
            tmp_path / f"v{version}.gguf", gguf_file([gguf_text("k", "v")], infos, data, version=version)
        )
        checkpoint = open_checkpoint(path)
        assert checkpoint.metadata == {"k": "v"}
        assert checkpoint.tensors["t"].shape == (2, 4)
        assert checkpoint.tensors["t"].data.tobytes() == data


def test_a_tensor_without_dimensions_has_one_element(tmp_path: Path) -> None:
    path = write(tmp_path / "a.gguf", gguf_file([], [gguf_info("t", [], 0, 0)], bytes(4)))
    assert open_checkpoint(path).tensors["t"].shape == (1,)


def test_data_may_have_gaps_and_any_order(tmp_path: Path) -> None:
    infos = [gguf_info("b", [1], 0, 96), gguf_info("a", [1], 0, 0)]
    path = write(tmp_path / "a.gguf", gguf_file([], infos, b"aaaa".ljust(96, b"-") + b"bbbb"))
    tensors = open_checkpoint(path).tensors
    assert tensors["a"].data.tobytes() == b"aaaa" and tensors["b"].data.tobytes() == b"bbbb"


def test_tensors_are_read_only_views_of_the_map(tmp_path: Path) -> None:
    """Two tensors of one file are as far apart in memory as in the file: nothing was copied."""
    infos = [gguf_info("a", [64], 0, 0), gguf_info("b", [64], 0, 512)]
    path = write(tmp_path / "a.gguf", gguf_file([], infos, bytes(512 + 256)))
    a, b = open_checkpoint(path).tensors.values()
    assert b.data.ctypes.data - a.data.ctypes.data == 512
    for tensor in (a, b):
        assert not tensor.data.flags.writeable and not tensor.data.flags.owndata
        with pytest.raises(ValueError):
            tensor.data.flags.writeable = True
    # The map is shared with the file: what is written there shows up here.
    with path.open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\x7f")
    assert b.data[-1] == 0x7F


def test_a_vocabulary_only_file_may_end_after_its_metadata(tmp_path: Path) -> None:
    entries = [
        gguf_text("general.architecture", "llama"),
        gguf_strings("tokenizer.ggml.tokens", ["a", "b", "c"]),
    ]
    content = gguf_file(entries)
    assert len(content) % 32
    checkpoint = open_checkpoint(write(tmp_path / "vocab.gguf", content))
    assert checkpoint.tensors == {} and len(checkpoint.metadata["tokenizer.ggml.tokens"]) == 3


@pytest.mark.parametrize("name", sampled.every(2, ["llama-spm.vocab.gguf", "gpt-2.vocab.gguf"]))
def test_published_vocabularies_read_as_the_library_reads_them(name: str) -> None:
    path = VECTORS / name
    if not path.exists():
        pytest.skip("the shared vocabularies are not on this machine")
    metadata = open_checkpoint(path).metadata
    fields = {
        key: field for key, field in gguf.GGUFReader(path).fields.items() if not key.startswith("GGUF.")
    }
    assert list(metadata) == list(fields)
    for key, field in fields.items():
        if field.types[-1] == gguf.GGUFValueType.STRING and field.types[0] == gguf.GGUFValueType.ARRAY:
            expected = [bytes(field.parts[part]).decode("utf-8", "surrogateescape") for part in field.data]
            assert metadata[key] == expected
        else:
            assert np.array_equal(metadata[key], field.contents())


def test_the_chat_template_is_found(tmp_path: Path) -> None:
    path = write(tmp_path / "a.gguf", gguf_file([gguf_text("tokenizer.chat_template", "{{ messages }}")]))
    assert open_checkpoint(path).chat_template == "{{ messages }}"
    assert open_checkpoint(path).tool_template is None
    further = gguf_text("tokenizer.chat_template.tool_use", "{{ tools }}")
    path = write(tmp_path / "b.gguf", gguf_file([gguf_text("tokenizer.chat_template", "{{ a }}"), further]))
    checkpoint = open_checkpoint(path)
    assert (checkpoint.chat_template, checkpoint.tool_template) == ("{{ a }}", "{{ tools }}")


def test_a_projector_opens_like_a_model(tmp_path: Path) -> None:
    entries = [gguf_text("general.architecture", "clip"), gguf_text("general.type", "mmproj")]
    checkpoint = open_checkpoint(write(tmp_path / "mmproj.gguf", gguf_file(entries)))
    assert checkpoint.architecture == "clip"


def test_a_file_without_architecture_says_so_when_asked(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write(tmp_path / "a.gguf", gguf_file([gguf_entry("n", U8, b"\1")])))
    with pytest.raises(CheckpointError, match=r"general\.architecture"):
        _ = checkpoint.architecture


def test_the_librarys_split_files_are_one_model(tmp_path: Path) -> None:
    result = writer(tmp_path / "model.gguf", split_max_tensors=2)
    result.add_uint32("llama.block_count", 1)
    for seed, name in enumerate("abcde"):
        add_random(result, name, (2, 64), "Q4_0", seed)
    finish(result)
    first = tmp_path / "model-00001-of-00003.gguf"
    checkpoint = open_checkpoint(first)
    assert list(checkpoint.tensors) == list("abcde")
    assert checkpoint.metadata["llama.block_count"] == 1
    assert [path.name for path in checkpoint.files] == [f"model-0000{n}-of-00003.gguf" for n in (1, 2, 3)]
    assert checkpoint.file_bytes == sum(path.stat().st_size for path in checkpoint.files)
    for path in checkpoint.files:
        for tensor in gguf.GGUFReader(path).tensors:
            np.testing.assert_array_equal(checkpoint.tensors[tensor.name].data, tensor.data.reshape(-1))
    assert open_checkpoint(tmp_path).tensors.keys() == checkpoint.tensors.keys()
