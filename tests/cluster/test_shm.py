"""The memory in which the ranks of one machine meet: it is there before they need it, and gone after them."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from olivine.backends.cpu import native
from olivine.backends.cpu.shm import shared_file
from olivine.errors import OlivineError

resource = pytest.importorskip("resource")  # not on Windows, where nobody knows how many blocks a file has


@pytest.fixture(params=["memory", "folder"])
def folder(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a system without files of no folder has them."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    if request.param == "folder":
        monkeypatch.delattr(os, "memfd_create", raising=False)
    elif not hasattr(os, "memfd_create"):
        pytest.skip("Linux only")
    return tmp_path


def test_all_of_it_is_there_from_the_start(folder: Path) -> None:
    """A page that is missing in a step would end the process."""
    with shared_file(4, 2) as path:
        found = path.stat()
        assert found.st_size == native.lib().olv_shm_bytes(4, 2) <= 512 * found.st_blocks
        assert not any(path.read_bytes())
    assert not path.exists()


def test_where_there_is_no_room_it_is_told_and_nothing_is_left(folder: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, before[1]))
    try:
        with pytest.raises(OlivineError, match="no room for the 8 MB in which ranks meet"):
            shared_file(8, 1).__enter__()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list(folder.iterdir()) == []


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="other systems have no such files")
def test_on_linux_no_folder_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither /dev/shm, which may be small, nor another: who is killed leaves nothing."""
    monkeypatch.delattr(tempfile, "mkstemp")
    with shared_file(2, 1) as path:
        assert path.resolve().name.startswith("memfd:olivine-ranks")
