"""Which reader gets a path, and what is said of paths that none can read."""

from __future__ import annotations

import io
import mmap
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import olivine.formats
from formats.builders import (
    AJC1_CONFIG,
    ajc1_file,
    gguf_file,
    gguf_info,
    gguf_text,
    safetensors_entry,
    safetensors_file,
)
from olivine.errors import CheckpointError
from olivine.formats import open_checkpoint
from olivine.formats.mapping import map_file
from olivine.pages import prefer_huge_pages

GGUF = gguf_file([gguf_text("general.architecture", "llama")])
SAFETENSORS = safetensors_file({"w": safetensors_entry("F32", [1], 0, 4)}, bytes(4))


def refuse(path: str | Path, *problems: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(path)
    assert caught.value.path == str(path)
    for problem in problems:
        assert problem in caught.value.problem


def test_the_public_names() -> None:
    assert set(olivine.formats.__all__) == {"Checkpoint", "Tensor", "open_checkpoint"}


@pytest.mark.parametrize(
    ("content", "expected"),
    [(GGUF, "gguf"), (SAFETENSORS, "safetensors"), (ajc1_file(AJC1_CONFIG)[0], "qwen3.c")],
    ids=["gguf", "safetensors", "qwen3.c"],
)
def test_a_files_bytes_tell_its_format(tmp_path: Path, content: bytes, expected: str) -> None:
    (tmp_path / "config.json").write_text("{}")
    for name in ("a.gguf", "a.bin", "a.safetensors", "a"):
        (tmp_path / name).write_bytes(content)
        assert open_checkpoint(tmp_path / name).format == expected
        assert open_checkpoint(str(tmp_path / name)).format == expected


KNOWN = ("safetensors", "GGUF", "qwen3.c")


def test_a_missing_path(tmp_path: Path) -> None:
    refuse(tmp_path / "nothing", "no such file or folder")


def test_a_path_that_cannot_be() -> None:
    refuse("a\0b", "cannot be opened")
    refuse("x" * 5000, "cannot be opened")


def test_an_empty_file(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    refuse(tmp_path / "a", "the file is empty")


def test_a_file_that_the_system_will_not_map(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(24, "Too many open files")

    (tmp_path / "a").write_bytes(GGUF)
    monkeypatch.setattr("olivine.formats.mapping.mmap.mmap", fail)
    refuse(tmp_path / "a", "cannot be mapped", "Too many open files")


def test_a_file_that_the_disk_will_not_give(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(io.FileIO):
        def read(self, size: int | None = -1, /) -> bytes:
            raise OSError(5, "Input/output error")

    (tmp_path / "model.safetensors").write_bytes(SAFETENSORS)
    (tmp_path / "config.json").write_text("{}")
    monkeypatch.setattr("olivine.formats.mapping.os.fdopen", Broken)
    with pytest.raises(CheckpointError, match=r"config\.json: cannot be read: Input/output error"):
        open_checkpoint(tmp_path)


def test_an_unknown_file(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"hello, world")
    refuse(tmp_path / "a", "b'hello, w'", *KNOWN)
    (tmp_path / "a").write_bytes(b"h")
    refuse(tmp_path / "a", "b'h'", *KNOWN)


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"PK\3\4" + bytes(30), "PyTorch"),
        (b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
        (b"<!DOCTYPE html>", "HTML"),
        (b"\x80\x02\x8a\x0a" + bytes(30), "could run code"),
    ],
)
def test_a_file_that_people_mistake_for_a_model(tmp_path: Path, content: bytes, what: str) -> None:
    (tmp_path / "a.bin").write_bytes(content)
    refuse(tmp_path / "a.bin", what, *KNOWN)


def test_a_pipe_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    refuse(tmp_path / "pipe", "not a regular file")


@pytest.mark.skipif(not os.path.exists("/dev/zero"), reason="no such device here")
def test_a_device_is_refused() -> None:
    refuse("/dev/zero", "not a regular file")


def test_a_folder_where_a_file_should_be(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").mkdir()
    with pytest.raises(CheckpointError, match="not a regular file"):
        open_checkpoint(tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(GGUF)
    (tmp_path / "a").chmod(0)
    refuse(tmp_path / "a", "cannot be opened")


def test_an_empty_folder(tmp_path: Path) -> None:
    refuse(tmp_path, "is empty", *KNOWN)


def test_a_folder_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("olivine.formats.os.listdir", fail)
    refuse(tmp_path, "cannot be read: Permission denied")


def test_a_folder_without_a_model_says_what_it_holds(tmp_path: Path) -> None:
    for index in range(10):
        (tmp_path / f"file{index}").touch()
    refuse(tmp_path, "holds file0, file1", "and 2 more", *KNOWN)


def test_a_folder_with_one_gguf_is_that_model(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(GGUF)
    for name in ("mmproj-model-f16.gguf", "README.md"):
        (tmp_path / name).write_bytes(b"not looked at")
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.path == tmp_path
    assert checkpoint.files == (tmp_path / "model.gguf",)


def test_a_folder_with_several_ggufs_asks_for_one(tmp_path: Path) -> None:
    for name in ("a-q4.gguf", "a-q8.gguf"):
        (tmp_path / name).write_bytes(GGUF)
    refuse(tmp_path, "a-q4.gguf, a-q8.gguf", "name one of them")


def test_safetensors_go_before_gguf(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(GGUF)
    (tmp_path / "model.safetensors").write_bytes(SAFETENSORS)
    (tmp_path / "config.json").write_text("{}")
    assert open_checkpoint(tmp_path).format == "safetensors"


def test_a_broken_link_is_reported_as_the_file_it_should_be(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").symlink_to(tmp_path / "gone")
    with pytest.raises(CheckpointError, match="no such file") as caught:
        open_checkpoint(tmp_path)
    assert caught.value.path == str(tmp_path / "model.safetensors")


def test_descriptors_are_not_left_open(tmp_path: Path) -> None:
    if not os.path.isdir("/proc/self/fd"):
        pytest.skip("cannot count descriptors here")
    (tmp_path / "good").write_bytes(GGUF)
    (tmp_path / "bad").write_bytes(b"GGUF")
    os.mkfifo(tmp_path / "pipe")
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        open_checkpoint(tmp_path / "good")
        for name in ("bad", "pipe"):
            with pytest.raises(CheckpointError):
                open_checkpoint(tmp_path / name)
    assert len(os.listdir("/proc/self/fd")) <= before + 2


# In a process of its own: memory that other tests once used would hide what this one uses.
OPEN_AND_MEASURE = """
import re, sys
from olivine.formats import open_checkpoint

def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1])

before = peak()
tensor = open_checkpoint(sys.argv[1]).tensors["w"]
assert tensor.data[0] == tensor.data[-1] == 0
print(tensor.data.size, peak() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs sparse files and /proc")
def test_a_large_file_is_mapped_and_not_read(tmp_path: Path) -> None:
    path = tmp_path / "large.gguf"
    rows = 2**33 // 34 // 128  # of 4096 elements in Q8_0: eight gigabytes
    path.write_bytes(gguf_file([], [gguf_info("w", [4096, rows], 8, 0)]))
    size = rows * 128 * 34
    os.truncate(path, path.stat().st_size + size)
    if path.stat().st_blocks * 512 > 1 << 20:
        pytest.skip("the file system keeps no holes")
    output = subprocess.check_output([sys.executable, "-c", OPEN_AND_MEASURE, str(path)], text=True)
    found, growth = map(int, output.split())
    assert found == size > 8 * 10**9
    assert growth < 50 * 1024, f"{growth} kB"


def test_mistrals_own_form_is_told_apart(tmp_path: Path) -> None:
    (tmp_path / "consolidated.safetensors").write_bytes(SAFETENSORS)
    (tmp_path / "params.json").write_text("{}")
    refuse(tmp_path, "in Mistral's own form", "download model*.safetensors and config.json")


@pytest.mark.skipif(not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="has no huge pages")
def test_huge_pages_are_asked_for_parts_of_a_map(tmp_path: Path) -> None:
    """As one range, if there is less than a huge page between them; of whole pages."""
    path, page = tmp_path / "file", mmap.PAGESIZE
    huge = (2 << 20) // page  # in pages
    path.write_bytes(bytes(4 * huge * page))
    data = map_file(path).data
    asked = [
        (3 * huge + 3, 3 * huge + 9),
        (4, 8),
        (10, 11),
        (huge + 10, 2 * huge),
        (3 * huge + 4, 3 * huge + 5),
    ]
    prefer_huge_pages(data[first * page - 1 : last * page + 1] for first, last in asked)
    prefer_huge_pages([data[:1], np.zeros(4 * page, np.uint8)])  # no whole page, and no map
    flags: list[bool] = []
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name, _, words = line.partition(" ")
        if "-" in name:  # a range, and what is mapped there
            start, end = (int(each, 16) for each in name.split("-"))
            mine = words.endswith(str(path))
        elif name == "VmFlags:" and mine:
            flags += ["hg" in words.split()] * ((end - start) // page)
    wanted = [range(4, 2 * huge), range(3 * huge + 3, 3 * huge + 9)]
    assert flags == [any(i in each for each in wanted) for i in range(4 * huge)]
