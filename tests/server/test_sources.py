"""Which models a path stands for, and how they are called."""

from __future__ import annotations

from pathlib import Path

import pytest

from olivine import box
from olivine.errors import OlivineError
from olivine.server.sources import find_models, model_name, unique_names


def made(folder: Path, *files: str) -> Path:
    for file in files:
        path = folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    return folder


def names_of(*paths: Path, **options: list[str]) -> list[str]:
    return [model.name for model in find_models(paths, **options)]


def test_a_model_is_called_as_its_file_or_folder() -> None:
    assert model_name(box.FILE) == "olivine-mini"
    assert model_name(Path("/models/Qwen3-0.6B-Q8_0.gguf")) == "Qwen3-0.6B-Q8_0"
    assert model_name(Path("/models/Qwen3-0.6B/")) == "Qwen3-0.6B", "the name of a folder has no ending"
    assert model_name(Path("/models/big-00001-of-00003.gguf")) == "big"
    assert model_name(Path("/models/old.bin")) == "old"


def test_every_model_in_a_folder_and_nothing_else(tmp_path: Path) -> None:
    made(
        tmp_path,
        "a.gguf",
        "B.GGUF",
        "mmproj-a.gguf",
        "notes.txt",
        "split-00001-of-00002.gguf",
        "split-00002-of-00002.gguf",
        "folder/model.safetensors",
        "folder/extra.gguf",
        "org/repo/c.gguf",
        ".hidden/d.gguf",
        "1/2/3/4/too-deep.gguf",
    )
    assert names_of(tmp_path) == ["B", "a", "split", "folder", "c"]


def test_a_folder_with_one_model_is_that_model(tmp_path: Path) -> None:
    (model,) = find_models([made(tmp_path / "m-gguf", "q4.gguf", "mmproj.gguf")])
    assert (model.name, model.path) == ("m-gguf", tmp_path / "m-gguf")
    (model,) = find_models([made(tmp_path / "hf", "model.safetensors", "config.json")])
    assert model.name == "hf" and model.created == int((tmp_path / "hf").stat().st_mtime)


def test_equal_names_get_the_folders_that_tell_them_apart(tmp_path: Path) -> None:
    made(tmp_path, "x/q4/m.gguf", "x/q8/m.gguf", "y/q8/m.gguf", "other.gguf")
    assert names_of(tmp_path) == ["other", "q4/m", "x/q8/m", "y/q8/m"]
    assert unique_names([Path("/a/m.gguf"), Path("/b/n.gguf")]) == ["m", "n"]


def test_aliases_and_pins(tmp_path: Path) -> None:
    made(tmp_path, "a.gguf", "b.gguf")
    a, b = find_models([tmp_path / "a.gguf", tmp_path / "b.gguf"], ["small:1b"], ["b"])
    assert (a.name, b.name, a.pinned, b.pinned) == ("small:1b", "b", False, True)
    assert names_of(tmp_path / "a.gguf", tmp_path / "a.gguf", aliases=["one", "two"]) == ["one", "two"]


@pytest.mark.parametrize(
    ("paths", "options", "words"),
    [
        (["no.gguf"], {}, "no.gguf: there is no such file or folder"),
        (["empty"], {}, "empty: holds no model"),
        (["a.gguf", "a.gguf"], {}, "a: two models have the same name: give them others with --alias."),
        (["a.gguf", "b.gguf"], {"aliases": ["x", "x"]}, "x: two models have the same name"),
        (["."], {"aliases": ["x"]}, "holds 2 models, and one name is given"),
        (["a.gguf"], {"pinned": ["c"]}, "--pin c: no model has that name; there are: a"),
    ],
)
def test_what_cannot_be_is_told(
    tmp_path: Path, paths: list[str], options: dict[str, list[str]], words: str
) -> None:
    made(tmp_path, "a.gguf", "b.gguf", "empty/notes.txt")
    with pytest.raises(OlivineError, match=words):
        find_models([tmp_path / path for path in paths], **options)
