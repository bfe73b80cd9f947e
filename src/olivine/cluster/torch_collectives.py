"""Collectives between processes by torch.distributed: with gloo between hosts, with NCCL between GPUs.

Sums are an all-gather and an addition in the order of the ranks. The all-reduce of either library adds in an
order that depends on where in its buffer a number lies, so that a row's result would depend on its batch.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Sequence
from datetime import timedelta
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from olivine.cluster.keepalive import kept_alive
from olivine.errors import OlivineError, RankError

Float32 = npt.NDArray[np.float32]
START = 300.0  # seconds in which all ranks have to find each other


def require_torch() -> ModuleType:
    """The module, or what to install."""
    # Its log of connections is stacks of C++. What went wrong is in its errors, which we tell.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")
    try:
        return import_module("torch")
    except ImportError as error:
        told = "ranks on several machines or GPUs need torch: pip install 'olivine[cluster]'"
        raise OlivineError(told) from error


def _short(error: Exception) -> str:
    """What torch says, without the places in its source and in the stack."""
    first = str(error).partition("\n")[0]
    return re.sub(r"^\[[^]]*\]\s*", "", first).rstrip(". ") or type(error).__name__


def local_address(host: str) -> str:
    """The address of this machine from which `host` is reached. Nothing is sent."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((host, 9))
        return str(probe.getsockname()[0])


class _TorchCollectives:
    """One rank of `ranks` in one of `stages`; they are numbered stage by stage. They find each other at
    `address`, host:port, where one of them listens: it gives the socket."""

    def __init__(
        self,
        address: str,
        ranks: int,
        stages: int,
        rank: int,
        stage: int,
        timeout: float,
        listener: socket.socket | None = None,
    ) -> None:
        self._torch: Any = require_torch()
        dist: Any = import_module("torch.distributed")
        self._number, self._ranks = stage * ranks + rank, ranks
        host, port = address.rsplit(":", 1)
        self._host, limit = host.strip("[]"), timedelta(seconds=timeout)
        # The socket listens on one address; the store's own would listen on all of them.
        mine = {} if listener is None else {"is_master": True, "master_listen_fd": listener.detach()}
        size, start = ranks * stages, timedelta(seconds=min(timeout, START))
        try:
            with kept_alive():
                store = dist.TCPStore(self._host, int(port), size, timeout=start, **mine)
                # Not torch's default group, of which a process has one: a process may have several models.
                self._all = self._group(dist, dist.PrefixStore("all", store), self._number, size, limit)
                self._stage = self._group(dist, dist.PrefixStore(f"stage {stage}", store), rank, ranks, limit)
        except (RuntimeError, OSError) as error:
            raise RankError(
                f"rank {self._number} of {size} did not meet the others at {address} ({_short(error)}): see "
                "whether they run, and whether their machines reach each other on all ports"
            ) from None

    def _group(self, dist: Any, store: Any, rank: int, size: int, limit: timedelta) -> Any:
        raise NotImplementedError

    def abort(self) -> None:
        """The connection of a rank ends with it, and who waits for it fails: nothing is left to do."""

    def close(self) -> None:
        """Closes the connections: whoever waits for this rank fails."""
        self._all = self._stage = None


class GlooCollectives(_TorchCollectives):
    """Of arrays, by TCP."""

    def _group(self, dist: Any, store: Any, rank: int, size: int, limit: timedelta) -> Any:
        options = dist.ProcessGroupGloo._Options()
        options._timeout = limit
        # By default it is the address of this machine's name, which may be one that others cannot reach.
        options._devices = [dist.ProcessGroupGloo.create_device(hostname=local_address(self._host))]
        return dist.ProcessGroupGloo(store, rank, size, options)

    def all_reduce(self, x: Float32) -> Float32:
        total, *others = self._gather(x, [x.shape[1]] * self._ranks)
        with np.errstate(all="ignore"):  # the padding rows of a GPU hold anything
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


class NcclCollectives(_TorchCollectives):
    """Of tensors on GPUs, one for each rank. CUDA graphs record them with the kernels."""

    in_graphs = True

    def _group(self, dist: Any, store: Any, rank: int, size: int, limit: timedelta) -> Any:
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = limit
        return dist.ProcessGroupNCCL(store, rank, size, options)

    def all_reduce(self, x: Any) -> Any:
        total, *others = self._gather(x, x.shape[1])
        for other in others:
            total = total + other
        return total

    def all_gather(self, x: Any, widths: Sequence[int]) -> Any:
        parts = self._gather(x, max(widths))
        return self._torch.cat([part[:, :width] for part, width in zip(parts, widths, strict=True)], 1)

    def send(self, x: Any) -> None:
        self._all.send([x], self._number + self._ranks, 0).wait()

    def receive(self, shape: tuple[int, int]) -> Any:
        found = self._torch.empty(shape, device="cuda")
        self._all.recv([found], self._number - self._ranks, 0).wait()
        return found

    def abort(self) -> None:
        """NCCL would wait for a rank that has ended: its communicators are ended too."""
        for group in (self._all, self._stage):
            if group is not None:
                group.abort()

    def _gather(self, x: Any, most: int) -> Any:
        """All ranks' columns. Ranks with fewer send as many as the widest."""
        if x.shape[1] < most:
            x = self._torch.nn.functional.pad(x, (0, most - x.shape[1]))
        found = x.new_empty((self._ranks, *x.shape))
        self._stage._allgather_base(found, x).wait()
        return found
