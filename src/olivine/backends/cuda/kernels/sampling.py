"""From adjusted logits to tokens: steps 4 to 8 of engine/sampling.py, for every row of a batch at once.

1. `_chunk_maxima`: the largest logit of each chunk of the vocabulary, and whether any is not a number.
2. `_threshold`: the largest of a row, the token where that decides, and a bound below which no logit is among
   the top k: the k-th largest of the chunks' maxima, above or at which at least k logits lie.
3. `_collect`: the logits above the bound go to a list; without any filter, noise is added at once instead.
4. `_draw`: the list is filtered exactly (sorted if it is short, else by bisection) and drawn from.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from olivine.backends.cuda.kernels.noise import gumbel, key_of, mass
from olivine.backends.cuda.kernels.pdl import LAUNCH, begin

CHUNK = 512
OPEN, STOPPED, BROKEN, NOTHING = 0, 1, 2, 3  # of a row: goes on, met a stop token, NaN, no legal token
SHORT = 256  # candidates, up to which the list is sorted

_OPEN: tl.constexpr = tl.constexpr(OPEN)
_STOPPED: tl.constexpr = tl.constexpr(STOPPED)
_BROKEN: tl.constexpr = tl.constexpr(BROKEN)
_NOTHING: tl.constexpr = tl.constexpr(NOTHING)


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
    """Intermediate results of the four kernels."""

    maxima: torch.Tensor  # [B, chunks] the largest logit of each chunk of the vocabulary
    places: torch.Tensor  # and its token
    broken: torch.Tensor  # [B, chunks] whether a logit is NaN or infinite
    peak: torch.Tensor  # [B] the largest logit
    bound: torch.Tensor  # [B] below it, no logit is among the top k
    count: torch.Tensor  # [B] candidates in the list
    found: torch.Tensor  # [B, V] the list: logits, less the largest, by temperature
    found_ids: torch.Tensor  # and tokens

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
        )


class RowState(NamedTuple):
    """The state of a chain's rows on the device."""

    tokens: torch.Tensor  # [B] the token just drawn
    ends: torch.Tensor  # [B] OPEN, or why the row has ended
    drawn: torch.Tensor  # [B, most] the tokens drawn since the host last read them
    step: torch.Tensor  # [B] how many those are
    positions: torch.Tensor  # [B] of the forward's inputs; -1: padding, or a row that has ended
    inputs: torch.Tensor  # [B] its tokens
    stops: torch.Tensor  # [B, STOPS] stop tokens
    stop_count: torch.Tensor  # [B]


@triton.jit
def _chunk_maxima(logits, space, V, chunks, CHUNK: tl.constexpr):
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


@triton.jit
def _threshold(how, space, tokens, ends, V, chunks, CHUNKS: tl.constexpr):
    row = tl.program_id(0)
    begin()
    c = tl.arange(0, CHUNKS)
    there = c < chunks
    m = tl.load(space.maxima + row * chunks + c, mask=there, other=float("-inf"))
    best = tl.max(m, 0)
    place = tl.load(space.places + row * chunks + c, mask=there, other=V)
    bad = tl.max(tl.load(space.broken + row * chunks + c, mask=there, other=0), 0)
    end = tl.load(ends + row)
    found = tl.where(bad > 0, _BROKEN, tl.where(best == float("-inf"), _NOTHING, _OPEN))
    tl.store(ends + row, tl.where(end == _OPEN, found, end))
    tl.store(space.peak + row, best)
    tl.store(tokens + row, tl.min(tl.where(m == best, place, V - 1), 0))
    tl.store(space.count + row, 0)
    k = tl.load(how.top_k + row)
    low = float("-inf")
    if (k > 0) & (k <= chunks) & (bad == 0):
        ordered = tl.sort(m, descending=True)
        low = tl.max(tl.where(c == k - 1, ordered, float("-inf")), 0)
    tl.store(space.bound + row, low)


