"""Memory-mapped files, and small files that are read whole. Only regular files are opened.

If a model file is truncated while it is mapped, reading it is fatal (SIGBUS), as in every program that maps
files. So `MappedFile.check` is called before each step. Replacing a file by renaming is safe: the map keeps
the old one.
"""

from __future__ import annotations

import mmap
import os
import stat
import sys
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from olivine.errors import CheckpointError
from olivine.tensor import Bytes

# Without O_NONBLOCK, opening a named pipe would wait for its writer. Windows lacks it, but needs O_BINARY.
_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0) | getattr(os, "O_BINARY", 0)
# The map need not duplicate the file descriptor.
_ONE_DESCRIPTOR: dict[str, Any] = {"trackfd": False} if sys.version_info >= (3, 13) else {}


class MappedFile:
    """A mapped file, with its size and modification time when it was mapped."""

    def __init__(self, path: Path, descriptor: int, data: Bytes) -> None:
        self.path = path
        self.data = data
        self._descriptor = descriptor
        self._status = self._stat()
        weakref.finalize(self, os.close, descriptor).atexit = False

    def check(self) -> None:
        """Raises if the file was written to or truncated since it was mapped."""
        size, written = self._stat()
        if size < self._status[0]:
            problem = f"was truncated from {self._status[0]} to {size} bytes"
        elif (size, written) != self._status:
            problem = "was written to"
        else:
            return
        raise CheckpointError(self.path, "", f"{problem} while it was in use: load the model again")

    def _stat(self) -> tuple[int, int]:
        status = os.fstat(self._descriptor)
        return status.st_size, status.st_mtime_ns


@dataclass(frozen=True)
class Source:
    """The bytes that a reader parses, and the path for its errors."""

    path: Path
    buffer: mmap.mmap | bytes  # a slice of either is a bytes object
    file: MappedFile | None = None  # if they are memory-mapped

    @property
    def size(self) -> int:
        return len(self.buffer)

    @property
    def data(self) -> Bytes:
        """The same bytes as a read-only array: its slices copy nothing and keep the map open."""
        return np.frombuffer(self.buffer, np.uint8)


def map_file(path: Path) -> Source:
    """Map a regular, non-empty file, read-only."""
    descriptor, size = _open_regular(path)
    if size == 0:
        os.close(descriptor)
        raise CheckpointError(path, "", "the file is empty")
    try:
        mapped = mmap.mmap(descriptor, size, access=mmap.ACCESS_READ, **_ONE_DESCRIPTOR)
    except (
        OSError,
        ValueError,
        OverflowError,
        MemoryError,
    ) as error:  # e.g. it was truncated since, or there are too many maps
        os.close(descriptor)
        raise CheckpointError(path, "", f"cannot be mapped: {error}") from error
    return Source(path, mapped, MappedFile(path, descriptor, np.frombuffer(mapped, np.uint8)))


def read_file(path: Path, limit: int) -> bytes:
    """The whole content of a small regular file of at most `limit` bytes."""
    descriptor, size = _open_regular(path)
    with os.fdopen(descriptor, "rb") as file:
        if size > limit:
            raise CheckpointError(path, "", f"has {size} bytes; at most {limit} are read")
        try:
            return file.read(size)
        except OSError as error:
            raise CheckpointError(path, "", f"cannot be read: {error.strerror}") from error


def read_text(path: Path, limit: int) -> str:
    """The content of a small UTF-8 file; a byte order mark is dropped."""
    try:
        return read_file(path, limit).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise CheckpointError(path, f"byte {error.start}", "is not valid UTF-8") from error


def _open_regular(path: Path) -> tuple[int, int]:
    """Descriptor and size of a file that is checked after opening, so it cannot be swapped in between."""
    try:
        descriptor = os.open(path, _FLAGS)
    except FileNotFoundError as error:
        raise CheckpointError(path, "", "there is no such file or folder") from error
    except (OSError, ValueError) as error:  # ValueError: a null character in the name
        raise CheckpointError(path, "", f"cannot be opened: {error}") from error
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise CheckpointError(path, "", "is not a regular file")
    return descriptor, status.st_size
