"""Collectives between processes, by torch.distributed with gloo.

Sums are an all-gather and an addition in the order of the ranks. gloo's own all-reduce adds in an order that
depends on where in its buffer a number lies, so that a row's result would depend on its batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import numpy.typing as npt

from olivine.errors import OlivineError

Float32 = npt.NDArray[np.float32]


class TorchCollectives:
    """One rank of `ranks` in one of `stages`; they are numbered stage by stage."""

    def __init__(self, address: str, ranks: int, stages: int, rank: int, stage: int, timeout: float) -> None:
        try:
            import torch
            import torch.distributed as dist
        except ImportError as error:
            raise OlivineError(
                "ranks in several processes need torch: pip install 'olivine[cluster]'"
            ) from error
        self._torch, self._dist = torch, dist
        self._number, self._ranks = stage * ranks + rank, ranks
        # A rank that dies is noticed at once, by its connection; this is for one that hangs.
        dist.init_process_group(
            "gloo",
            init_method=address,
            rank=self._number,
            world_size=ranks * stages,
            timeout=timedelta(seconds=timeout),
        )
        # Every process must make every group.
        groups = [dist.new_group(range(s * ranks, (s + 1) * ranks)) for s in range(stages)]
        self._group: Any = groups[stage]

    def all_reduce(self, x: Float32) -> Float32:
        total, *others = self._gather(x, [x.shape[1]] * self._ranks)
        for other in others:
            total += other
        return total

    def all_gather(self, x: Float32, widths: Sequence[int]) -> Float32:
        return np.concatenate(self._gather(x, widths), axis=1)

    def send(self, x: Float32) -> None:
        self._dist.send(self._tensor(x), self._number + self._ranks)

    def receive(self, shape: tuple[int, int]) -> Float32:
        found = np.empty(shape, np.float32)
        self._dist.recv(self._torch.from_numpy(found), self._number - self._ranks)
        return found

    def close(self) -> None:
        self._dist.destroy_process_group()

    def _tensor(self, x: Float32) -> Any:
        return self._torch.from_numpy(np.ascontiguousarray(x))

    def _gather(self, x: Float32, widths: Sequence[int]) -> list[Float32]:
        """All ranks' columns. Ranks with fewer send as many as the widest."""
        most = max(widths)
        mine = np.zeros((len(x), most), np.float32)
        mine[:, : x.shape[1]] = x
        found = np.empty((self._ranks, len(x), most), np.float32)
        self._dist.all_gather(list(self._torch.from_numpy(found)), self._tensor(mine), group=self._group)
        return [part[:, :width] for part, width in zip(found, widths, strict=True)]