@triton.jit
def _collect(logits, how, space, positions, ends, V, chunks, CHUNK: tl.constexpr):
    row = tl.program_id(1)
    chunk = tl.program_id(0)
    begin()
    t = tl.load(how.temperature + row)
    if (t > 0) & (tl.load(ends + row) == _OPEN):
        at = chunk * CHUNK + tl.arange(0, CHUNK)
        k = tl.load(how.top_k + row)
        filtered = (k > 0) & (k < V)
        filtered = filtered | (tl.load(how.top_p + row) < 1.0)
        filtered = filtered | (tl.load(how.log_min_p + row) > float("-inf"))
        low = tl.load(space.bound + row)
        if (filtered == 0) | (tl.load(space.maxima + row * chunks + chunk) >= low):
            x = tl.load(logits + row.to(tl.int64) * V + at, mask=at < V, other=float("-inf"))
            z = tl.div_rn(x - tl.load(space.peak + row), t)
            if filtered:
                kept = (x >= low) & (x > float("-inf"))
                number = tl.sum(kept.to(tl.int32), 0)
                start = tl.atomic_add(space.count + row, number)
                to = start + tl.cumsum(kept.to(tl.int32), 0) - 1
                tl.store(space.found + row.to(tl.int64) * V + to, z, mask=kept)
                tl.store(space.found_ids + row.to(tl.int64) * V + to, at, mask=kept)
            else:
                position = tl.load(positions + row) + 1
                key = key_of(tl.load(how.seed + row * 2), tl.load(how.seed + row * 2 + 1), position)
                noisy = tl.where(x > float("-inf"), z + gumbel(key, at), float("-inf"))
                best = tl.max(noisy, 0)
                tl.store(space.maxima + row * chunks + chunk, best)
                tl.store(space.places + row * chunks + chunk, tl.min(tl.where(noisy == best, at, V), 0))


@triton.jit
def _ordered(x):
    """An int32 in the order of the floats (−0 comes below 0, but does not occur here)."""
    b = x.to(tl.int32, bitcast=True)
    return b ^ ((b >> 31) & 0x7FFFFFFF)


