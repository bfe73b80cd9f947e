"""Attention of generated rows in the ways that it runs: each row by itself, and many together."""

from __future__ import annotations

import torch

from olivine.backends.cuda import PAGE_SIZE
from olivine.backends.cuda.kernels import attention, heads, norm


def in_every_way(
    groups: int, share: int, d: int, window: int | None, positions: list[int], device: torch.device
) -> list[list[torch.Tensor]]:
    """Results, keys and values of random rows at these positions, each of a sequence of its own.

    First alone, where the attention itself turns and stores the row and a program has one split; then all
    together, turned and stored by it and before it, and programs may have several splits of a row.
    """
    seeded = torch.Generator().manual_seed(d)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=seeded).to(device)

    rows, pages = len(positions), max(positions) // PAGE_SIZE + 1
    q, k, v = (random(rows, count * d) for count in (groups * share, groups, groups))
    before = [random(rows * pages, PAGE_SIZE, groups, d).bfloat16() for _ in range(2)]
    table = torch.randperm(rows * pages, generator=seeded).to(torch.int32).reshape(rows, pages).to(device)
    at = torch.tensor(positions, dtype=torch.int32, device=device)
    sequence = torch.arange(rows, dtype=torch.int32, device=device)
    turn = heads.Turn((0.02 ** torch.linspace(0, 1, d // 2)).to(device), 1.0, False)
    chain = heads.Chain(norm.NormWeight(random(d).abs() + 0.5, 1e-6, 0.0), turn)
    turns, scratch = heads.angles(at, turn), attention.Scratch(device)

    def results() -> list[torch.Tensor]:
        out = torch.full((rows, groups * share * d), float("nan"), dtype=torch.bfloat16, device=device)
        return [out, *(cache.clone() for cache in before)]

    def attend_fresh(found: list[torch.Tensor], some: slice, longest: int) -> None:
        attention.attend(
            q[some], *found[1:], found[0][some], at[some], sequence[some], table,
            scale=d**-0.5, window=window, longest=longest, scratch=scratch,
            fresh=attention.Fresh(k[some], v[some], chain, chain, None, turns[some]),
        )  # fmt: skip

    alone, together, among = results(), results(), results()
    if device.type == "cuda":
        torch.cuda.synchronize()  # what copies the caches does not say when it is done
    for i in range(rows):
        attend_fresh(alone, slice(i, i + 1), positions[i])
    attend_fresh(together, slice(None), max(positions))
    queries = torch.empty_like(among[0])
    heads.store(q, k, v, queries, *among[1:], at, sequence, table, chain, chain, None, turns)
    attention.attend(
        queries, *among[1:], among[0], at, sequence, table,
        scale=d**-0.5, window=window, longest=max(positions), scratch=scratch,
    )  # fmt: skip
    return [alone, together, among]
