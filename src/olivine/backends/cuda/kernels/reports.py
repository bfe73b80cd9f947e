"""Log-probabilities of drawn tokens and of the likeliest, as engine/sampling.py defines them, on the device.

Two of the kernels that draw (kernels/sampling.py) compute on the way:
1. `_chunk_maxima`: of each chunk of the vocabulary, the sum of exp(logit - the largest of the chunk);
2. `_threshold`: the logarithm of the sum over all; and a bound, at or above which at least n logits lie.

After the draw:
3. `_collect`: the logits from that bound on go to a list.
4. `_report`: the list is sorted, and written down with the drawn token and its log-probability.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from olivine.backends.cuda.kernels.adjust import Adjustments
from olivine.backends.cuda.kernels.advance import RowState, advance, load_progress, load_stops
from olivine.backends.cuda.kernels.histogram import early_limit
from olivine.backends.cuda.kernels.pdl import LAUNCH, begin, keep_loads_early
from olivine.backends.cuda.kernels.sampling import _OPEN, CHUNK, _ordered, load_list

SHORT = 256  # candidates that are sorted
TOPS = 32  # alternatives that are reported, at most: OpenAI's interface has 20


class Reports(NamedTuple):
    """Intermediate results, and what the host reads."""

    maxima: torch.Tensor  # [B, chunks]
    sums: torch.Tensor  # [B, chunks] float64
    total: torch.Tensor  # [B] float64, the logarithm of the sum
    bound: torch.Tensor  # [B]
    count: torch.Tensor  # [B] candidates in the list
    found: torch.Tensor  # [B, V] the list: logits
    found_ids: torch.Tensor  # and tokens
    drawn: torch.Tensor  # [B, most] float64: of each drawn token
    tops: torch.Tensor  # [B, most, TOPS] float64: of the likeliest
    top_ids: torch.Tensor  # and their tokens

    @staticmethod
    def empty(rows: int, most: int, vocabulary: int, device: torch.device) -> Reports:
        chunks = -(-vocabulary // CHUNK)

        def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        return Reports(
            zeros(rows, chunks),
            zeros(rows, chunks, dtype=torch.float64),
            zeros(rows, dtype=torch.float64),
            zeros(rows),
            zeros(rows, dtype=torch.int32),
            zeros(rows, vocabulary),
            zeros(rows, vocabulary, dtype=torch.int32),
            zeros(rows, most, dtype=torch.float64),
            zeros(rows, most, TOPS, dtype=torch.float64),
            zeros(rows, most, TOPS, dtype=torch.int32),
        )


@triton.jit
def _collect(logits, reports, ends, V, chunks, CHUNK: tl.constexpr):
    row = tl.program_id(1)
    chunk = tl.program_id(0)
    at = chunk * CHUNK + tl.arange(0, CHUNK)
    begin()
    early = early_limit(V)
    x = tl.load(logits + row.to(tl.int64) * V + at, mask=at < early, other=float("-inf"))
    low = tl.load(reports.bound + row)
    highest = tl.load(reports.maxima + row * chunks + chunk)
    end = tl.load(ends + row)
    keep_loads_early(chunks)
    if (highest >= low) & (end == _OPEN):
        if early == 0:
            x = tl.load(logits + row.to(tl.int64) * V + at, mask=at < V, other=float("-inf"))
        kept = (x >= low) & (at < V)
        start = tl.atomic_add(reports.count + row, tl.sum(kept.to(tl.int32), 0), sem="relaxed")
        to = start + tl.cumsum(kept.to(tl.int32), 0) - 1
        tl.store(reports.found + row.to(tl.int64) * V + to, x, mask=kept)
        tl.store(reports.found_ids + row.to(tl.int64) * V + to, at, mask=kept)


@triton.jit
def _unordered(b):
    """The float of an int32 in the order of floats."""
    return (b ^ ((b >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def _packed(x, token, there):
    """An int64 in the order of the list: by value, and of equal values the lowest token first."""
    packed = (_ordered(x + 0.0).to(tl.int64) << 32) | (0x7FFFFFFF - token).to(tl.int64)
    return tl.where(there, packed, -0x7FFFFFFFFFFFFFFF)


@triton.jit
def _unpacked(packed, total):
    x = _unordered((packed >> 32).to(tl.int32))
    return x.to(tl.float64) - total, 0x7FFFFFFF - (packed & 0x7FFFFFFF).to(tl.int32)


@triton.jit
def _report(
    logits, reports, rows, adjusting, V, most,
    TOPS: tl.constexpr, SHORT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """rows is a `RowState`, adjusting an `AdjustState` or None."""
    row = tl.program_id(0)
    stops = load_stops(rows, row)
    begin()
    end = tl.load(rows.ends + row)
    token = tl.load(rows.tokens + row)
    progress = load_progress(rows, adjusting, row)
    total = tl.load(reports.total + row)
    n = tl.load(reports.count + row)
    values, ids, first, first_ids = load_list(reports, row, V, SHORT)
    i = tl.arange(0, SHORT)
    own = tl.load(logits + row.to(tl.int64) * V + token, mask=token < V, other=0.0)  # a row without one has V
    keep_loads_early(V)
    if end == _OPEN:
        place = row.to(tl.int64) * most + progress[0]
        tl.store(reports.drawn + place, own.to(tl.float64) - total)
        if n <= SHORT:
            ordered = tl.sort(_packed(first, first_ids, i < n), descending=True)
            top_values, top_ids = _unpacked(ordered, total)
            tl.store(reports.tops + place * TOPS + i, top_values, mask=i < TOPS)
            tl.store(reports.top_ids + place * TOPS + i, top_ids, mask=i < TOPS)
        else:  # many equal logits: one at a time
            before = tl.full((), 0x7FFFFFFFFFFFFFFF, tl.int64)
            for top in range(TOPS):
                best = tl.full((), -0x7FFFFFFFFFFFFFFF, tl.int64)
                for start in range(0, n, BLOCK):
                    j = start + tl.arange(0, BLOCK)
                    x = tl.load(values + j, mask=j < n, other=0.0)
                    packed = _packed(x, tl.load(ids + j, mask=j < n, other=0), j < n)
                    packed = tl.where(packed < before, packed, -0x7FFFFFFFFFFFFFFF)
                    best = tl.maximum(best, tl.max(packed, 0))
                value, value_id = _unpacked(best, total)
                tl.store(reports.tops + place * TOPS + top, value)
                tl.store(reports.top_ids + place * TOPS + top, value_id)
                before = best
    advance(rows, adjusting, row, token, end, stops, progress, most, V)


def report(
    logits: torch.Tensor, reports: Reports, rows: RowState, adjustments: Adjustments | None = None
) -> None:
    """Writes down the tokens that `choose` drew from logits [B, V], and their log-probabilities."""
    count, vocabulary = logits.shape
    chunks = reports.maxima.shape[1]
    adjusting = None if adjustments is None else adjustments.state
    grid = (chunks, count)
    _collect[grid](logits, reports, rows.ends, vocabulary, chunks, CHUNK=CHUNK, **LAUNCH)
    _report[(count,)](
        logits, reports, rows, adjusting, vocabulary, reports.drawn.shape[1],
        TOPS=TOPS, SHORT=SHORT, BLOCK=2048, num_warps=8, **LAUNCH,
    )  # fmt: skip
