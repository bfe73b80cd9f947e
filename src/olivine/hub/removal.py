"""Deleting a model from the Hugging Face cache: its own files, and nothing that another model uses."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path

from olivine.hub import files, local
from olivine.hub.local import HUGGING_FACE, LocalModel


def remove(model: LocalModel) -> int:
    """Deletes a model of the Hugging Face cache; how many bytes that frees."""
    assert model.source == HUGGING_FACE
    repository = repository_folder(model.repo)
    before = _used(repository)
    snapshots = local.snapshots(repository)
    opened = next(model.path.relative_to(each) for each in snapshots if model.path.is_relative_to(each))
    for snapshot in snapshots:
        _remove_from(snapshot, opened.as_posix() if model.tag else "")
    _remove_unused(repository)
    if not any(path.is_symlink() or path.is_file() for path in repository.glob("snapshots/*/**/*")):
        shutil.rmtree(repository)
        shutil.rmtree(repository.parent / ".locks" / repository.name, ignore_errors=True)
    return before - _used(repository)


def remove_parts(repo: str) -> int:
    """Deletes what is there of downloads of a repository that did not end; how many bytes that frees."""
    repository = repository_folder(repo)
    freed = 0
    for part in repository.glob("blobs/*.incomplete"):
        freed += part.stat().st_size
        part.unlink()
    if freed and not any(repository.glob("snapshots/*/*")):
        shutil.rmtree(repository)
    return freed


def repository_folder(repo: str) -> Path:
    return local.hub_cache() / f"models--{repo.replace('/', '--')}"


def _remove_from(snapshot: Path, opened: str) -> None:
    """Removes the names of a model's files, and the mmproj file with the last model that may use it. `opened`
    is the file that it is opened by; "" is the folder."""
    paths = [path.relative_to(snapshot).as_posix() for path in snapshot.rglob("*") if not path.is_dir()]
    if opened:
        variants = files.variants(paths)
        own = [path for each in variants if opened in each.files for path in each.files]
        if all(opened in each.files for each in variants):
            own += [path for path in paths if files.is_mmproj(path)]
    else:
        own = files.safetensors(paths)
    if not files.variants([path for path in paths if path not in own]) and not files.safetensors(
        [path for path in paths if path not in own]
    ):
        own = paths  # no model is left: neither are README and the like wanted
    for path in own:
        (snapshot / path).unlink()
    for folder in sorted((each for each in snapshot.rglob("*") if each.is_dir()), reverse=True):
        with suppress(OSError):
            folder.rmdir()
    with suppress(OSError):
        snapshot.rmdir()


def _remove_unused(repository: Path) -> None:
    """Removes the contents that no name is left of."""
    links = [path for path in repository.glob("snapshots/**/*") if path.is_symlink()]
    used = {os.path.basename(os.readlink(path)) for path in links}
    for blob in repository.glob("blobs/*"):
        if blob.name not in used and not blob.name.endswith(".incomplete"):
            blob.unlink()


def _used(folder: Path) -> int:
    """Bytes of the files in a folder, links not counted."""
    found = (path for path in folder.rglob("*") if not path.is_symlink() and path.is_file())
    return sum(path.stat().st_size for path in found)
