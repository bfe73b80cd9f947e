"""Log-probabilities of drawn tokens and of the likeliest, as engine/sampling.py defines them, on the device.

The kernels that draw (kernels/sampling.py) compute them on the way:
1. `_chunk_maxima`: of each chunk of the vocabulary, the sum of exp(logit - the largest of the chunk);
2. `_threshold`: the logarithm of the sum over all; and a bound, at or above which at least `TOPS` logits lie;
3. `_collect`: the logits from that bound on go to a list;
4. `_draw`: one program of a row writes the drawn token down, another puts the list in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from olivine.backends.base import TokenLogprobs
from olivine.backends.cuda.kernels.advance import OPEN, end_of_row
from olivine.backends.cuda.kernels.candidates import (
    CHUNK,
    LOWEST,
    bound,
    load_list,
    packed_of,
    ranks_of,
    token_of,
    value_of,
)
from olivine.backends.cuda.kernels.pdl import keep_loads_early

TOPS = 32  # alternatives that are reported, at most: OpenAI's interface has 20

_OPEN: tl.constexpr = tl.constexpr(OPEN)
_TOPS: tl.constexpr = tl.constexpr(TOPS)
_SHORT: tl.constexpr = tl.constexpr(128)  # candidates that are put in order at once
_BLOCK: tl.constexpr = tl.constexpr(2048)


class Reports(NamedTuple):
    """Intermediate results, and what the host reads."""

    sums: torch.Tensor  # [B, chunks] float64
    bound: torch.Tensor  # [B] that TOPS logits reach; inf where no token is drawn
    step: torch.Tensor  # [B] how many tokens were drawn before this one: the last kernel changes the row's
    count: torch.Tensor  # [B] candidates in the list, which are legal
    found: torch.Tensor  # [B, V] the list: logits
    found_ids: torch.Tensor  # and tokens
    totals: torch.Tensor  # [B, most] float64: the logarithm of the sum of exp(logit); for each drawn token
    drawn: torch.Tensor  # [B, most] its logit
    tops: torch.Tensor  # [B, most, TOPS] the logits of the likeliest
    top_ids: torch.Tensor  # and their tokens

    @staticmethod
    def empty(rows: int, vocabulary: int, device: torch.device) -> Reports:
        """With room for no token."""

        def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        return Reports(
            zeros(rows, -(-vocabulary // CHUNK), dtype=torch.float64),
            zeros(rows),
            zeros(rows, dtype=torch.int32),
            zeros(rows, dtype=torch.int32),
            zeros(rows, vocabulary),
            zeros(rows, vocabulary, dtype=torch.int32),
            zeros(rows, 0, dtype=torch.float64),
            zeros(rows, 0),
            zeros(rows, 0, TOPS),
            zeros(rows, 0, TOPS, dtype=torch.int32),
        )

    def with_room(self, most: int) -> Reports:
        """For so many tokens of each row. Draws at different times may share the intermediate results."""
        rows = len(self.count)
        return self._replace(
            totals=self.totals.new_zeros((rows, most)),
            drawn=self.drawn.new_zeros((rows, most)),
            tops=self.tops.new_zeros((rows, most, TOPS)),
            top_ids=self.top_ids.new_zeros((rows, most, TOPS)),
        )

    def read(self, counts: Sequence[int], wanted: Sequence[int]) -> list[list[TokenLogprobs]]:
        """Of the first so many tokens of each row, with so many of the likeliest."""
        most = max(counts, default=0)
        totals, drawn, tops, ids = (
            x[: len(counts), :most].cpu().numpy() for x in (self.totals, self.drawn, self.tops, self.top_ids)
        )
        found = []
        for row, (count, n) in enumerate(zip(counts, wanted, strict=True)):
            own = drawn[row, :count] - totals[row, :count]
            values = tops[row, :count, :n] - totals[row, :count, None]
            found.append([*map(TokenLogprobs, own.tolist(), ids[row, :count, :n].tolist(), values.tolist())])
        return found


@triton.jit
def exponentials(x, best):
    """exp(x - best) in float64."""
    return tl.exp(tl.where(x > float("-inf"), x.to(tl.float64) - best.to(tl.float64), float("-inf")))


@triton.jit
def bound_report(reports, rows, row, m, most, chunks, CHUNKS: tl.constexpr):
    """Of a row, whose chunks' maxima are m: what its list begins with, and what all its log-probabilities
    have in common. Of one in which no token is drawn, nobody reads them. rows is a `RowState`."""
    c = tl.arange(0, CHUNKS)
    sums = tl.load(reports.sums + row * chunks + c, mask=c < chunks, other=0.0)
    step = tl.load(rows.step + row)
    end = tl.load(rows.ends + row)
    keep_loads_early(chunks)
    peak = tl.max(m, 0)
    is_open = end_of_row(end, peak) == _OPEN
    tl.store(reports.count + row, 0)
    tl.store(reports.step + row, step)
    low = bound(m, peak, _TOPS, chunks, CHUNKS)
    tl.store(reports.bound + row, tl.where(is_open, low, float("inf")))
    total = tl.log(tl.sum(sums * exponentials(m, peak), 0)) + peak.to(tl.float64)
    tl.store(reports.totals + row * most + step, total)


@triton.jit
def write_likeliest(reports, row, most, V):
    """Puts the list of a row in order."""
    n = tl.load(reports.count + row)
    place = row.to(tl.int64) * most + tl.load(reports.step + row)
    values, ids, first, first_ids = load_list(reports, row, V, _SHORT)
    keep_loads_early(V)
    if n <= _SHORT:
        i = tl.arange(0, _SHORT)
        rank = ranks_of(tl.where(i < n, packed_of(first, first_ids), LOWEST))
        kept = (i < n) & (rank < _TOPS)
        tl.store(reports.tops + place * _TOPS + rank, first, mask=kept)
        tl.store(reports.top_ids + place * _TOPS + rank, first_ids, mask=kept)
        if n < _TOPS:  # the lowest of the illegal ones come after them
            token = tl.arange(0, 2 * _TOPS)
            same = (first_ids[:, None] == token[None, :]) & (i < n)[:, None]
            is_illegal = (tl.sum(same.to(tl.int32), 0) == 0) & (token < V)
            after = n + tl.cumsum(is_illegal.to(tl.int32), 0) - 1
            is_illegal &= after < _TOPS
            lowest = tl.full((2 * _TOPS,), float("-inf"), tl.float32)
            tl.store(reports.tops + place * _TOPS + after, lowest, mask=is_illegal)
            tl.store(reports.top_ids + place * _TOPS + after, token, mask=is_illegal)
    else:  # many equal logits: one at a time
        before = tl.full((), 0x7FFFFFFFFFFFFFFF, tl.int64)
        for top in range(_TOPS):
            best = tl.full((), LOWEST, tl.int64)
            for start in range(0, n, _BLOCK):
                j = start + tl.arange(0, _BLOCK)
                x = tl.load(values + j, mask=j < n, other=0.0)
                packed = packed_of(x, tl.load(ids + j, mask=j < n, other=0))
                best = tl.maximum(best, tl.max(tl.where((j < n) & (packed < before), packed, LOWEST), 0))
            tl.store(reports.tops + place * _TOPS + top, value_of(best))
            tl.store(reports.top_ids + place * _TOPS + top, token_of(best))
            before = best
