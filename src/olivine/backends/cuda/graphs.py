"""CUDA graphs: how they are recorded, the memory that they share, and how many are kept."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import torch

Key = TypeVar("Key")
Kept = TypeVar("Kept")
Made = TypeVar("Made")

_RECORDING = threading.Lock()  # of all programs, one records at a time
_PRIORITY = -1  # of a graph's kernels, a higher one than that of the stream which expands slabs (slabs.py)


class GraphRecorder:
    """Records the graphs of one program. One of them runs at a time, so all use the same memory."""

    def __init__(self, device: torch.device) -> None:
        self.enabled = device.type == "cuda"  # off, every kernel is launched by itself
        self._memory: Any = None
        self._stream: Any = None

    def record(self, launch: Callable[[], Made]) -> tuple[torch.cuda.CUDAGraph, Made]:
        """A graph of all that `launch` launches, and what that returns: tensors that each replay fills.

        Other threads may go on with other programs meanwhile.
        """
        if self._memory is None:
            self._memory = torch.cuda.graph_pool_handle()
            self._stream = torch.cuda.Stream(priority=_PRIORITY)  # type: ignore[no-untyped-call]
        graph = torch.cuda.CUDAGraph()
        recording = torch.cuda.graph(
            graph, pool=self._memory, stream=self._stream, capture_error_mode="thread_local"
        )
        with _RECORDING, recording:
            made = launch()
        return graph, made


class LeastRecentlyUsed(Generic[Key, Kept]):
    """Objects that each hold a graph, at most `limit` of them; the one longest unused makes room."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._known: dict[Key, Kept] = {}

    def get(self, key: Key, make: Callable[[], Kept]) -> Kept:
        """What is kept under the key, or is made for it."""
        if key not in self._known:
            if len(self._known) == self._limit:
                self._known.pop(next(iter(self._known)))
            self._known[key] = make()
        self._known[key] = self._known.pop(key)
        return self._known[key]
