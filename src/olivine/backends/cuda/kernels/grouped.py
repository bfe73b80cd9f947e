"""Prompt rows of a mixture, by the expert that each goes to."""

from __future__ import annotations

import torch


class Grouped:
    """Rows of a result by the expert that makes them, in blocks of ROWS, the last of each with gaps.

    Result row i is of expert chosen[i] and of input row i // share.
    """

    ROWS = 64

    def __init__(self, chosen: torch.Tensor, count: int, share: int) -> None:
        self.count, self.share = count, share
        rows, device = len(chosen), chosen.device
        chosen = chosen.long()
        order = torch.argsort(chosen, stable=True)
        # Not bincount, for which the host waits.
        each = torch.zeros(count, dtype=torch.int64, device=device).index_add_(
            0, chosen, torch.ones_like(chosen)
        )
        blocks = (each + self.ROWS - 1) // self.ROWS
        ends = torch.cumsum(blocks, 0)
        # As many blocks as there can be: how many there are only the device knows.
        index = torch.arange(rows // self.ROWS + min(count, rows), device=device)
        experts = torch.searchsorted(ends, index, right=True)
        self.experts = torch.where(experts < count, experts, -1).to(torch.int32)
        place = torch.arange(rows, device=device) - (torch.cumsum(each, 0) - each)[chosen[order]]
        self.slots = torch.full((len(index) * self.ROWS,), -1, dtype=torch.int32, device=device)
        self.slots[(ends - blocks)[chosen[order]] * self.ROWS + place] = order.to(torch.int32)
