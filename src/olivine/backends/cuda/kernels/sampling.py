"""From adjusted logits to tokens: steps 4 to 8 of engine/sampling.py, for every row of a batch at once.

1. `_chunk_maxima`: the largest logit of each chunk of the vocabulary, and whether any is not a number; after
   steps 1 to 3, where logits are adjusted (kernels/adjust.py).
2. Where those do not bound what is kept (top-p without top-k, or a k above the number of chunks), a histogram
   of the row (kernels/histogram.py).
3. `_threshold`: the largest of a row, the token where that decides, and a bound below which no logit is among
   the top k: about the k-th largest of the chunks' maxima, so that at least k logits lie above or at it; or,
   of the histogram, the bin in which the row is cut.
4. `_collect`: tokens that top-k and top-p certainly keep are drawn from at once; those that they may keep go
   to a list.
5. `_draw`: the token of the list whose logit with noise is largest, if top-k and top-p keep it; else the next
   largest. What they keep is a beginning of the list in order, so that only that token's place is needed.

The last kernel of a draw writes the token down (kernels/advance.py): `_threshold` if every row takes the
argmax, else `_draw`; where log-probabilities are reported, `_report`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
import triton
import triton.language as tl

from olivine.backends.base import Sampling
from olivine.backends.cuda.kernels import histogram
from olivine.backends.cuda.kernels.adjust import Adjustments, adjusted, load_settings
from olivine.backends.cuda.kernels.advance import (
    BROKEN,
    NOTHING,
    OPEN,
    STOPS,
    RowState,
    advance,
    load_progress,
    load_stops,
)
from olivine.backends.cuda.kernels.histogram import (
    BINS,
    bin_of,
    clear,
    counted_of,
    early_limit,
    load_bins,
    locate,
)
from olivine.backends.cuda.kernels.noise import gumbel, key_of, mass
from olivine.backends.cuda.kernels.pdl import LAUNCH, begin, keep_loads_early

if TYPE_CHECKING:
    from olivine.backends.cuda.kernels.reports import Reports

CHUNK = 512
SHORT = 128  # candidates that are drawn from without reading them again

_OPEN: tl.constexpr = tl.constexpr(OPEN)
_BROKEN: tl.constexpr = tl.constexpr(BROKEN)
_NOTHING: tl.constexpr = tl.constexpr(NOTHING)
_BINS: tl.constexpr = tl.constexpr(BINS)
_LOWEST: tl.constexpr = tl.constexpr(-0x7FFFFFFFFFFFFFFF)  # below any place in the order of the list
_MASS_BITS: tl.constexpr = tl.constexpr(48)  # more than the mass of a short list has
_MASS: tl.constexpr = tl.constexpr((1 << 48) - 1)
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

    maxima: torch.Tensor  # [B, chunks] the largest logit of each chunk of the vocabulary
    places: torch.Tensor  # and its token
    broken: torch.Tensor  # [B, chunks] whether a logit is NaN or infinite
    peak: torch.Tensor  # [B] the largest logit
    bound: torch.Tensor  # [B] below it, no logit is among the top k
    count: torch.Tensor  # [B] candidates in the list
    found: torch.Tensor  # [B, V] the list: logits, less the largest, by temperature
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
    tl.store(space.maxima + row * chunks + chunk, best)
    tl.store(space.places + row * chunks + chunk, tl.min(tl.where(x == best, at, V), 0))
    tl.store(space.broken + row * chunks + chunk, bad.to(tl.int32))
    if CLEARED > 0:
        clear(space.histogram + row * _BINS, chunk, CLEARED)
    if reports is not None:
        z = tl.where(x > float("-inf"), x.to(tl.float64) - best.to(tl.float64), float("-inf"))
        tl.store(reports.maxima + row * chunks + chunk, best)
        tl.store(reports.sums + row * chunks + chunk, tl.sum(tl.exp(z), 0))


@triton.jit
def _bound(m, best, k, chunks, CHUNKS: tl.constexpr):
    """At least k of the chunks' maxima m lie above it or at it, and few more; -inf if there are not as many.

    The maxima are put into 256 steps of equal width, from the largest down, and the step that reaches k is
    searched in rounds of two bits: a sort would take longer.
    """
    kind: tl.constexpr = tl.int32 if CHUNKS <= 512 else tl.int64
    width: tl.constexpr = 10 if CHUNKS <= 512 else 20
    lowest = tl.min(tl.where(m > float("-inf"), m, best), 0)
    scale = 254.0 / tl.maximum(best - lowest, 1e-30)
    step = tl.where(m > float("-inf"), tl.minimum((best - m) * scale, 254.0), 255.0).to(tl.int32)
    cut = tl.zeros((), tl.int32)
    for i in tl.static_range(4):
        before = tl.zeros((CHUNKS,), kind)
        for j in tl.static_range(3):  # how many come before each of three steps, in one sum
            before += (step < cut + ((j + 1) * 64 >> 2 * i)).to(kind) << (j * width)
        total = tl.sum(before, 0)
        for j in tl.static_range(3):
            cut += tl.where(((total >> (j * width)) & ((1 << width) - 1)) < k, 64 >> 2 * i, 0)
    low = tl.min(tl.where(step <= cut, m, float("inf")), 0)
    return tl.where(k <= chunks, low, float("-inf"))


@triton.jit
def _threshold(
    how, space, reports, rows, adjusting, most, V, chunks,
    CHUNKS: tl.constexpr, TOPS: tl.constexpr, HISTOGRAM: tl.constexpr, LAST: tl.constexpr,
):  # fmt: skip
    """rows is a `RowState`, adjusting an `AdjustState` or None."""
    row = tl.program_id(0)
    # Before the wait, because no kernel writes them; after a store, the program would wait for each.
    k = tl.load(how.top_k + row)
    p = tl.load(how.top_p + row)
    counted = counted_of(k, p, tl.load(how.temperature + row), V, chunks)
    top_k = (k > 0) & (k < V)
    stops = load_stops(rows, row)
    begin()
    c = tl.arange(0, CHUNKS)
    there = c < chunks
    m = tl.load(space.maxima + row * chunks + c, mask=there, other=float("-inf"))
    place = tl.load(space.places + row * chunks + c, mask=there, other=V)
    broken = tl.load(space.broken + row * chunks + c, mask=there, other=0)
    end = tl.load(rows.ends + row)
    progress = load_progress(rows, adjusting, row)
    if HISTOGRAM:
        bins = load_bins(space.histogram + row * _BINS)
    if reports is not None:
        sums = tl.load(reports.sums + row * chunks + c, mask=there, other=0.0)
    best = tl.max(m, 0)
    bad = tl.max(broken, 0)
    found = tl.where(bad > 0, _BROKEN, tl.where(best == float("-inf"), _NOTHING, _OPEN))
    end = tl.where(end == _OPEN, found, end)
    token = tl.min(tl.where(m == best, place, V - 1), 0)
    if LAST:
        advance(rows, adjusting, row, token, end, stops, progress, most, V)
        return
    tl.store(rows.ends + row, end)
    tl.store(rows.tokens + row, token)
    tl.store(space.peak + row, best)
    tl.store(space.count + row, 0)
    low = float("-inf")
    bounded = top_k & (k <= chunks)
    if bounded:
        low = _bound(m, best, k, chunks, CHUNKS)
    if reports is not None:
        tl.store(reports.bound + row, _bound(m, best, TOPS, chunks, CHUNKS))
        tl.store(reports.count + row, 0)
        z = tl.where(m > float("-inf"), m.to(tl.float64) - best.to(tl.float64), float("-inf"))
        tl.store(reports.total + row, tl.log(tl.sum(sums * tl.exp(z), 0)) + best.to(tl.float64))
    tl.store(space.bound + row, low)
    kept_above = tl.where(top_k | (p < 1.0), 0, _BINS)
    listed_to = _BINS - 1
    kept = tl.where(top_k, k, V)
    wanted = -1
    if HISTOGRAM:
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
def _collect(logits, how, space, positions, ends, V, chunks, CHUNK: tl.constexpr):
    row = tl.program_id(1)
    chunk = tl.program_id(0)
    at = chunk * CHUNK + tl.arange(0, CHUNK)
    t = tl.load(how.temperature + row)
    log_min = tl.load(how.log_min_p + row)
    seed_low, seed_high = tl.load(how.seed + row * 2), tl.load(how.seed + row * 2 + 1)
    begin()
    early = early_limit(V)
    x = tl.load(logits + row.to(tl.int64) * V + at, mask=at < early, other=float("-inf"))
    end = tl.load(ends + row)
    low = tl.load(space.bound + row)
    peak = tl.load(space.peak + row)
    kept_above = tl.load(space.kept_above + row)
    listed_to = tl.load(space.listed_to + row)
    highest = tl.load(space.maxima + row * chunks + chunk)
    key = key_of(seed_low, seed_high, tl.load(positions + row) + 1)
    keep_loads_early(chunks)
    if (t > 0) & (end == _OPEN):
        best = float("-inf")
        place = V + 0
        # What is divided by the temperature may be equal where logits are not.
        low_z = tl.div_rn(low - peak, t)
        highest_z = tl.div_rn(highest - peak, t)
        if (highest_z >= low_z) & (bin_of(highest_z) <= listed_to):
            if early == 0:
                x = tl.load(logits + row.to(tl.int64) * V + at, mask=at < V, other=float("-inf"))
            z = tl.div_rn(x - peak, t)
            s = bin_of(z)
            if kept_above < _BINS:
                listed = (z >= low_z) & (x > float("-inf")) & (s >= kept_above) & (s <= listed_to)
                number = tl.sum(listed.to(tl.int32), 0)
                if number > 0:
                    start = tl.atomic_add(space.count + row, number, sem="relaxed")
                    to = start + tl.cumsum(listed.to(tl.int32), 0) - 1
                    tl.store(space.found + row.to(tl.int64) * V + to, z, mask=listed)
                    tl.store(space.found_ids + row.to(tl.int64) * V + to, at, mask=listed)
            if kept_above > 0:
                kept = (x > float("-inf")) & (s < kept_above) & (z >= log_min)
                noisy = tl.where(kept, z + gumbel(key, at), float("-inf"))
                best = tl.max(noisy, 0)
                place = tl.min(tl.where(noisy == best, at, V), 0)
        if kept_above > 0:
            tl.store(space.maxima + row * chunks + chunk, best)
            tl.store(space.places + row * chunks + chunk, place)


@triton.jit
def load_list(lists, row, V, SIZE: tl.constexpr):
    """Where the list of a row is, and the first SIZE of it, before it is known how many there are. `lists` is
    a `Workspace` or `Reports`."""
    values = lists.found + row.to(tl.int64) * V
    ids = lists.found_ids + row.to(tl.int64) * V
    i = tl.arange(0, SIZE)
    first = tl.load(values + i, mask=i < V, other=0.0)
    return values, ids, first, tl.load(ids + i, mask=i < V, other=0)


@triton.jit
def _ordered(x):
    """An int32 in the order of the floats (−0 comes below 0, but does not occur here)."""
    b = x.to(tl.int32, bitcast=True)
    return b ^ ((b >> 31) & 0x7FFFFFFF)


@triton.jit
def _packed(z, token):
    """An int64 in the order of the list: by value, and of equal values the lowest token is the largest."""
    return (_ordered(z + 0.0).to(tl.int64) << 32) | (0x7FFFFFFF - token).to(tl.int64)


@triton.jit
def _turned(packed):
    """Its halves exchanged: in the order of tokens, the lowest the largest; and back."""
    return (packed << 32) | ((packed >> 32) & 0xFFFFFFFF)


@triton.jit
def _likeliest(noisy, packed):
    """The largest of them, and where it is in the order of the list; of equal ones the lowest token."""
    best = tl.max(noisy, 0)
    return best, _turned(tl.max(tl.where(noisy == best, _turned(packed), _LOWEST), 0))


@triton.jit
def _share(p, total):
    """The mass of which tokens are kept: one is, if less comes before it."""
    return tl.ceil(p * total.to(tl.float64)).to(tl.int64)


@triton.jit
def _draw_short(z, token, n, k, p, wanted, log_min, key, SIZE: tl.constexpr):
    """The token drawn from a list of up to SIZE tokens, and its z with noise."""
    there = tl.arange(0, SIZE) < n
    packed = tl.where(there, _packed(z, token), _LOWEST)
    masses = tl.where(there, mass(z) + (_MASS + 1), 0)  # with a count of one above them
    noisy = tl.where(there & (z >= log_min), z + gumbel(key, token), float("-inf"))
    if (p < 1.0) & (wanted < 0):
        among = masses
        if k < n:  # the masses of the top k: a sort would take longer, and Triton seconds to compile it
            rank = tl.sum((packed[:, None] > packed[None, :]).to(tl.int32), 0)
            among = tl.where(rank < k, masses, 0)
        wanted = _share(p, tl.sum(among, 0) & _MASS)
    best, chosen = float("-inf"), tl.full((), _LOWEST, tl.int64)
    settled = n == 0
    while settled == 0:
        best, chosen = _likeliest(noisy, packed)
        before = tl.sum(tl.where(packed > chosen, masses, 0), 0)
        kept = ((before >> _MASS_BITS) < k) & ((p >= 1.0) | ((before & _MASS) < wanted))
        settled = kept | (best == float("-inf"))
        noisy = tl.where(packed > chosen, noisy, float("-inf"))
    return best, _token_of(chosen)


@triton.jit
def _token_of(packed):
    return 0x7FFFFFFF - (packed & 0x7FFFFFFF).to(tl.int32)


@triton.jit
def _before(values, ids, n, place, BLOCK: tl.constexpr):
    """How many candidates come before a place in the order of the list, and their mass."""
    number = tl.zeros((BLOCK,), tl.int32)
    total = tl.zeros((BLOCK,), tl.int64)
    for start in range(0, n, BLOCK):
        i = start + tl.arange(0, BLOCK)
        z = tl.load(values + i, mask=i < n, other=float("-inf"))
        token = tl.load(ids + i, mask=i < n, other=0)
        comes_first = (i < n) & (_packed(z, token) > place)
        number += comes_first.to(tl.int32)
        total += tl.where(comes_first, mass(z), 0)
    return tl.sum(number, 0), tl.sum(total, 0)


@triton.jit
def _mass_of_top_k(values, ids, n, k, BLOCK: tl.constexpr):
    """Of the first k candidates, up to a place that is found by bisection."""
    low = tl.full((), -2139095041 << 32, tl.int64)  # -inf: all come before it
    high = tl.full((), 1 << 32, tl.int64)  # above 0: none does
    number, total = _before(values, ids, n, low, BLOCK)
    while number > k:
        middle = low + (high - low) // 2
        found, found_mass = _before(values, ids, n, middle, BLOCK)
        if found >= k:
            low, number, total = middle, found, found_mass
        else:
            high = middle
    return total


@triton.jit
def _likeliest_before(values, ids, n, place, log_min, key, BLOCK: tl.constexpr):
    """`_likeliest` of the candidates that come before a place."""
    best = tl.full((BLOCK,), float("-inf"), tl.float32)
    chosen = tl.full((BLOCK,), _LOWEST, tl.int64)
    for start in range(0, n, BLOCK):
        i = start + tl.arange(0, BLOCK)
        z = tl.load(values + i, mask=i < n, other=float("-inf"))
        token = tl.load(ids + i, mask=i < n, other=0)
        packed = _packed(z, token)
        kept = (i < n) & (packed > place) & (z >= log_min)
        noisy = tl.where(kept, z + gumbel(key, token), float("-inf"))
        better = (noisy > best) | ((noisy == best) & (_turned(packed) > _turned(chosen)))
        chosen = tl.where(better, packed, chosen)
        best = tl.maximum(best, noisy)
    return _likeliest(best, chosen)


@triton.jit
def _draw_long(values, ids, n, k, p, wanted, log_min, key, BLOCK: tl.constexpr):
    """As `_draw_short`, from a list of any length."""
    if (p < 1.0) & (wanted < 0):
        wanted = _share(p, _mass_of_top_k(values, ids, n, k, BLOCK))
    best, chosen = float("-inf"), tl.full((), _LOWEST, tl.int64)
    settled = n == 0
    while settled == 0:
        best, chosen = _likeliest_before(values, ids, n, chosen, log_min, key, BLOCK)
        number, total = _before(values, ids, n, chosen, BLOCK)
        kept = (number < k) & ((p >= 1.0) | (total < wanted))
        settled = kept | (best == float("-inf"))
    return best, _token_of(chosen)


@triton.jit
def _draw(
    how, space, rows, adjusting, most, V, chunks,
    CHUNKS: tl.constexpr, SHORT: tl.constexpr, BLOCK: tl.constexpr, LAST: tl.constexpr,
):  # fmt: skip
    """rows is a `RowState`, adjusting an `AdjustState` or None."""
    row = tl.program_id(0)
    stops = load_stops(rows, row)
    t = tl.load(how.temperature + row)
    p = tl.load(how.top_p + row)
    log_min = tl.load(how.log_min_p + row)
    seed_low, seed_high = tl.load(how.seed + row * 2), tl.load(how.seed + row * 2 + 1)
    begin()
    end = tl.load(rows.ends + row)
    progress = load_progress(rows, adjusting, row)
    token = tl.load(rows.tokens + row)
    kept_above = tl.load(space.kept_above + row)
    k = tl.load(space.top_k + row)
    wanted = tl.load(space.wanted + row)
    n = tl.load(space.count + row)
    values, ids, first, first_ids = load_list(space, row, V, SHORT)
    c = tl.arange(0, CHUNKS)
    m = tl.load(space.maxima + row * chunks + c, mask=c < chunks, other=float("-inf"))
    place = tl.load(space.places + row * chunks + c, mask=c < chunks, other=V)
    keep_loads_early(chunks)
    if (t > 0) & (end == _OPEN):
        best = float("-inf")
        token = V + 0
        if kept_above > 0:
            best = tl.max(m, 0)
            token = tl.min(tl.where(m == best, place, V), 0)
        if kept_above < _BINS:
            key = key_of(seed_low, seed_high, progress[1] + 1)
            if n <= SHORT:
                first = tl.where(tl.arange(0, SHORT) < n, first, float("-inf"))
                noisy, chosen = _draw_short(first, first_ids, n, k, p, wanted, log_min, key, SHORT)
            else:
                noisy, chosen = _draw_long(values, ids, n, k, p, wanted, log_min, key, BLOCK)
            token = tl.where((noisy > best) | ((noisy == best) & (chosen < token)), chosen, token)
    if LAST:
        advance(rows, adjusting, row, token, end, stops, progress, most, V)
    else:
        tl.store(rows.tokens + row, token)


def choose(
    logits: torch.Tensor,
    how: Choices,
    rows: RowState,
    space: Workspace,
    sampled: bool = True,
    by_histogram: bool = True,
    reports: Reports | None = None,
    adjustments: Adjustments | None = None,
) -> torch.Tensor:
    """Draws a token of each row of logits [B, V], for the position after the row's, and writes it down.
    The logits that it was drawn from are returned.

    Without `sampled` every row takes the argmax. Without `by_histogram`, rows that need one are slow.
    Of `reports`, what needs all logits is computed on the way; the rest is left to `report`, which also
    writes the token down. Where logits are adjusted, it is counted.
    """
    raw, adjusting = logits, None
    if adjustments is not None:
        logits, adjusting = adjustments.out, adjustments.state
    count, vocabulary = logits.shape
    chunks, most = space.maxima.shape[1], rows.drawn.stride(0)
    padded = triton.next_power_of_2(chunks)
    grid = (chunks, count)
    by_histogram &= sampled
    cleared = triton.next_power_of_2(-(-BINS // chunks)) if by_histogram else 0
    _chunk_maxima[grid](
        raw, None if adjusting is None else logits, space, reports, None if adjusting is None else rows,
        adjusting, vocabulary, chunks, STOPS=STOPS, CHUNK=CHUNK, CLEARED=cleared,
        enable_fp_fusion=False, **LAUNCH,
    )  # fmt: skip
    if by_histogram:
        histogram.count(logits, how, space, rows.ends, CHUNK, chunks)
    tops = 0 if reports is None else reports.top_ids.shape[-1]
    adjusting = adjusting if reports is None else None  # else `report` counts the token
    _threshold[(count,)](
        how, space, reports, rows, None if sampled else adjusting, most, vocabulary, chunks,
        CHUNKS=padded, TOPS=tops, HISTOGRAM=by_histogram, LAST=not sampled and reports is None,
        num_warps=16 if by_histogram else 4, **LAUNCH,
    )  # fmt: skip
    if not sampled:
        return logits
    _collect[grid](
        logits, how, space, rows.positions, rows.ends, vocabulary, chunks,
        CHUNK=CHUNK, enable_fp_fusion=False, **LAUNCH,
    )  # fmt: skip
    _draw[(count,)](
        how, space, rows, adjusting, most, vocabulary, chunks, CHUNKS=padded, SHORT=SHORT, BLOCK=1024,
        LAST=reports is None, num_warps=4, enable_fp_fusion=False, **LAUNCH,
    )  # fmt: skip
    return logits
