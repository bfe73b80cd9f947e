"""Prefill rows of a mixture of experts, sorted by expert and cut into blocks."""

from __future__ import annotations

from typing import NamedTuple

import torch


class ExpertPointers(NamedTuple):
    """What a GEMM kernel reads of `ExpertBlocks`."""

    expert_of: torch.Tensor
    row_ids: torch.Tensor
    rows_per_input: int


class ExpertBlocks:
    """Result rows by the expert that computes them, in blocks of `rows`; each expert's last block is padded.

    Result row i is of expert expert_ids[i] and of input row i // rows_per_input.
    """

    def __init__(self, expert_ids: torch.Tensor, count: int, rows_per_input: int) -> None:
        self.count, self.rows_per_input = count, rows_per_input
        self.rows = 128 if len(expert_ids) >= 128 * count else 64
        every, device = len(expert_ids), expert_ids.device
        ids = expert_ids.long()
        order = torch.argsort(ids, stable=True)
        # Not bincount, for which the host waits.
        each = torch.zeros(count, dtype=torch.int64, device=device).index_add_(0, ids, torch.ones_like(ids))
        blocks = (each + self.rows - 1) // self.rows
        ends = torch.cumsum(blocks, 0)
        # As many blocks as there can be: only the device knows how many there are. Spare ones have expert -1.
        index = torch.arange(every // self.rows + min(count, every), device=device)
        expert = torch.searchsorted(ends, index, right=True)
        self.expert_of = torch.where(expert < count, expert, -1).to(torch.int32)  # by block
        place = torch.arange(every, device=device) - (torch.cumsum(each, 0) - each)[ids[order]]
        # The result row of each place in the blocks; -1: padding.
        self.row_ids = torch.full((len(index) * self.rows,), -1, dtype=torch.int32, device=device)
        self.row_ids[(ends - blocks)[ids[order]] * self.rows + place] = order.to(torch.int32)

    def pointers(self) -> ExpertPointers:
        return ExpertPointers(self.expert_of, self.row_ids, self.rows_per_input)
