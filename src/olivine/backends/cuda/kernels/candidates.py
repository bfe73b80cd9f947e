"""The tokens of a row among which a filter cuts: a bound below which there are none, the list in which they
are collected, and their order. `lists` is a `Workspace` (kernels/sampling.py) or `Reports`."""

from __future__ import annotations

import triton
import triton.language as tl

CHUNK = 512  # logits of a program

LOWEST: tl.constexpr = tl.constexpr(-0x7FFFFFFFFFFFFFFF)  # below any place in the order of the list


@triton.jit
def bound(m, best, k, chunks, CHUNKS: tl.constexpr):
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
    for i in range(4):
        before = tl.zeros((CHUNKS,), kind)
        for j in tl.static_range(3):  # how many come before each of three steps, in one sum
            before += (step < cut + ((j + 1) * 64 >> 2 * i)).to(kind) << (j * width)
        total = tl.sum(before, 0)
        for j in tl.static_range(3):
            cut += tl.where(((total >> (j * width)) & ((1 << width) - 1)) < k, 64 >> 2 * i, 0)
    low = tl.min(tl.where(step <= cut, m, float("inf")), 0)
    return tl.where(chunks >= k, low, float("-inf"))


@triton.jit
def early_limit(V):
    """The tokens whose logits are loaded before it is known that they matter: all, if the logits of the rows
    are few and so in the L2 cache, or none."""
    return tl.where(tl.num_programs(1) <= 8, V, 0)


@triton.jit
def append(lists, row, values, tokens, kept, V):
    """Those of a program that are kept, in any order."""
    number = tl.sum(kept.to(tl.int32), 0)
    if number > 0:
        start = tl.atomic_add(lists.count + row, number, sem="relaxed")
        to = row.to(tl.int64) * V + start + tl.cumsum(kept.to(tl.int32), 0) - 1
        tl.store(lists.found + to, values, mask=kept)
        tl.store(lists.found_ids + to, tokens, mask=kept)


@triton.jit
def load_list(lists, row, V, SIZE: tl.constexpr):
    """Where the list of a row is, and the first SIZE of it, before it is known how many there are."""
    values = lists.found + row.to(tl.int64) * V
    ids = lists.found_ids + row.to(tl.int64) * V
    i = tl.arange(0, SIZE)
    first = tl.load(values + i, mask=i < V, other=0.0)
    return values, ids, first, tl.load(ids + i, mask=i < V, other=0)


@triton.jit
def packed_of(z, token):
    """An int64 in the order of the list: by value, and of equal values the lowest token is the largest."""
    bits = (z + 0.0).to(tl.int32, bitcast=True)  # + 0.0: of −0, which would come below 0
    return ((bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.int64) << 32) | (0x7FFFFFFF - token).to(tl.int64)


@triton.jit
def token_of(packed):
    return 0x7FFFFFFF - (packed & 0x7FFFFFFF).to(tl.int32)


@triton.jit
def value_of(packed):
    ordered = (packed >> 32).to(tl.int32)
    return (ordered ^ ((ordered >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def turned(packed):
    """Its halves exchanged: in the order of tokens, the lowest the largest; and back."""
    return (packed << 32) | ((packed >> 32) & 0xFFFFFFFF)


@triton.jit
def ranks_of(packed):
    """How many of them come before each: a sort would take longer, and Triton seconds to compile it."""
    return tl.sum((packed[:, None] > packed[None, :]).to(tl.int32), 0)
