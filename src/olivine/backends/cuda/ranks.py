"""Collectives on tensors of the device, for a rank of a divided plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch

from olivine.backends.base import Collectives


@runtime_checkable
class DeviceCollectives(Protocol):
    """As `Collectives`, on tensors in float32 of the device. `in_graphs`: CUDA graphs can record them."""

    in_graphs: bool

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor: ...
    def all_gather(self, x: torch.Tensor, widths: Sequence[int]) -> torch.Tensor: ...
    def send(self, x: torch.Tensor) -> None: ...
    def receive(self, shape: tuple[int, int]) -> torch.Tensor: ...


class HostCollectives:
    """Ranks that meet on the host, as those do that share a GPU: rows are copied there and back, so no CUDA
    graph can record it."""

    in_graphs = False

    def __init__(self, collectives: Collectives, device: torch.device) -> None:
        self._others, self._device = collectives, device

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(self._others.all_reduce(x.cpu().numpy())).to(self._device)

    def all_gather(self, x: torch.Tensor, widths: Sequence[int]) -> torch.Tensor:
        return torch.from_numpy(self._others.all_gather(x.cpu().numpy(), widths)).to(self._device)

    def send(self, x: torch.Tensor) -> None:
        self._others.send(x.cpu().numpy())

    def receive(self, shape: tuple[int, int]) -> torch.Tensor:
        return torch.from_numpy(self._others.receive(shape)).to(self._device)


def on_device(
    collectives: Collectives | DeviceCollectives | None, device: torch.device
) -> DeviceCollectives | None:
    """The collectives of a program on the device."""
    if collectives is None or isinstance(collectives, DeviceCollectives):
        return collectives
    return HostCollectives(collectives, device)
