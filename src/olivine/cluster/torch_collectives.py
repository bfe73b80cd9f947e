"""Collectives between processes, by torch.distributed with gloo.

Sums are an all-gather and an addition in the order of the ranks. gloo's own all-reduce adds in an order that
depends on where in its buffer a number lies, so that a row's result would depend on its batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from olivine.errors import OlivineError

Float32 = npt.NDArray[np.float32]


def require_torch() -> ModuleType:
    """The module, or what to install."""
    try:
        return import_module("torch")
    except ImportError as error:
        told = "ranks in several processes need torch: pip install 'olivine[cluster]'"
        raise OlivineError(told) from error


class TorchCollectives:
    """One rank of `ranks` in one of `stages`; they are numbered stage by stage."""

    def __init__(self, address: str, ranks: int, stages: int, rank: int, stage: int, timeout: float) -> None:
        self._torch: Any = require_torch()
        dist: Any = import_module("torch.distributed")
        self._number, self._ranks = stage * ranks + rank, ranks
        host, port = address.rsplit(":", 1)
        limit = timedelta(seconds=timeout)
        store = dist.TCPStore(host, int(port), ranks * stages, is_master=self._number == 0, timeout=limit)
        # Not torch's default group, of which a process has one: a process may have several models.
        self._all: Any = dist.ProcessGroupGloo(
            dist.PrefixStore("all", store), self._number, ranks * stages, limit
        )
        self._stage: Any = dist.ProcessGroupGloo(
            dist.PrefixStore(f"stage {stage}", store), rank, ranks, limit
        )

    def all_reduce(self, x: Float32) -> Float32:
        total, *others = self._gather(x, [x.shape[1]] * self._ranks)
        for other in others:
            total += other
        return total

    def all_gather(self, x: Float32, widths: Sequence[int]) -> Float32:
        return np.concatenate(self._gather(x, widths), axis=1)

    def send(self, x: Float32) -> None:
        self._all.send([self._tensor(x)], self._number + self._ranks, 0).wait()

    def receive(self, shape: tuple[int, int]) -> Float32:
        found = np.empty(shape, np.float32)
        self._all.recv([self._torch.from_numpy(found)], self._number - self._ranks, 0).wait()
        return found

    def close(self) -> None:
        """Closes the connections: whoever waits for this rank fails."""
        self._all = self._stage = None

    def _tensor(self, x: Float32) -> Any:
        return self._torch.from_numpy(np.ascontiguousarray(x))

    def _gather(self, x: Float32, widths: Sequence[int]) -> list[Float32]:
        """All ranks' columns. Ranks with fewer send as many as the widest."""
        most = max(widths)
        mine = np.zeros((len(x), most), np.float32)
        mine[:, : x.shape[1]] = x
        found = np.empty((self._ranks, len(x), most), np.float32)
        self._stage.allgather([list(self._torch.from_numpy(found))], [self._tensor(mine)]).wait()
        return [part[:, :width] for part, width in zip(found, widths, strict=True)]