@triton.jit
def _unordered(b):
    return (b ^ ((b >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def _draw_sorted(values, ids, n, k, p, log_min, key, V, SIZE: tl.constexpr):
    """The token drawn from a list that is short enough to sort."""
    i = tl.arange(0, SIZE)
    z = tl.load(values + i, mask=i < n, other=float("-inf"))
    token = tl.load(ids + i, mask=i < n, other=0x7FFFFFFF)
    # High word: the value; low word: the id, the lowest first.
    packed = (_ordered(z + 0.0).to(tl.int64) << 32) | (0x7FFFFFFF - token).to(tl.int64)
    packed = tl.sort(packed, descending=True)
    z = _unordered((packed >> 32).to(tl.int32))
    token = 0x7FFFFFFF - (packed & 0x7FFFFFFF).to(tl.int32)
    kept = (i < n) & (i < k)
    if p < 1.0:
        w = tl.where(kept, mass(z), 0)
        upto = tl.cumsum(w, 0)
        need = tl.ceil(p * tl.sum(w, 0).to(tl.float64)).to(tl.int64)
        kept = kept & (upto - w < need)
    kept = kept & (z >= log_min)
    noisy = tl.where(kept, z + gumbel(key, token), float("-inf"))
    best = tl.max(noisy, 0)
    return tl.min(tl.where(noisy == best, token, V - 1), 0)


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
def _cut(values, ids, n, need, low, low_id, V, BY_MASS: tl.constexpr, BLOCK: tl.constexpr):
    """The first candidate, by value and then by id, with which `need` is reached."""
    lo = tl.full((), -2139095041, tl.int64)  # the image of −inf
    hi = tl.full((), 1, tl.int64)  # above that of 0, the largest
    while hi - lo > 1:  # the largest value with which it is reached lies in [lo, hi)
        middle = lo + (hi - lo) // 2
        if _total_up_to(values, ids, n, middle.to(tl.int32), V, low, low_id, BY_MASS, BLOCK) >= need:
            lo = middle
        else:
            hi = middle
    cut = lo.to(tl.int32)
    first = tl.full((), -1, tl.int32)
    last = V + 0
    while last - first > 1:
        middle_id = (first + last) // 2
        if _total_up_to(values, ids, n, cut, middle_id, low, low_id, BY_MASS, BLOCK) >= need:
            last = middle_id
        else:
            first = middle_id
    return cut, last


@triton.jit
def _draw_by_bisection(values, ids, n, k, p, log_min, key, V, BLOCK: tl.constexpr):
    """The token drawn from a list of any length."""
    low = tl.full((), -2139095041, tl.int32)
    low_id = V + 0
    if k < n:
        low, low_id = _cut(values, ids, n, k.to(tl.int64), low, low_id, V, False, BLOCK)
    if p < 1.0:
        everything = _total_up_to(values, ids, n, low, low_id, low, low_id, True, BLOCK)
        need = tl.ceil(p * everything.to(tl.float64)).to(tl.int64)
        low, low_id = _cut(values, ids, n, need, low, low_id, V, True, BLOCK)
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
    return chosen


@triton.jit
def _draw(
    how, space, positions, tokens, ends, V, chunks,
    CHUNKS: tl.constexpr, SHORT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    begin()
    if (tl.load(how.temperature + row) > 0) & (tl.load(ends + row) == _OPEN):
        k = tl.load(how.top_k + row)
        k = tl.where((k > 0) & (k < V), k, V)
        p = tl.load(how.top_p + row)
        log_min = tl.load(how.log_min_p + row)
        if (k == V) & (p >= 1.0) & (log_min == float("-inf")):
            c = tl.arange(0, CHUNKS)
            m = tl.load(space.maxima + row * chunks + c, mask=c < chunks, other=float("-inf"))
            place = tl.load(space.places + row * chunks + c, mask=c < chunks, other=V)
            token = tl.min(tl.where(m == tl.max(m, 0), place, V - 1), 0)
            tl.store(tokens + row, token)
        else:
            n = tl.load(space.count + row)
            position = tl.load(positions + row) + 1
            key = key_of(tl.load(how.seed + row * 2), tl.load(how.seed + row * 2 + 1), position)
            v = space.found + row.to(tl.int64) * V
            i = space.found_ids + row.to(tl.int64) * V
            if n <= SHORT:
                tl.store(tokens + row, _draw_sorted(v, i, n, k, p, log_min, key, V, SHORT))
            else:
                tl.store(tokens + row, _draw_by_bisection(v, i, n, k, p, log_min, key, V, BLOCK))


def choose(
    logits: torch.Tensor,
    how: Choices,
    positions: torch.Tensor,
    tokens: torch.Tensor,
    ends: torch.Tensor,
    space: Workspace,
    sampled: bool = True,
) -> None:
    """tokens[b] of logits [B, V], drawn for the position after positions[b]; ends[b] where there is none.

    Without `sampled` every row takes the argmax.
    """
    rows, vocabulary = logits.shape
    chunks = space.maxima.shape[1]
    padded = triton.next_power_of_2(chunks)
    grid = (chunks, rows)
    _chunk_maxima[grid](logits, space, vocabulary, chunks, CHUNK=CHUNK, **LAUNCH)
    _threshold[(rows,)](how, space, tokens, ends, vocabulary, chunks, CHUNKS=padded, **LAUNCH)
    if not sampled:
        return
    _collect[grid](
        logits, how, space, positions, ends, vocabulary, chunks, CHUNK=CHUNK, enable_fp_fusion=False, **LAUNCH
    )
    _draw[(rows,)](
        how, space, positions, tokens, ends, vocabulary, chunks,
        CHUNKS=padded, SHORT=SHORT, BLOCK=2048, num_warps=8, enable_fp_fusion=False, **LAUNCH,
    )  # fmt: skip


@triton.jit
def _advance(rows, drawn_stride, STOPS: tl.constexpr):
    """rows is a `RowState`."""
    row = tl.program_id(0)
    begin()
    end = tl.load(rows.ends + row)
    token = tl.load(rows.tokens + row)
    at = tl.load(rows.step + row)
    s = tl.arange(0, STOPS)
    stop = tl.load(rows.stops + row * STOPS + s, mask=s < tl.load(rows.stop_count + row), other=-1)
    if end == _OPEN:
        if tl.max((stop == token).to(tl.int32), 0) > 0:
            tl.store(rows.ends + row, _STOPPED)
            tl.store(rows.positions + row, -1)
        else:
            tl.store(rows.drawn + row * drawn_stride + at, token)
            tl.store(rows.step + row, at + 1)
            tl.store(rows.inputs + row, token)
            tl.store(rows.positions + row, tl.load(rows.positions + row) + 1)
    else:
        tl.store(rows.positions + row, -1)  # a row that has ended is padding


def advance(rows: RowState) -> None:
    """The drawn token is written down and becomes the row's next input, unless it ends the row."""
    _advance[(rows.tokens.shape[0],)](rows, rows.drawn.stride(0), STOPS=rows.stops.shape[1], **LAUNCH)
