"""What is on the disk, and the settings: their problems, and no secrets or paths."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from olivine.doctor import disk


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home folder with two megabytes of downloads."""
    for name in os.environ:
        if name.startswith(("OLIVINE_", "HF_", "OLLAMA_", "XDG_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "alice"))
    repository = tmp_path / "alice/.cache/huggingface/hub/models--a--b"
    for part in ("blobs", "refs", "snapshots/c0ffee"):
        (repository / part).mkdir(parents=True)
    (repository / "refs/main").write_text("c0ffee")
    (repository / "blobs/1234").write_bytes(b"x" * 1_999_994)
    (repository / "snapshots/c0ffee/b-Q4_K_M.gguf").symlink_to(repository / "blobs/1234")  # counted once
    (repository / "folder").symlink_to(repository / "blobs")
    return tmp_path / "alice"


def test_folders_are_added_up(home: Path) -> None:
    found = disk.stores(paths=False)
    assert ("Hugging Face", "1 model, 2.0 MB") in found.lines
    assert "alice" not in repr(found)
    shown = disk.stores(paths=True)
    assert ("Hugging Face", "1 model, 2.0 MB  ~/.cache/huggingface/hub") in shown.lines


def test_a_folder_that_takes_too_long_is_told_in_part(home: Path) -> None:
    assert disk.folder_size(home, longest=-1.0) == (0, False)
    assert disk.folder_size(home) == (2_000_000, True)


def test_a_full_disk_is_named(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = type("Usage", (), {"free": 10**9})
    monkeypatch.setattr(disk.shutil, "disk_usage", lambda path: full)
    assert [problem.what for problem in disk.stores(paths=False).problems] == ["only 1.0 GB of disk are free"]


def test_settings_are_named_without_their_values(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert disk.settings(paths=False).lines == [("file", "none"), ("variables", "none")]
    file = home / ".config/olivine/config.toml"
    file.parent.mkdir(parents=True)
    file.write_text('threads = 1\n[serve]\napi-key = "sesame"\n')
    file.chmod(0o644)
    monkeypatch.setenv("OLIVINE_API_KEY", "sesame")
    monkeypatch.setenv("OLIVINE_ISA", "plain")
    found = disk.settings(paths=False)
    assert found.lines == [
        ("file", "serve.api-key, threads"),
        ("variables", "OLIVINE_ISA=plain, OLIVINE_API_KEY"),
    ]
    assert "sesame" not in repr(found) and "alice" not in repr(found)
    assert [problem.what for problem in found.problems] == [
        "others can read the API key in the settings file"
    ]
    file.chmod(0o600)
    assert disk.settings(paths=False).problems == []


def test_a_broken_settings_file_is_a_failure(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = home / "config.toml"
    file.write_text("prot = 1\n")
    monkeypatch.setenv("OLIVINE_CONFIG", str(file))
    (problem,) = disk.settings(paths=False).problems
    assert problem.failure and "there is no setting 'prot'" in problem.what
