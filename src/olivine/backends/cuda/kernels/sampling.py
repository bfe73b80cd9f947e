"""From adjusted logits to tokens: steps 4 to 8 of engine/sampling.py, for every row of a batch at once.

1. `_chunk_maxima`: the largest logit of each chunk of the vocabulary, and whether any is not a number; after
   steps 1 to 3, where logits are adjusted (kernels/adjust.py).
2. Where those do not bound what is kept (top-p without top-k, or a k above the number of chunks), a histogram
   of the row (kernels/histogram.py).
3. `_threshold`: a bound below which no logit is among the top k: about the k-th largest of the chunks'
   maxima, so that at least k logits lie at it or above; or, of the histogram, the bin where the row is cut.
4. `_collect`: tokens that top-k and top-p certainly keep are drawn from at once; those that they may keep go
   to a list.
5. `_draw`: the argmax, or the token of the list that the filters leave (kernels/filters.py), or one of those
   that were drawn at once; it is written down (kernels/advance.py).

Where every row takes the argmax, there are but the first and the last. Log-probabilities need 3 to 5 in any
case: a second program of each row, or chunk, does the work for them (kernels/reports.py).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from olivine.backends.base import Sampling
from olivine.backends.cuda.kernels import histogram
from olivine.backends.cuda.kernels.adjust import Adjustments, adjusted, load_settings
from olivine.backends.cuda.kernels.advance import (
    OPEN,
    STOPS,
    RowState,
    advance,
    end_of_row,
    load_progress,
    load_stops,
)
from olivine.backends.cuda.kernels.candidates import CHUNK, append, bound, early_limit, load_list
from olivine.backends.cuda.kernels.filters import draw_long, draw_short
from olivine.backends.cuda.kernels.histogram import (
    BINS,
    bin_of,
    clear,
    counted_of,
    load_bins,
    locate,
)
from olivine.backends.cuda.kernels.noise import gumbel, key_of
from olivine.backends.cuda.kernels.pdl import LAUNCH, begin, keep_loads_early
from olivine.backends.cuda.kernels.reports import Reports, bound_report, exponentials, write_likeliest

SHORT = 128  # candidates that are drawn from without reading them again

_OPEN: tl.constexpr = tl.constexpr(OPEN)
_BINS: tl.constexpr = tl.constexpr(BINS)
_COUNT_NOTHING: tl.constexpr = tl.constexpr(histogram.NOTHING)
_COUNT_TOKENS: tl.constexpr = tl.constexpr(histogram.TOKENS)
_COUNT_MASS: tl.constexpr = tl.constexpr(histogram.MASS)


def needs_histogram(how: Sampling, vocabulary: int) -> bool:
    """Whether it filters tokens, and the chunks' maxima do not bound them."""
    if 0 < how.top_k < vocabulary:
        filtered = how.top_k > -(-vocabulary // CHUNK)
    else:
        filtered = how.top_p < 1
    return filtered and how.temperature > 0


class Choices(NamedTuple):
    """The sampling parameters of each row, on the device."""

    temperature: torch.Tensor  # float32
    top_k: torch.Tensor  # int32, 0: off
    top_p: torch.Tensor  # float64, 1: off
    log_min_p: torch.Tensor  # float32, -inf: off
    seed: torch.Tensor  # int32 [B, 2]: the low and the high half

    @staticmethod
    def empty(rows: int, device: torch.device) -> Choices:
        return Choices(
            torch.zeros(rows, device=device),
            torch.zeros(rows, dtype=torch.int32, device=device),
            torch.ones(rows, dtype=torch.float64, device=device),
            torch.full((rows,), float("-inf"), device=device),
            torch.zeros((rows, 2), dtype=torch.int32, device=device),
        )


class Workspace(NamedTuple):
    """Intermediate results of the kernels."""

    maxima: torch.Tensor  # [B, chunks] the largest logit of each chunk of the vocabulary; inf if one is NaN
    places: torch.Tensor  # and its token
    noisy: torch.Tensor  # [B, chunks] the largest with noise of those that are certainly kept
    noisy_places: torch.Tensor  # and its token
    peak: torch.Tensor  # [B] the largest logit
    bound: torch.Tensor  # [B] below this z, no logit is among the top k
    count: torch.Tensor  # [B] candidates in the list
    found: torch.Tensor  # [B, V] the list: z, which are logits less the largest, by temperature
    found_ids: torch.Tensor  # and tokens
    histogram: torch.Tensor  # [B, BINS] int64
    kept_above: torch.Tensor  # [B] tokens in bins before this one are certainly kept by top-k and top-p
    listed_to: torch.Tensor  # [B] those from there to this bin, inclusive, go to the list
    top_k: torch.Tensor  # [B] tokens that top-k keeps of the list
    # [B] int64: the mass that top-p keeps of the list; -1: its share of what top-k keeps of it
    wanted: torch.Tensor

    @staticmethod
    def empty(rows: int, vocabulary: int, device: torch.device) -> Workspace:
        """For up to `rows` rows."""
        chunks = -(-vocabulary // CHUNK)

        def ints(*shape: int) -> torch.Tensor:
            return torch.zeros(shape, dtype=torch.int32, device=device)

        return Workspace(
            torch.empty((rows, chunks), device=device),
            ints(rows, chunks),
            torch.empty((rows, chunks), device=device),
            ints(rows, chunks),
            torch.empty(rows, device=device),
            torch.empty(rows, device=device),
            ints(rows),
            torch.empty((rows, vocabulary), device=device),
            ints(rows, vocabulary),
            torch.zeros((rows, BINS), dtype=torch.int64, device=device),
            ints(rows),
            ints(rows),
            ints(rows),
            torch.zeros(rows, dtype=torch.int64, device=device),
        )


@triton.jit
def _chunk_maxima(
    logits, out, space, reports, rows, adjusting, V, chunks,
    STOPS: tl.constexpr, CHUNK: tl.constexpr, CLEARED: tl.constexpr,
):  # fmt: skip
    """rows is a `RowState`; adjusting an `AdjustState`, by which logits become `out`, or None."""
    row = tl.program_id(1)
    chunk = tl.program_id(0)
    at = chunk * CHUNK + tl.arange(0, CHUNK)
    long_row = row.to(tl.int64)
    if adjusting is None:
        begin()
        x = tl.load(logits + long_row * V + at, mask=at < V, other=float("-inf"))
    else:
        settings = load_settings(adjusting, long_row, at, V)
        begin()
        x = adjusted(logits, adjusting, settings, rows.stops, rows.stop_count, long_row, at, V, STOPS)
        tl.store(out + long_row * V + at, x, mask=at < V)
    bad = tl.sum((x < float("inf")).to(tl.int32), 0) < CHUNK
    best = tl.max(x, 0)
    tl.store(space.maxima + row * chunks + chunk, tl.where(bad, float("inf"), best))
    tl.store(space.places + row * chunks + chunk, tl.min(tl.where(x == best, at, V), 0))
    if CLEARED > 0:
        clear(space.histogram + row * _BINS, chunk, CLEARED)
    if reports is not None:
        tl.store(reports.sums + row * chunks + chunk, tl.sum(exponentials(x, best), 0))


@triton.jit
def _threshold(
    how, space, reports, rows, most, V, chunks, CHUNKS: tl.constexpr, HISTOGRAM: tl.constexpr
):  # fmt: skip
    """rows is a `RowState`."""
    row = tl.program_id(0)
    # Before the wait: no kernel of a draw writes them.
    k, p = tl.load(how.top_k + row), tl.load(how.top_p + row)
    t = tl.load(how.temperature + row)
    begin()
    c = tl.arange(0, CHUNKS)
    m = tl.load(space.maxima + row * chunks + c, mask=c < chunks, other=float("-inf"))
    if reports is not None:
        is_second = tl.program_id(1) == 1
        if is_second:
            bound_report(reports, rows, row, m, most, chunks, CHUNKS)
            return
    if HISTOGRAM:
        bins = load_bins(space.histogram + row * _BINS)
    peak = tl.max(m, 0)
    tl.store(space.peak + row, peak)
    tl.store(space.count + row, 0)
    filtered = (k > 0) & (k < V)
    low = float("-inf")
    if filtered & (k <= chunks) & (t > 0):
        # After the temperature, because logits that differ may be equal then.
        low = bound(tl.div_rn(m - peak, t), 0.0, k, chunks, CHUNKS)
    tl.store(space.bound + row, low)
    kept_above = tl.where(filtered | (p < 1.0), 0, _BINS)
    listed_to = _BINS - 1
    kept = tl.where(filtered, k, V)
    wanted = -1
    if HISTOGRAM:
        counted = counted_of(k, p, t, V, chunks)
        cut, above, total = locate(space.histogram + row * _BINS, bins, counted, k, p)
        by_mass, by_number = counted == _COUNT_MASS, counted == _COUNT_TOKENS
        listed_to = tl.where(counted == _COUNT_NOTHING, _BINS - 1, tl.minimum(cut, _BINS - 2))
        # With a top-p, it may keep fewer than those that top-k keeps for certain.
        kept_above = tl.where(by_mass | (by_number & (p >= 1.0)), cut, kept_above)
        kept -= tl.where(by_number & (p >= 1.0), above, 0).to(tl.int32)
        wanted = tl.where(by_mass, total - above, -1)
    tl.store(space.kept_above + row, kept_above)
    tl.store(space.listed_to + row, listed_to)
    tl.store(space.top_k + row, kept)
    tl.store(space.wanted + row, wanted)


@triton.jit
def _collect(logits, how, space, reports, rows, V, chunks, CHUNK: tl.constexpr):
    """rows is a `RowState`."""
    row = tl.program_id(1)
    chunk = tl.program_id(0)
    at = chunk * CHUNK + tl.arange(0, CHUNK)
    t = tl.load(how.temperature + row)
    log_min = tl.load(how.log_min_p + row)
    seed_low, seed_high = tl.load(how.seed + row * 2), tl.load(how.seed + row * 2 + 1)
    begin()
    early = early_limit(V)
    x = tl.load(logits + row.to(tl.int64) * V + at, mask=at < early, other=float("-inf"))
    highest = tl.load(space.maxima + row * chunks + chunk)
    if reports is not None:
        is_second = tl.program_id(2) == 1
        if is_second:
            low = tl.load(reports.bound + row)
            if highest >= low:
                if early == 0:
                    x = tl.load(logits + row.to(tl.int64) * V + at, mask=at < V, other=float("-inf"))
                append(reports, row, x, at, (x >= low) & (x > float("-inf")), V)
            return
    end = tl.load(rows.ends + row)
    low = tl.load(space.bound + row)
    peak = tl.load(space.peak + row)
    kept_above = tl.load(space.kept_above + row)
    listed_to = tl.load(space.listed_to + row)
    key = key_of(seed_low, seed_high, tl.load(rows.positions + row) + 1)
    keep_loads_early(chunks)
    if (t > 0) & (end_of_row(end, peak) == _OPEN):
        best = float("-inf")
        place = V + 0
        highest_z = tl.div_rn(highest - peak, t)
        if (highest_z >= low) & (bin_of(highest_z) <= listed_to):
            if early == 0:
                x = tl.load(logits + row.to(tl.int64) * V + at, mask=at < V, other=float("-inf"))
            z = tl.div_rn(x - peak, t)
            s = bin_of(z)
            if kept_above < _BINS:
                listed = (z >= low) & (x > float("-inf")) & (s >= kept_above) & (s <= listed_to)
                append(space, row, z, at, listed, V)
            if kept_above > 0:
                kept = (x > float("-inf")) & (s < kept_above) & (z >= log_min)
                noisy = tl.where(kept, z + gumbel(key, at), float("-inf"))
                best = tl.max(noisy, 0)
                place = tl.min(tl.where(noisy == best, at, V), 0)
        if kept_above > 0:
            tl.store(space.noisy + row * chunks + chunk, best)
            tl.store(space.noisy_places + row * chunks + chunk, place)


@triton.jit
def _draw(
    logits, how, space, reports, rows, adjusting, most, V, chunks,
    CHUNKS: tl.constexpr, SHORT: tl.constexpr, BLOCK: tl.constexpr,
    LISTED: tl.constexpr,
):  # fmt: skip
    """rows is a `RowState`, adjusting an `AdjustState` or None; LISTED: after `_collect`. Of a row of which
    reports are made, a second program writes the likeliest down."""
    row = tl.program_id(0)
    # Before the wait: no kernel of a draw writes them.
    stops = load_stops(rows, row)
    if LISTED:
        t, p = tl.load(how.temperature + row), tl.load(how.top_p + row)
        log_min = tl.load(how.log_min_p + row)
        seed_low, seed_high = tl.load(how.seed + row * 2), tl.load(how.seed + row * 2 + 1)
    begin()
    if reports is not None:
        is_second = tl.program_id(1) == 1
        if is_second:
            write_likeliest(reports, row, most, V)
            return
    c = tl.arange(0, CHUNKS)
    m = tl.load(space.maxima + row * chunks + c, mask=c < chunks, other=float("-inf"))
    place = tl.load(space.places + row * chunks + c, mask=c < chunks, other=V)
    end = tl.load(rows.ends + row)
    progress = load_progress(rows, adjusting, row)
    if LISTED:
        kept_above, top_k = tl.load(space.kept_above + row), tl.load(space.top_k + row)
        wanted = tl.load(space.wanted + row)
        n = tl.load(space.count + row)
        values, ids, first, first_ids = load_list(space, row, V, SHORT)
        noisy_of_chunks = tl.load(space.noisy + row * chunks + c, mask=c < chunks, other=float("-inf"))
        noisy_places = tl.load(space.noisy_places + row * chunks + c, mask=c < chunks, other=V)
    keep_loads_early(chunks)
    peak = tl.max(m, 0)
    end = end_of_row(end, peak)
    token = tl.min(tl.where(m == peak, place, V - 1), 0)
    if LISTED:
        drawn = (t > 0) & (end == _OPEN)
        if drawn:
            best = float("-inf")
            token = V + 0
            if kept_above > 0:
                best = tl.max(noisy_of_chunks, 0)
                token = tl.min(tl.where(noisy_of_chunks == best, noisy_places, V), 0)
            if kept_above < _BINS:
                key = key_of(seed_low, seed_high, progress[1] + 1)
                if n <= SHORT:
                    first = tl.where(tl.arange(0, SHORT) < n, first, float("-inf"))
                    noisy, chosen = draw_short(first, first_ids, n, top_k, p, wanted, log_min, key, SHORT)
                else:
                    noisy, chosen = draw_long(values, ids, n, top_k, p, wanted, log_min, key, BLOCK)
                token = tl.where((noisy > best) | ((noisy == best) & (chosen < token)), chosen, token)
    if reports is not None:
        own = tl.load(logits + row.to(tl.int64) * V + token, mask=token < V, other=0.0)
        tl.store(reports.drawn + row * most + progress[0], own, mask=end == _OPEN)
    advance(rows, adjusting, row, token, end, stops, progress, most, V)


def choose(
    logits: torch.Tensor,
    how: Choices,
    rows: RowState,
    space: Workspace,
    sampled: bool = True,
    by_histogram: bool = True,
    reports: Reports | None = None,
    adjustments: Adjustments | None = None,
) -> None:
    """Draws a token of each row of logits [B, V], for the position after the row's, and writes it down: in
    `rows`, in the counts of `adjustments`, and, with log-probabilities, in `reports`.

    Without `sampled` every row takes the argmax. Without `by_histogram`, rows that need one are slow.
    """
    raw, adjusting = logits, None
    if adjustments is not None:
        logits, adjusting = adjustments.out, adjustments.state
    count, vocabulary = logits.shape
    chunks, most = space.maxima.shape[1], rows.drawn.stride(0)
    assert reports is None or reports.totals.stride(0) == most
    padded = triton.next_power_of_2(chunks)
    grid = (chunks, count)
    by_histogram &= sampled
    cleared = triton.next_power_of_2(-(-BINS // chunks)) if by_histogram else 0
    _chunk_maxima[grid](
        raw, None if adjusting is None else logits, space, reports, rows, adjusting, vocabulary, chunks,
        STOPS=STOPS, CHUNK=CHUNK, CLEARED=cleared, enable_fp_fusion=False, **LAUNCH,
    )  # fmt: skip
    if by_histogram:
        histogram.count(logits, how, space, rows.ends, CHUNK, chunks)
    listed = sampled or reports is not None
    programs = 1 if reports is None else 2
    if listed:
        _threshold[(count, programs)](
            how, space, reports, rows, most, vocabulary, chunks, CHUNKS=padded, HISTOGRAM=by_histogram,
            num_warps=16 if by_histogram else 4, enable_fp_fusion=False, **LAUNCH,
        )  # fmt: skip
        _collect[(chunks, count, programs)](
            logits, how, space, reports, rows, vocabulary, chunks,
            CHUNK=CHUNK, enable_fp_fusion=False, **LAUNCH,
        )  # fmt: skip
    _draw[(count, programs)](
        logits, how, space, reports, rows, adjusting, most, vocabulary, chunks,
        CHUNKS=padded, SHORT=SHORT, BLOCK=1024, LISTED=listed, num_warps=4, enable_fp_fusion=False, **LAUNCH,
    )  # fmt: skip
