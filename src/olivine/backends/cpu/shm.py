"""Collectives of ranks that share a machine: native code, in memory that all of them map.

A meeting of two ranks takes some microseconds, where gloo's takes some hundreds, and needs no torch.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from olivine.backends.cpu import native
from olivine.backends.cpu.lower import KINDS
from olivine.plan import rank_ops

Float32 = npt.NDArray[np.float32]


def make_file(ranks: int, stages: int) -> Path:
    """A file for the ranks of a group to map, in memory where the system has a place for that."""
    import tempfile  # which imports much

    place = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    handle, path = tempfile.mkstemp(prefix="olivine-ranks-", dir=place)
    try:
        os.truncate(handle, native.lib().olv_shm_bytes(ranks, stages))
    finally:
        os.close(handle)
    return Path(path)


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
