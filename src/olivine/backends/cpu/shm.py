"""Collectives of ranks that share a machine: native code, in memory that all of them map.

A meeting of two ranks takes some microseconds, where gloo's takes some hundreds, and needs no torch.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import numpy.typing as npt

from olivine.backends.cpu import native
from olivine.backends.cpu.lower import KINDS
from olivine.errors import OlivineError
from olivine.plan import rank_ops

Float32 = npt.NDArray[np.float32]


@contextmanager
def shared_file(ranks: int, stages: int) -> Iterator[Path]:
    """A file for the ranks of a group to map while this is entered.

    Linux has files of no folder, in memory: none is left behind, however the process ends, and the limit of
    /dev/shm (64 MB in a container) is not theirs.
    """
    if hasattr(os, "memfd_create") and os.path.exists("/proc/self/fd"):
        handle = os.memfd_create("olivine-ranks")
        try:
            _fill(handle, ranks, stages)
            yield Path(f"/proc/{os.getpid()}/fd/{handle}")
        finally:
            os.close(handle)
        return
    import tempfile  # which imports much

    handle, name = tempfile.mkstemp(prefix="olivine-ranks-")
    try:
        try:
            _fill(handle, ranks, stages)
        finally:
            os.close(handle)
        yield Path(name)
    finally:
        with suppress(OSError):  # Windows: it is in use; every rank has mapped it
            os.unlink(name)


def _fill(handle: int, ranks: int, stages: int) -> None:
    """Writes zeros: of a file that is only made longer, a step may find that there is no room for it, which
    ends its process."""
    size = native.lib().olv_shm_bytes(ranks, stages)
    try:
        with open(handle, "wb", closefd=False) as file:
            file.write(bytes(size))
    except OSError as error:
        told = f"no room for the {size >> 20} MB in which ranks meet: {error.strerror or error}"
        raise OlivineError(told, code="rank_failed") from error


class ShmCollectives:
    """One rank of `ranks` in one of `stages`; they are numbered stage by stage.

    `parent`: the process whose end ends this rank; 0: none.
    """

    def __init__(self, file: Path, ranks: int, stages: int, rank: int, stage: int, parent: int = 0) -> None:
        size = native.lib().olv_shm_bytes(ranks, stages)
        with file.open("r+b") as opened:
            self._memory = mmap.mmap(opened.fileno(), size)
        self._address = ctypes.addressof((ctypes.c_char * size).from_buffer(self._memory))
        number = stage * ranks + rank
        self.handle: int | None = native.lib().olv_shm_join(self._address, ranks, stages, number, parent)
        native.check(not self.handle)

    def all_reduce(self, x: Float32) -> Float32:
        return self._meet(rank_ops.AllReduce, x, np.empty(x.shape, np.float32))

    def all_gather(self, x: Float32, widths: Sequence[int]) -> Float32:
        return self._meet(rank_ops.AllGather, x, np.empty((len(x), sum(widths)), np.float32))

    def send(self, x: Float32) -> None:
        self._meet(rank_ops.Send, x, np.empty((len(x), 0), np.float32))

    def receive(self, shape: tuple[int, int]) -> Float32:
        return self._meet(rank_ops.Receive, np.empty((shape[0], 0), np.float32), np.empty(shape, np.float32))

    def abort(self) -> None:
        """A rank has ended: all who wait for one another fail, and all who come."""
        native.lib().olv_shm_close(self.handle)

    close = abort

    def _meet(self, kind: type, x: Float32, out: Float32) -> Float32:
        x = np.ascontiguousarray(x, np.float32)
        native.check(
            native.lib().olv_shm_meet(
                self.handle,
                KINDS.index(kind),
                x.ctypes.data,
                x.shape[1],
                out.ctypes.data,
                out.shape[1],
                len(x),
            )
        )
        return out

    def __del__(self) -> None:
        if getattr(self, "handle", None):
            native.lib().olv_shm_leave(self.handle)
            self.handle = None
