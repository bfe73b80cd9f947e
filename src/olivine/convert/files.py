"""Output files that appear complete or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from olivine.errors import RequestError


def refuse_destination(
    path: Path, sources: Sequence[Path], *, force: bool, otherwise: str | None = None
) -> None:
    """Raises if the file cannot, or should not, be written; `otherwise` is added to the error as a hint."""
    if path.is_dir():
        raise RequestError(f"{path} is a folder: name the file to write")
    if not path.parent.is_dir():
        raise RequestError(f"{path.parent}: there is no such folder to write to")
    if path.exists():
        if not path.is_file():
            raise RequestError(f"{path} is a device or a pipe: name a file to write")
        if any(path.samefile(source) for source in sources):
            raise RequestError(f"{path} is what is being converted: write to another name")
        if not force:
            ways = "--force replaces it" if otherwise is None else f"--force replaces it, {otherwise}"
            raise RequestError(f"{path} exists; {ways}")


def refuse_strays(paths: Iterable[Path]) -> None:
    """Raises if there is a file that readers would take for a part of the output."""
    for path in paths:
        if path.exists():
            raise RequestError(f"{path} is another model's, and would be read with this one: move it away")


def refuse_full_disk(path: Path, size: int) -> None:
    free = shutil.disk_usage(path.parent).free
    if free < size:
        raise RequestError(f"{path} needs {size:,} bytes, and {path.parent} has {free:,} left")


@contextmanager
def temporary_files(*paths: Path) -> Iterator[tuple[Path, ...]]:
    """Temporary names beside the final ones: all are renamed at the end, in order, or none.

    A process that is killed leaves at most files that end in `.part`.
    """
    temporary = tuple(path.with_name(f"{path.name}.{os.getpid()}.part") for path in paths)
    try:
        yield temporary
        for part in temporary:
            with part.open("rb+") as file:
                os.fsync(file.fileno())  # the data must reach the disk before the rename
        for part, path in zip(temporary, paths, strict=True):
            part.replace(path)
    except OSError as error:
        raise RequestError(f"{paths[-1]} cannot be written: {error.strerror or error}") from error
    finally:
        for part in temporary:
            part.unlink(missing_ok=True)
