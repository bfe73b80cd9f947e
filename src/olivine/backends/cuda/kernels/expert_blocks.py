"""Rows of a mixture of experts, grouped by expert and cut into blocks: a product then reads the weight of an
expert once for a block of its rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from olivine.backends.cuda.kernels.pdl import LAUNCH, begin

_BLOCK = 64  # rows, or blocks of rows, of a program


class ExpertPointers(NamedTuple):
    """What a kernel reads of `ExpertBlocks`."""

    expert_of: torch.Tensor
    row_ids: torch.Tensor
    rows_per_input: int


@dataclass(frozen=True)
class ExpertBlocks:
    """Result rows by the expert that computes them, in blocks of `rows`; each expert's last block is padded.

    There are as many blocks as there can be, because only the device knows how many there are. Result row i
    is of input row i // rows_per_input.
    """

    expert_of: torch.Tensor  # by block; -1: a spare one
    row_ids: torch.Tensor  # the result row of each place in the blocks; -1: padding
    count: int  # of experts
    rows: int
    rows_per_input: int

    def pointers(self) -> ExpertPointers:
        return ExpertPointers(self.expert_of, self.row_ids, self.rows_per_input)


@triton.jit
def _rank(expert_ids, last, ranks, count, BLOCK: tl.constexpr):
    """The place of each row among those of its expert, in any order; `last` is -1, and becomes the place of
    each expert's last row."""
    begin()
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    expert = tl.load(expert_ids + at, mask=at < count, other=0)
    rank = tl.atomic_add(last + expert, 1, mask=at < count) + 1
    tl.store(ranks + at, rank, mask=at < count)


@triton.jit
def _place(
    expert_ids, last, ranks, expert_of, row_ids, count, blocks, experts,
    ROWS: tl.constexpr, EXPERTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Every program adds up the blocks of all experts by itself."""
    begin()
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    expert = tl.arange(0, EXPERTS)
    each = tl.load(last + expert, mask=expert < experts, other=-1) + 1
    each = (each + ROWS - 1) // ROWS
    mine = tl.load(expert_ids + at, mask=at < count, other=0)
    before = tl.sum(tl.where(expert[None, :] < mine[:, None], each[None, :], 0), 1)
    rank = tl.load(ranks + at, mask=at < count, other=0)
    tl.store(row_ids + before * ROWS + rank, at, mask=at < count)
    ends = tl.cumsum(each, 0)
    owner = tl.sum((ends[None, :] <= at[:, None]).to(tl.int32), 1)
    tl.store(expert_of + at, tl.where(owner < experts, owner, -1), mask=at < blocks)


def expert_blocks(expert_ids: torch.Tensor, count: int, rows: int, rows_per_input: int = 1) -> ExpertBlocks:
    """Groups result rows by `expert_ids`, of `count` experts."""
    every, device = len(expert_ids), expert_ids.device
    blocks = every // rows + min(count, every)
    ranks = torch.empty(every, dtype=torch.int32, device=device)
    expert_of = torch.empty(blocks, dtype=torch.int32, device=device)
    filled = torch.full((count + blocks * rows,), -1, dtype=torch.int32, device=device)
    last, row_ids = filled[:count], filled[count:]
    if every:
        _rank[(-(-every // _BLOCK),)](expert_ids, last, ranks, every, BLOCK=_BLOCK, **LAUNCH)
        _place[(-(-max(every, blocks) // _BLOCK),)](
            expert_ids, last, ranks, expert_of, row_ids, every, blocks, count,
            ROWS=rows, EXPERTS=triton.next_power_of_2(count), BLOCK=_BLOCK, **LAUNCH,
        )  # fmt: skip
    return ExpertBlocks(expert_of, row_ids, count, rows, rows_per_input)
