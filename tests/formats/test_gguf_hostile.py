"""Malformed GGUF files: each defect is one CheckpointError that names the file and the field."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest

from formats.builders import (
    ARRAY,
    BOOL,
    I32,
    STRING,
    U8,
    U16,
    U32,
    U64,
    gguf_array,
    gguf_entry,
    gguf_file,
    gguf_info,
    gguf_string,
    gguf_strings,
    gguf_text,
)
from olivine.errors import CheckpointError
from olivine.formats import gguf, open_checkpoint
from olivine.formats.mapping import Source

BIG = 2**64 - 1


def u32(value: int) -> bytes:
    return struct.pack("<I", value)


def u64(value: int) -> bytes:
    return struct.pack("<Q", value)


def tensor(
    *infos: bytes, entries: tuple[bytes, ...] = (), data: bytes = bytes(4096), alignment: int = 32
) -> bytes:
    return gguf_file(entries, infos, data, alignment=alignment)


def aligned(kind: int, value: bytes) -> bytes:
    return tensor(gguf_info("t", [1], 0, 0), entries=(gguf_entry("general.alignment", kind, value),))


CASES = {
    # The start.
    "magic only": (b"GGUF", "version", "past the end"),
    "version 0": (gguf_file(version=0), "version", "0 is not supported"),
    "version 1": (gguf_file(version=1), "version", "1 is not supported"),
    "version 4": (gguf_file(version=4), "version", "4 is not supported"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "version", "big-endian"),
    # Counts.
    "key count 2^63": (gguf_file(key_count=2**63), "kv_count", "do not fit"),
    "key count 10^9": (gguf_file(key_count=10**9), "kv_count", "do not fit"),
    "key count past the cap": (gguf_file(key_count=65_537, data=bytes(1 << 20)), "kv_count", "65536"),
    "tensor count 2^63": (gguf_file(tensor_count=2**63), "tensor_count", "do not fit"),
    "tensor count 10^9": (gguf_file(tensor_count=10**9), "tensor_count", "do not fit"),
    "tensor count past the cap": (
        gguf_file(tensor_count=2**20 + 1, data=bytes(24 * 2**20 + 100)), "tensor_count", "1048576"
    ),
    "more keys than there are": (
        gguf_file([gguf_text("k", "v" * 30)], key_count=2), "key of metadata entry 1", "past the end"
    ),
    # Strings.
    "string of 2^64-1": (gguf_file([gguf_entry("k", STRING, u64(BIG))]), "k", "is the limit"),
    "string past the end": (gguf_file([gguf_entry("k", STRING, u64(100) + b"short")]), "k", "past the end"),
    "key of 2^64-1": (gguf_file([u64(BIG) + bytes(20)]), "key of metadata entry 0", "is the limit"),
    "key past the end": (gguf_file([u64(1000) + bytes(20)]), "key of metadata entry 0", "past the end"),
    "key past the cap": (gguf_file([gguf_text("k" * 65_536, "")]), "key of metadata entry 0", "65535"),
    "name past the cap": (tensor(gguf_info("n" * 4097, [1], 0, 0)), "name of tensor 0", "4096"),
    # Arrays.
    "array of 2^61 × 8 bytes": (gguf_file([gguf_array("k", U64, 2**61, b"")]), "k", "past the end"),
    "array of 2^64-1": (gguf_file([gguf_array("k", U8, BIG, b"")]), "k", "past the end"),
    "array past the end": (gguf_file([gguf_array("k", I32, 3, bytes(11))]), "k", "past the end"),
    "2^61 strings": (gguf_file([gguf_array("k", STRING, 2**61, b"")]), "k", "past the end"),
    "more strings than the cap": (
        gguf_file([gguf_array("k", STRING, 2**22 + 1, b"")], data=bytes(8 * (2**22 + 1))), "k", "4194304"
    ),
    "array string past the end": (
        gguf_file([gguf_array("k", STRING, 2, gguf_string("ok") + u64(100) + b"no")]), "k", "entry 1 of 2"
    ),
    "array string of 2^64-1": (
        gguf_file([gguf_array("k", STRING, 2, gguf_string("ok") + u64(BIG))]), "k", "entry 1 of 2"
    ),
    "array string with half a length": (
        gguf_file([gguf_array("k", STRING, 2, gguf_string("12345678") + b"\1\2\3")]), "k", "entry 1 of 2"
    ),
    "array of arrays": (gguf_file([gguf_array("k", ARRAY, 1, bytes(30))]), "k", "array of arrays"),
    "array of type 13": (gguf_file([gguf_array("k", 13, 1, bytes(30))]), "k", "13 does not exist"),
    "value type 13": (gguf_file([gguf_entry("k", 13, bytes(8))]), "k", "13 does not exist"),
    "value type 2^32-1": (gguf_file([gguf_entry("k", 2**32 - 1, bytes(8))]), "k", "does not exist"),
    # Names.
    "duplicate key": (gguf_file([gguf_text("k.x", "1"), gguf_text("k.x", "2")]), "k.x", "twice"),
    "duplicate tensor": (
        tensor(gguf_info("t.x", [1], 0, 0), gguf_info("t.x", [1], 0, 32)), "tensor t.x", "twice"
    ),
    "empty key": (gguf_file([gguf_text("", "v" * 9)]), "key of metadata entry 0", "empty"),
    "key not UTF-8": (gguf_file([gguf_entry(b"\xff\xfe", U8, b"\1")]), "key of metadata entry 0", "UTF-8"),
    "empty tensor name": (tensor(gguf_info("", [1], 0, 0)), "name of tensor 0", "empty"),
    "tensor name not UTF-8": (tensor(gguf_info(b"\xc3", [1], 0, 0)), "name of tensor 0", "UTF-8"),
    # Alignment.
    "alignment 0": (aligned(U32, u32(0)), "general.alignment", "0 is not a power of two"),
    "alignment 3": (aligned(U32, u32(3)), "general.alignment", "3 is not a power of two"),
    "alignment 2^31": (aligned(U32, u32(2**31)), "general.alignment", "is not a power of two"),
    "alignment -32": (aligned(I32, struct.pack("<i", -32)), "general.alignment", "is not a power of two"),
    "alignment true": (aligned(BOOL, b"\1"), "general.alignment", "is not a power of two"),
    "alignment as a string": (aligned(STRING, gguf_string("32")), "general.alignment", '"32" is not'),
    "alignment as an array": (aligned(ARRAY, u32(U32) + u64(1) + u32(32)), "general.alignment", "is not a"),
    # Dimensions.
    "5 dimensions": (tensor(gguf_info("t", [1] * 5, 0, 0)), "tensor t", "5 dimensions"),
    "2^32-1 dimensions": (
        tensor(gguf_string("t") + u32(2**32 - 1) + bytes(64)), "tensor t", "4294967295 dimensions"
    ),
    "dimension 0": (tensor(gguf_info("t", [32, 0], 0, 0)), "tensor t", "not all in"),
    "dimension 2^64-1": (tensor(gguf_info("t", [BIG], 0, 0)), "tensor t", "not all in"),
    "product 2^66": (tensor(gguf_info("t", [2**33, 2**33], 0, 0)), "tensor t", "past the end"),
    "product that wraps to 0": (tensor(gguf_info("t", [2**32, 2**32], 0, 0)), "tensor t", "past the end"),
    "bytes that wrap to 0": (tensor(gguf_info("t", [2**31, 2**31], 0, 0)), "tensor t", "past the end"),
    "row of half a block": (tensor(gguf_info("t", [48], 8, 0)), "tensor t", "whole blocks of 32"),
    "rows that only together are blocks": (
        tensor(gguf_info("t", [128, 2], 12, 0)), "tensor t", "whole blocks of 256"
    ),
    # Types.
    "row of half a block that does not run": (
        tensor(gguf_info("t", [128], 15, 0)), "tensor t", "whole blocks of 256 (Q8_K)"
    ),
    "row of half a grid's block": (
        tensor(gguf_info("t", [384], 16, 0)), "tensor t", "whole blocks of 256 (IQ2_XXS)"
    ),
    "row of one and a half": (tensor(gguf_info("t", [96], 40, 0)), "tensor t", "whole blocks of 64 (NVFP4)"),
    "bytes of a grid's block past the end": (
        tensor(gguf_info("t", [256], 16, 0), data=bytes(65)), "tensor t", "past the end"
    ),
    "bytes past the end that do not run": (
        tensor(gguf_info("t", [256], 15, 0), data=bytes(291)), "tensor t", "past the end"
    ),
    "unknown type past the end": (tensor(gguf_info("t", [32], 99, 1 << 20)), "tensor t", "past the end"),
    # Offsets.
    "unaligned offset": (tensor(gguf_info("t", [1], 0, 4)), "tensor t", "not a multiple"),
    "offset aligned to less than the file's 64": (
        tensor(gguf_info("t", [1], 0, 32), entries=(gguf_entry("general.alignment", U32, u32(64)),)),
        "tensor t", "not a multiple of the alignment, 64",
    ),
    "offset past the end": (tensor(gguf_info("t", [1], 0, 4096)), "tensor t", "past the end"),
    "offset 2^64-32": (tensor(gguf_info("t", [1], 0, 2**64 - 32)), "tensor t", "past the end"),
    "last byte past the end": (tensor(gguf_info("t", [8], 0, 0), data=bytes(31)), "tensor t", "past the end"),
    "no data at all": (gguf_file([], [gguf_info("t", [1], 0, 0)]), "tensor t", "past the end"),
    "overlap": (
        tensor(gguf_info("a", [16], 0, 32), gguf_info("b", [16], 0, 0)),
        "tensor a", "overlap those of tensor b",
    ),
    "one extent twice": (
        tensor(gguf_info("a", [8], 0, 0), gguf_info("b", [8], 0, 0)), "tensor b", "overlap those of tensor a"
    ),
    # Values that this reader itself uses.
    "template as a number": (
        gguf_file([gguf_entry("tokenizer.chat_template", U8, b"\1")]),
        "tokenizer.chat_template", "not a string",
    ),
    "split count as a string": (gguf_file([gguf_text("split.count", "2")]), "split.count", "not a whole"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_lie_is_refused_by_name(tmp_path: Path, case: str) -> None:
    content, field, problem = CASES[case]
    path = tmp_path / "hostile.gguf"
    path.write_bytes(content)
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(path)
    assert caught.value.path == str(path)
    assert caught.value.field == field
    assert problem in caught.value.problem


def test_what_is_just_within_the_limits_opens() -> None:
    name = "n" * 4096
    entries = (gguf_entry("k" * 65_535, U8, b"\1"), gguf_entry("general.alignment", U32, u32(2**20)))
    content = tensor(gguf_info(name, [2, 3, 1, 4], 0, 0), entries=entries, alignment=2**20)
    part = gguf.parse(Source(Path("x"), content))
    assert part.tensors[name].shape == (4, 1, 3, 2) and part.metadata["k" * 65_535] == 1


def good_file() -> bytes:
    entries = [
        gguf_text("general.architecture", "llama"),
        gguf_entry("n", U32, u32(7)),
        gguf_array("a", I32, 3, bytes(12)),
        gguf_strings("s", ["x", "", "longer"]),
        gguf_entry("b", BOOL, b"\1"),
    ]
    infos = [gguf_info("t", [32, 2], 8, 0), gguf_info("u", [3], 0, 96)]
    return gguf_file(entries, infos, bytes(96 + 12))


def test_every_truncation_is_refused() -> None:
    content = good_file()
    gguf.parse(Source(Path("whole"), content))
    for length in range(len(content)):
        with pytest.raises(CheckpointError) as caught:
            gguf.parse(Source(Path("cut"), content[:length]))
        assert caught.value.field


def test_names_that_could_drive_a_terminal_are_shown_escaped() -> None:
    content = tensor(gguf_info("\x1b[2J" + "n" * 1000, [0], 0, 0))
    with pytest.raises(CheckpointError) as caught:
        gguf.parse(Source(Path("x"), content))
    assert "\x1b" not in str(caught.value) and len(str(caught.value)) < 400


def test_a_header_larger_than_any_model_has_is_not_read(tmp_path: Path) -> None:
    """A sparse file of zeros is cheap to make and would be gigabytes of empty values."""
    path = tmp_path / "sparse.gguf"
    path.write_bytes(gguf_file([gguf_array("k", U8, 2**32, b"")]))
    os.truncate(path, 2**33)
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(path)
    assert caught.value.field == "k"


# Split files.


def part(number: int, count: int, names: str, total: int | None = None, no: int | None = None) -> bytes:
    entries = [
        gguf_entry("split.no", U16, struct.pack("<H", number - 1 if no is None else no)),
        gguf_entry("split.count", U16, struct.pack("<H", count)),
    ]
    if total is not None:
        entries.append(gguf_entry("split.tensors.count", I32, struct.pack("<i", total)))
    infos = [gguf_info(name, [8], 0, 32 * index) for index, name in enumerate(names)]
    return gguf_file(entries, infos, bytes(32 * len(names)))


def write_split(folder: Path, **changed: bytes) -> Path:
    parts = {"m-00001-of-00002.gguf": part(1, 2, "ab", 3), "m-00002-of-00002.gguf": part(2, 2, "c")}
    for name, content in (
        parts | {f"m-{key[1:]}-of-00002.gguf": value for key, value in changed.items()}
    ).items():
        (folder / name).write_bytes(content)
    return folder / "m-00001-of-00002.gguf"


def refuse(path: Path, at: Path, field: str, problem: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(path)
    assert (caught.value.path, caught.value.field) == (str(at), field)
    assert problem in caught.value.problem


def test_two_good_parts_open(tmp_path: Path) -> None:
    assert list(open_checkpoint(write_split(tmp_path)).tensors) == ["a", "b", "c"]


def test_a_missing_part_is_refused(tmp_path: Path) -> None:
    path = write_split(tmp_path)
    second = tmp_path / "m-00002-of-00002.gguf"
    second.unlink()
    refuse(path, second, "", "no such file")


def test_a_later_part_points_to_the_first(tmp_path: Path) -> None:
    write_split(tmp_path)
    second = tmp_path / "m-00002-of-00002.gguf"
    refuse(second, second, "split.no", "open part 1, m-00001-of-00002.gguf")


def test_a_renamed_part_is_refused(tmp_path: Path) -> None:
    path = write_split(tmp_path).rename(tmp_path / "model.gguf")
    refuse(path, path, "split.no", "-00001-of-00002.gguf")
    path = path.rename(tmp_path / "m-00001-of-00003.gguf")
    refuse(path, path, "split.no", "-00001-of-00002.gguf")


def test_a_part_that_is_another_part_is_refused(tmp_path: Path) -> None:
    path = write_split(tmp_path, p00002=part(2, 2, "c", no=0))
    refuse(path, tmp_path / "m-00002-of-00002.gguf", "split.no", "is 0, not 1")


def test_a_part_that_is_no_gguf_is_refused(tmp_path: Path) -> None:
    path = write_split(tmp_path, p00002=b"GGML" + part(2, 2, "c")[4:])
    refuse(path, tmp_path / "m-00002-of-00002.gguf", "magic", "b'GGML'")


def test_a_part_of_another_set_is_refused(tmp_path: Path) -> None:
    path = write_split(tmp_path, p00002=part(2, 3, "c"))
    refuse(path, tmp_path / "m-00002-of-00002.gguf", "split.count", "is 3, not 2")


def test_a_tensor_in_two_parts_is_refused(tmp_path: Path) -> None:
    path = write_split(tmp_path, p00002=part(2, 2, "b"))
    refuse(path, tmp_path / "m-00002-of-00002.gguf", "tensor b", "another part")


def test_a_wrong_total_is_refused(tmp_path: Path) -> None:
    path = write_split(tmp_path, p00001=part(1, 2, "ab", 4))
    refuse(path, path, "split.tensors.count", "promises 4 tensors, the parts hold 3")


def test_a_part_that_links_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    path = write_split(model)
    second = model / "m-00002-of-00002.gguf"
    second.rename(tmp_path / "elsewhere.gguf")
    second.symlink_to(tmp_path / "elsewhere.gguf")
    refuse(path, second, "", "leads out")


def test_a_part_that_links_to_itself_is_refused(tmp_path: Path) -> None:
    path = write_split(tmp_path)
    second = tmp_path / "m-00002-of-00002.gguf"
    second.unlink()
    second.symlink_to(second)
    refuse(path, second, "", "cannot be opened")


def test_parts_that_a_download_cache_links_open(tmp_path: Path) -> None:
    """Caches keep files under their hashes and link a folder of proper names to them."""
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshot"
    blobs.mkdir()
    snapshot.mkdir()
    for index, file in enumerate(sorted((write_split(blobs).parent).iterdir())):
        blob = file.rename(blobs / f"hash{index}")
        (snapshot / file.name).symlink_to(blob)
    assert len(open_checkpoint(snapshot / "m-00001-of-00002.gguf").tensors) == 3
