"""Which models there are: files, and folders of them, and the names that clients call them by."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from olivine import box
from olivine.errors import CheckpointError, RequestError
from olivine.formats.gguf import is_later_part, whole_name
from olivine.formats.safetensors import is_model_folder
from olivine.hub import local
from olivine.server.served import ServedModel

DEPTH = 3  # folders within a folder of models: publisher/model/file.gguf
_ENDINGS = (".gguf", ".bin")


def find_models(
    paths: Sequence[Path], aliases: Sequence[str] = (), pinned: Sequence[str] = ()
) -> list[ServedModel]:
    """The models of these paths: each is a model, or a folder with models in it. `aliases` are names for
    the first of them, in their order. Names are unique: where two are not, each has the
    folders before it that tell them apart."""
    found: list[tuple[Path, str | None]] = []  # models and their aliases
    for index, path in enumerate(paths):
        alias = aliases[index] if index < len(aliases) else None
        models = [path] if is_model(path) else list(models_in(path))
        if not models:
            raise CheckpointError(path, "", "holds no model: known are GGUF files and safetensors folders")
        if alias is not None and len(models) > 1:
            raise CheckpointError(path, "", f"holds {len(models)} models, and one name is given (--alias)")
        found += [(model.absolute(), alias) for model in models]
    names = unique_names([path for path, _ in found])
    known = {each.path: (each.id, each.name) for each in local.models()}
    served = [
        ServedModel(alias or name, path=path, aliases=known.get(path, ()), created=_written(path))
        for (path, alias), name in zip(found, names, strict=True)
    ]
    _refuse_equal(served)
    by_name = {model.name: model for model in served}
    for name in pinned:
        if name not in by_name:
            raise RequestError(f"--pin {name}: no model has that name; there are: {', '.join(by_name)}")
        by_name[name].pinned = True
    return served


def is_model(path: Path) -> bool:
    """Whether a path is one model: a file, or a folder with one in it."""
    if not path.is_dir():
        if not path.exists():
            raise CheckpointError(path, "", "there is no such file or folder")
        return True
    return is_model_folder(path) or (len(_gguf_files(path)) == 1 and not any(_folders(path)))


def models_in(folder: Path, depth: int = DEPTH) -> Iterator[Path]:
    """Every model in a folder and the folders within it."""
    yield from _gguf_files(folder)
    for inner in _folders(folder) if depth else ():
        if is_model_folder(inner):
            yield inner
        else:
            yield from models_in(inner, depth - 1)


def unique_names(paths: Sequence[Path]) -> list[str]:
    """A name for each path: that of the file or folder, with so many folders before it that no two agree."""
    names = [model_name(path) for path in paths]
    for depth in range(1, DEPTH + 1):
        again = [name for name in names if names.count(name) > 1]
        if not again:
            break
        names = [
            "/".join((*path.parts[-1 - depth : -1], model_name(path))) if name in again else name
            for path, name in zip(paths, names, strict=True)
        ]
    return names


def model_name(path: Path) -> str:
    """The name of a model for clients: that of its file or folder."""
    if path == box.FILE:
        return box.NAME
    name = local.title(path)
    return whole_name(name).removesuffix(path.suffix) if path.suffix.lower() in _ENDINGS else name


def _gguf_files(folder: Path) -> list[Path]:
    """The GGUF models in a folder: first parts, and no projectors for images."""
    names = sorted(name for name in os.listdir(folder) if name.lower().endswith(".gguf"))
    return [folder / name for name in names if "mmproj" not in name.lower() and not is_later_part(name)]


def _folders(folder: Path) -> Iterator[Path]:
    for name in sorted(os.listdir(folder)):
        if not name.startswith(".") and (folder / name).is_dir():
            yield folder / name


def _written(path: Path) -> int | None:
    try:
        return int(path.stat().st_mtime)
    except OSError:
        return None


def _refuse_equal(models: Sequence[ServedModel]) -> None:
    names = [model.name for model in models]
    for name in names:
        if names.count(name) > 1:
            raise CheckpointError(name, "", "two models have the same name: give them others with --alias.")
