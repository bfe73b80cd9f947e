"""Attention of decode rows in the ways that it runs: each row by itself, and many together."""

from __future__ import annotations

import torch

from olivine.backends.cuda import PAGE_SIZE
from olivine.backends.cuda.kernels import decode_attention, heads, norm, prefill_attention
from olivine.backends.cuda.kernels.paged import PagedCache, RowPlaces


def in_every_way(
    groups: int,
    share: int,
    d: int,
    window: int | None,
    positions: list[int],
    device: torch.device,
    rotated: int | None = None,
    interleaved: bool = False,
) -> tuple[list[list[torch.Tensor]], torch.Tensor]:
    """Results, keys and values of random rows at these positions, each of a sequence of its own; and what the
    results should be. Of each head the first `rotated` columns are rotated, by default all.

    First alone, where the attention itself rotates and stores the row, if it can, and a program has one
    split; then all together, rotated and stored by it and before it, and programs may have several splits of
    a row; and then alone and together where the rows are stored, and the attention rotates the queries alone.
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
    rotary = heads.Rotary((0.02 ** torch.linspace(0, 1, (rotated or d) // 2)).to(device), 1.0, interleaved)
    transform = heads.HeadTransform(norm.NormWeight(random(d).abs(), 1e-3, 0.5), rotary)
    angles, scratch = heads.rotary_angles(at, [rotary])[0], decode_attention.Scratch(device)

    def results() -> list[torch.Tensor]:
        out = torch.full((rows, groups * share * d), float("nan"), dtype=torch.bfloat16, device=device)
        return [out, *(cache.clone() for cache in before)]

    def transform_of(some: slice) -> heads.QkvTransform:
        return heads.QkvTransform(transform, transform, None, angles[some])

    def attend_projected(
        found: list[torch.Tensor], some: slice, max_position: int, is_stored: bool = False
    ) -> None:
        cache, places = PagedCache(found[1], found[2], table), RowPlaces(at[some], sequence[some])
        given, by_attention = q[some], decode_attention.can_transform(transform, d)
        if not by_attention:
            given = torch.empty_like(found[0][some])
            if is_stored:
                heads.transform_heads(q[some], given, d, transform, angles[some])
            else:
                heads.store_kv(q[some], k[some], v[some], given, cache, places, transform_of(some))
        decode_attention.decode_attention(
            given, found[0][some], cache, places,
            scale=d**-0.5, window=window, max_position=max_position, scratch=scratch,
            transform=transform_of(some) if by_attention else None,
            new_kv=(k[some], v[some]) if by_attention and not is_stored else None,
        )  # fmt: skip

    alone, together, among = results(), results(), results()
    if device.type == "cuda":
        torch.cuda.synchronize()  # what copies the caches does not say when it is done
    for i in range(rows):
        attend_projected(alone, slice(i, i + 1), positions[i])
    attend_projected(together, slice(None), max(positions))
    queries = torch.empty_like(among[0])
    cache, places = PagedCache(among[1], among[2], table), RowPlaces(at, sequence)
    heads.store_kv(q, k, v, queries, cache, places, transform_of(slice(None)))
    decode_attention.decode_attention(
        queries, among[0], cache, places,
        scale=d**-0.5, window=window, max_position=max(positions), scratch=scratch,
    )  # fmt: skip
    stored, stored_together = results(), results()
    for found in (stored, stored_together):
        found[1:] = [kept.clone() for kept in among[1:]]
    if device.type == "cuda":
        torch.cuda.synchronize()
    for i in range(rows):
        attend_projected(stored, slice(i, i + 1), positions[i], is_stored=True)
    attend_projected(stored_together, slice(None), max(positions), is_stored=True)
    expected = [
        _attended(*(x[i] for x in (queries, among[1][table.long()], among[2][table.long()])), place, window)
        for i, place in enumerate(positions)
    ]
    return [alone, together, among, stored, stored_together], torch.stack(expected)


def of_a_prompt(
    groups: int, share: int, d: int, window: int | None, rows: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Results of the rows of a random prompt, and what they should be."""
    seeded = torch.Generator().manual_seed(d)
    pages = -(-rows // PAGE_SIZE)
    shapes = (rows, groups * share * d), *[(pages, PAGE_SIZE, groups, d)] * 2
    q, k, v = (torch.randn(shape, generator=seeded).bfloat16().to(device) for shape in shapes)
    at = torch.arange(rows, dtype=torch.int32)
    tiles = prefill_attention.prefill_tiles(torch.zeros_like(at).numpy(), at.numpy())
    table, out = torch.arange(pages, dtype=torch.int32)[None], torch.full_like(q, float("nan"))
    prefill_attention.prefill_attention(
        q, out, PagedCache(k, v, table.to(device)), RowPlaces(at.to(device), torch.zeros_like(at).to(device)),
        torch.from_numpy(tiles).to(device), scale=d**-0.5, window=window,
    )  # fmt: skip
    return out, torch.stack([_attended(q[row], k, v, row, window) for row in range(rows)])


def _attended(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, position: int, window: int | None
) -> torch.Tensor:
    """One row, [H · d], in double precision; its pages of keys and values are [pages, page, KV heads, d]."""
    heads, d = k.shape[-2:]
    first = 0 if window is None else max(0, position - window + 1)
    k, v = (x.reshape(-1, heads, d)[first : position + 1].double() for x in (k, v))
    scores = torch.einsum("gsd,tgd->gst", q.double().reshape(heads, -1, d), k) * d**-0.5
    return torch.einsum("gst,tgd->gsd", scores.softmax(-1), v).reshape(-1)


def off_by(found: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest error of a row, as a share of its length."""
    return float(((found.double() - expected).norm(dim=-1) / expected.norm(dim=-1)).max())
