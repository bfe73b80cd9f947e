"""From adjusted logits to tokens: steps 4 to 8 of engine/sampling.py, for every row of a batch at once.

1. `_chunk_maxima`: the largest logit of each chunk of the vocabulary, and whether any is not a number.
2. `_threshold`: the largest of a row, the token where that decides, and a bound below which no logit is among
   the top k: about the k-th largest of the chunks' maxima, so that at least k logits lie above or at it.
3. Where there is no such bound (top-p without top-k, or a k above the number of chunks), a histogram finds
   the bin in which the row is cut (kernels/histogram.py).
4. `_collect`: tokens that top-k and top-p certainly keep are drawn from at once; those that they may keep go
   to a list.
5. `_draw`: the list is filtered exactly (by ranks if it is short, else by bisection) and drawn from.

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
from olivine.backends.cuda.kernels.adjust import AdjustState
from olivine.backends.cuda.kernels.advance import (
    BROKEN,
    NOTHING,
    OPEN,
    RowState,
    advance,
    load_progress,
    load_stops,
)
from olivine.backends.cuda.kernels.histogram import BINS, bin_of, clear, early_limit
from olivine.backends.cuda.kernels.noise import gumbel, key_of, mass
from olivine.backends.cuda.kernels.pdl import LAUNCH, begin, keep_loads_early

if TYPE_CHECKING:
    from olivine.backends.cuda.kernels.reports import Reports

CHUNK = 512
SHORT = 256  # candidates, up to which each token's rank is counted

_OPEN: tl.constexpr = tl.constexpr(OPEN)
_BROKEN: tl.constexpr = tl.constexpr(BROKEN)
_NOTHING: tl.constexpr = tl.constexpr(NOTHING)
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

    maxima: torch.Tensor  # [B, chunks] the largest logit of each chunk of the vocabulary
    places: torch.Tensor  # and its token
    broken: torch.Tensor  # [B, chunks] whether a logit is NaN or infinite
    peak: torch.Tensor  # [B] the largest logit
    bound: torch.Tensor  # [B] below it, no logit is among the top k
    count: torch.Tensor  # [B] candidates in the list
    found: torch.Tensor  # [B, V] the list: logits, less the largest, by temperature
    found_ids: torch.Tensor  # and tokens
    counted: torch.Tensor  # [B] what the histogram counts
    histogram: torch.Tensor  # [B, BINS] int64
    kept_above: torch.Tensor  # [B] tokens in bins before this one are certainly kept by top-k and top-p
    listed_to: torch.Tensor  # [B] those from there to this bin, inclusive, go to the list
    wanted: torch.Tensor  # [B] int64: the mass that top-p keeps of the list; -1: its share of all of it

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
            ints(rows),
            torch.zeros((rows, BINS), dtype=torch.int64, device=device),
            ints(rows),
            ints(rows),
            torch.zeros(rows, dtype=torch.int64, device=device),
        )


@triton.jit
def _chunk_maxima(logits, space, reports, V, chunks, CHUNK: tl.constexpr):
    row = tl.program_id(1)
    chunk = tl.program_id(0)
    begin()
    at = chunk * CHUNK + tl.arange(0, CHUNK)
    x = tl.load(logits + row.to(tl.int64) * V + at, mask=at < V, other=float("-inf"))
    bad = tl.sum((x < float("inf")).to(tl.int32), 0) < CHUNK
    best = tl.max(x, 0)
    tl.store(space.maxima + row * chunks + chunk, best)
    tl.store(space.places + row * chunks + chunk, tl.min(tl.where(x == best, at, V), 0))
    tl.store(space.broken + row * chunks + chunk, bad.to(tl.int32))
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
    CHUNKS: tl.constexpr, TOPS: tl.constexpr, LAST: tl.constexpr,
):  # fmt: skip
    """rows is a `RowState`, adjusting an `AdjustState` or None."""
    row = tl.program_id(0)
    # Before the wait, because no kernel writes them; after a store, the program would wait for each.
    k = tl.load(how.top_k + row)
    top_k = (k > 0) & (k < V)
    top_p = tl.load(how.top_p + row) < 1.0
    sampled = tl.load(how.temperature + row) > 0
    stops = load_stops(rows, row)
    begin()
    c = tl.arange(0, CHUNKS)
    there = c < chunks
    m = tl.load(space.maxima + row * chunks + c, mask=there, other=float("-inf"))
    place = tl.load(space.places + row * chunks + c, mask=there, other=V)
    broken = tl.load(space.broken + row * chunks + c, mask=there, other=0)
    end = tl.load(rows.ends + row)
    progress = load_progress(rows, adjusting, row)
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
    tl.store(space.kept_above + row, tl.where(top_k | top_p, 0, _BINS))
    tl.store(space.listed_to + row, _BINS - 1)
    tl.store(space.wanted + row, -1)
    # As `needs_histogram` says.
    counted = tl.where(top_p, _COUNT_MASS, _COUNT_NOTHING)
    counted = tl.where(top_k, tl.where(k > chunks, _COUNT_TOKENS, _COUNT_NOTHING), counted)
    counted = tl.where((end == _OPEN) & sampled, counted, _COUNT_NOTHING)
    tl.store(space.counted + row, counted)
    if counted != _COUNT_NOTHING:
        clear(space.histogram + row * _BINS, BLOCK=2048)


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
        if (highest >= low) & (bin_of(tl.div_rn(highest - peak, t)) <= listed_to):
            if early == 0:
                x = tl.load(logits + row.to(tl.int64) * V + at, mask=at < V, other=float("-inf"))
            z = tl.div_rn(x - peak, t)
            s = bin_of(z)
            if kept_above < _BINS:
                listed = (x >= low) & (x > float("-inf")) & (s >= kept_above) & (s <= listed_to)
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
def _ordered(x):
    """An int32 in the order of the floats (−0 comes below 0, but does not occur here)."""
    b = x.to(tl.int32, bitcast=True)
    return b ^ ((b >> 31) & 0x7FFFFFFF)


@triton.jit
def _unordered(b):
    return (b ^ ((b >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def _packed(z, token):
    """An int64 in the order of the list: by value, and of equal values the lowest token is the largest."""
    return (_ordered(z + 0.0).to(tl.int64) << 32) | (0x7FFFFFFF - token).to(tl.int64)


@triton.jit
def _draw_ranked(values, ids, n, k, p, wanted, log_min, key, V, SIZE: tl.constexpr, PIECE: tl.constexpr):
    """The token drawn from a list of up to SIZE tokens, and its z with noise.

    Each token's rank, and the mass before it, are sums over the tokens that come before it: of integers, so
    they are those of a sorted list. (To compile a sort takes Triton seconds.)
    """
    i = tl.arange(0, SIZE)
    z = tl.load(values + i, mask=i < n, other=float("-inf"))
    token = tl.load(ids + i, mask=i < n, other=0x7FFFFFFF)
    own = _packed(z, token)
    rank = tl.zeros((SIZE,), tl.int32)
    before = tl.zeros((SIZE,), tl.int64)
    for start in range(0, n, PIECE):
        j = start + tl.arange(0, PIECE)
        other = tl.load(values + j, mask=j < n, other=float("-inf"))
        packed = _packed(other, tl.load(ids + j, mask=j < n, other=0x7FFFFFFF))
        comes_first = (packed[None, :] > own[:, None]) & (j < n)[None, :]
        rank += tl.sum(comes_first.to(tl.int32), 1)
        before += tl.sum(tl.where(comes_first, mass(other)[None, :], 0), 1)
    kept = (i < n) & (rank < k)
    if p < 1.0:
        share = tl.ceil(p * tl.sum(tl.where(kept, mass(z), 0), 0).to(tl.float64)).to(tl.int64)
        kept = kept & (before < tl.where(wanted < 0, share, wanted))
    kept = kept & (z >= log_min)
    noisy = tl.where(kept, z + gumbel(key, token), float("-inf"))
    best = tl.max(noisy, 0)
    return best, tl.min(tl.where(noisy == best, token, V - 1), 0)


@triton.jit
def _total_up_to(values, ids, n, cut, cut_id, low, low_id, BY_MASS: tl.constexpr, BLOCK: tl.constexpr):
    """The number (or the mass) of candidates that come no later than (cut, cut_id) and (low, low_id)."""
    found = tl.zeros((BLOCK,), tl.int64)
    for start in range(0, n, BLOCK):
        i = start + tl.arange(0, BLOCK)
        there = i < n
        z = tl.load(values + i, mask=there, other=float("-inf"))
        token = tl.load(ids + i, mask=there, other=0)
        o = _ordered(z + 0.0)
        inside = there & ((o > cut) | ((o == cut) & (token <= cut_id)))
        inside = inside & ((o > low) | ((o == low) & (token <= low_id)))
        if BY_MASS:
            found += tl.where(inside, mass(z), 0)
        else:
            found += inside.to(tl.int64)
    return tl.sum(found, 0)


@triton.jit
def _range_of_values(values, n, BLOCK: tl.constexpr):
    lowest = tl.full((BLOCK,), 0x7FFFFFFF, tl.int32)
    highest = tl.full((BLOCK,), -0x80000000, tl.int32)
    for start in range(0, n, BLOCK):
        i = start + tl.arange(0, BLOCK)
        o = _ordered(tl.load(values + i, mask=i < n, other=0.0) + 0.0)
        lowest = tl.where(i < n, tl.minimum(lowest, o), lowest)
        highest = tl.where(i < n, tl.maximum(highest, o), highest)
    return tl.min(lowest, 0), tl.max(highest, 0)


@triton.jit
def _range_of_ids(values, ids, n, value, V, BLOCK: tl.constexpr):
    """Of the candidates with a value."""
    lowest = tl.zeros((BLOCK,), tl.int32) + V
    highest = tl.full((BLOCK,), -1, tl.int32)
    for start in range(0, n, BLOCK):
        i = start + tl.arange(0, BLOCK)
        o = _ordered(tl.load(values + i, mask=i < n, other=0.0) + 0.0)
        token = tl.load(ids + i, mask=i < n, other=0)
        there = (i < n) & (o == value)
        lowest = tl.where(there, tl.minimum(lowest, token), lowest)
        highest = tl.where(there, tl.maximum(highest, token), highest)
    return tl.min(lowest, 0), tl.max(highest, 0)


@triton.jit
def _cut(values, ids, n, need, low, low_id, V, BY_MASS: tl.constexpr, BLOCK: tl.constexpr):
    """The first candidate, by value and then by id, with which `need` is reached."""
    lowest, highest = _range_of_values(values, n, BLOCK)
    lo = lowest.to(tl.int64)
    hi = highest.to(tl.int64) + 1
    while hi - lo > 1:  # the largest value with which it is reached lies in [lo, hi)
        middle = lo + (hi - lo) // 2
        if _total_up_to(values, ids, n, middle.to(tl.int32), V, low, low_id, BY_MASS, BLOCK) >= need:
            lo = middle
        else:
            hi = middle
    cut = lo.to(tl.int32)
    first, last = _range_of_ids(values, ids, n, cut, V, BLOCK)
    first -= 1
    while last - first > 1:
        middle_id = (first + last) // 2
        if _total_up_to(values, ids, n, cut, middle_id, low, low_id, BY_MASS, BLOCK) >= need:
            last = middle_id
        else:
            first = middle_id
    return cut, last


@triton.jit
def _draw_by_bisection(values, ids, n, k, p, wanted, log_min, key, V, BLOCK: tl.constexpr):
    """The token drawn from a list of any length, and its z with noise."""
    low = tl.full((), -2139095041, tl.int32)
    low_id = V + 0
    if k < n:
        low, low_id = _cut(values, ids, n, k.to(tl.int64), low, low_id, V, False, BLOCK)
    if p < 1.0:
        if wanted < 0:
            everything = _total_up_to(values, ids, n, low, low_id, low, low_id, True, BLOCK)
            wanted = tl.ceil(p * everything.to(tl.float64)).to(tl.int64)
        low, low_id = _cut(values, ids, n, wanted, low, low_id, V, True, BLOCK)
    best = float("-inf")
    chosen = V + 0
    for start in range(0, n, BLOCK):
        i = start + tl.arange(0, BLOCK)
        z = tl.load(values + i, mask=i < n, other=float("-inf"))
        token = tl.load(ids + i, mask=i < n, other=0)
        o = _ordered(z + 0.0)
        kept = (i < n) & ((o > low) | ((o == low) & (token <= low_id))) & (z >= log_min)
        noisy = tl.where(kept, z + gumbel(key, token), float("-inf"))
        top = tl.max(noisy, 0)
        place = tl.min(tl.where(noisy == top, token, V), 0)
        chosen = tl.where(top > best, place, tl.where(top == best, tl.minimum(chosen, place), chosen))
        best = tl.maximum(best, top)
    return best, chosen


@triton.jit
def _draw(
    how, space, rows, adjusting, most, V, chunks,
    CHUNKS: tl.constexpr, SHORT: tl.constexpr, BLOCK: tl.constexpr, LAST: tl.constexpr,
):  # fmt: skip
    """rows is a `RowState`, adjusting an `AdjustState` or None."""
    row = tl.program_id(0)
    stops = load_stops(rows, row)
    begin()
    end = tl.load(rows.ends + row)
    progress = load_progress(rows, adjusting, row)
    token = tl.load(rows.tokens + row)
    if (tl.load(how.temperature + row) > 0) & (end == _OPEN):
        kept_above = tl.load(space.kept_above + row)
        best = float("-inf")
        token = V + 0
        if kept_above > 0:
            c = tl.arange(0, CHUNKS)
            m = tl.load(space.maxima + row * chunks + c, mask=c < chunks, other=float("-inf"))
            place = tl.load(space.places + row * chunks + c, mask=c < chunks, other=V)
            best = tl.max(m, 0)
            token = tl.min(tl.where(m == best, place, V), 0)
        if kept_above < _BINS:
            k = tl.load(how.top_k + row)
            k = tl.where((k > 0) & (k < V), k, V)
            p = tl.load(how.top_p + row)
            log_min = tl.load(how.log_min_p + row)
            wanted = tl.load(space.wanted + row)
            n = tl.load(space.count + row)
            position = tl.load(rows.positions + row) + 1
            key = key_of(tl.load(how.seed + row * 2), tl.load(how.seed + row * 2 + 1), position)
            v = space.found + row.to(tl.int64) * V
            i = space.found_ids + row.to(tl.int64) * V
            if n <= SHORT:
                noisy, chosen = _draw_ranked(v, i, n, k, p, wanted, log_min, key, V, SHORT, 32)
            else:
                noisy, chosen = _draw_by_bisection(v, i, n, k, p, wanted, log_min, key, V, BLOCK)
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
    adjusting: AdjustState | None = None,
) -> None:
    """Draws a token of each row of logits [B, V], for the position after the row's, and writes it down.

    Without `sampled` every row takes the argmax. Without `by_histogram`, rows that need one are slow.
    Of `reports`, what needs all logits is computed on the way; the rest is left to `report`, which also
    writes the token down. Where logits are adjusted, it is counted.
    """
    count, vocabulary = logits.shape
    chunks, most = space.maxima.shape[1], rows.drawn.stride(0)
    padded = triton.next_power_of_2(chunks)
    grid = (chunks, count)
    _chunk_maxima[grid](logits, space, reports, vocabulary, chunks, CHUNK=CHUNK, **LAUNCH)
    tops = 0 if reports is None else reports.top_ids.shape[-1]
    adjusting = adjusting if reports is None else None  # else `report` counts the token
    _threshold[(count,)](
        how, space, reports, rows, None if sampled else adjusting, most, vocabulary, chunks,
        CHUNKS=padded, TOPS=tops, LAST=not sampled and reports is None, **LAUNCH,
    )  # fmt: skip
    if not sampled:
        return
    if by_histogram:
        histogram.cut(logits, how, space, CHUNK, chunks)
    _collect[grid](
        logits, how, space, rows.positions, rows.ends, vocabulary, chunks,
        CHUNK=CHUNK, enable_fp_fusion=False, **LAUNCH,
    )  # fmt: skip
    _draw[(count,)](
        how, space, rows, adjusting, most, vocabulary, chunks, CHUNKS=padded, SHORT=SHORT, BLOCK=2048,
        LAST=reports is None, num_warps=8, enable_fp_fusion=False, **LAUNCH,
    )  # fmt: skip
