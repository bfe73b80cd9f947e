"""Between projection and attention: norm and rotary embedding of heads, and the KV cache write."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from olivine.backends.cuda.kernels.activations import limited
from olivine.backends.cuda.kernels.norm import NormWeight, exact_inv_rms, norm_weight
from olivine.backends.cuda.kernels.paged import PagedCache, RowPlaces, store_cached
from olivine.backends.cuda.kernels.pdl import LAUNCH, begin, release_stored, wait


@dataclass(frozen=True)
class Rotary:
    """A rotary embedding: its frequencies on the device, and how it pairs columns."""

    frequencies: torch.Tensor  # [n] float32, of the pairs in the first 2n columns of a head
    magnitude: float  # by which cosines and sines are multiplied
    interleaved: bool  # pairs are neighboring columns; otherwise column i and i + n


@dataclass(frozen=True)
class HeadTransform:
    """What each head goes through between its projection and its use: a norm, then a rotary embedding."""

    norm: NormWeight | None
    rotary: Rotary | None

    def pairing(self, head_dim: int) -> dict[str, int]:
        """What kernels have as constants: how many columns of a head are rotated, and in which pairs."""
        if self.rotary is None:
            return {"ROTATED": head_dim, "INTERLEAVED": False}
        return {"ROTATED": 2 * len(self.rotary.frequencies), "INTERLEAVED": self.rotary.interleaved}


@dataclass(frozen=True)
class QkvTransform:
    """The transforms of queries, keys and values; queries and keys have the same rotary embedding."""

    q: HeadTransform
    k: HeadTransform
    v_norm: NormWeight | None
    angles: torch.Tensor | None  # of the rotary embedding, as `rotary_angles` gives them

    @property
    def norms(self) -> tuple[NormWeight | None, NormWeight | None, NormWeight | None]:
        return self.q.norm, self.k.norm, self.v_norm


class Angles(NamedTuple):
    """What `store_angles` reads and writes, of several rotary embeddings."""

    positions: torch.Tensor  # [T]
    frequencies: tuple[torch.Tensor, ...]
    magnitudes: tuple[float, ...]
    outs: tuple[torch.Tensor, ...]  # [T, 2n]: cosines and sines

    @staticmethod
    def of(positions: torch.Tensor, rotaries: Sequence[Rotary]) -> Angles:
        halves = [len(rotary.frequencies) for rotary in rotaries]
        outs = tuple(torch.empty((len(positions), 2 * half), device=positions.device) for half in halves)
        frequencies = tuple(rotary.frequencies for rotary in rotaries)
        return Angles(positions, frequencies, tuple(rotary.magnitude for rotary in rotaries), outs)

    def sizes(self) -> tuple[tuple[int, ...], int]:
        """What kernels have as constants: the frequencies of each, and a block for the most of them."""
        halves = tuple(len(frequencies) for frequencies in self.frequencies)
        return halves, triton.next_power_of_2(max(halves, default=1))


@triton.jit
def store_angles(angles, row, HALVES: tl.constexpr, BLOCK: tl.constexpr):
    """Of a row, for rotary embeddings with so many frequencies each; waits after these are loaded."""
    at = tl.arange(0, BLOCK)
    loaded = ()
    for i in tl.static_range(len(HALVES)):
        loaded = loaded + (tl.load(angles.frequencies[i] + at, mask=at < HALVES[i], other=0.0),)
    wait()
    position = tl.load(angles.positions + row).to(tl.float32)
    for i in tl.static_range(len(HALVES)):
        angle = position * loaded[i]
        to = angles.outs[i] + row * (2 * HALVES[i]) + at
        tl.store(to, tl.cos(angle) * angles.magnitudes[i], mask=at < HALVES[i])
        tl.store(to + HALVES[i], tl.sin(angle) * angles.magnitudes[i], mask=at < HALVES[i])


@triton.jit
def _rotary_angles(angles, HALVES: tl.constexpr, BLOCK: tl.constexpr):
    store_angles(angles, tl.program_id(0).to(tl.int64), HALVES, BLOCK)
    release_stored()


def rotary_angles(positions: torch.Tensor, rotaries: Sequence[Rotary]) -> tuple[torch.Tensor, ...]:
    """Cosines and sines of each row, [T, 2n], for each rotary embedding: all its layers share them. An
    embedding makes them on its way (kernels/embed.py); this is for what begins without one."""
    angles = Angles.of(positions, rotaries)
    if rotaries:
        halves, block = angles.sizes()
        _rotary_angles[(len(positions),)](
            angles, HALVES=halves, BLOCK=block, num_warps=max(1, min(8, block // 32)), **LAUNCH
        )
    return angles.outs


@triton.jit
def rotary_partner(at, D: tl.constexpr, ROTATED: tl.constexpr, INTERLEAVED: tl.constexpr):
    """The column that each is rotated with; itself, where it is none of the first ROTATED."""
    if INTERLEAVED:
        other = at ^ 1
    else:
        other = tl.where(at < ROTATED // 2, at + ROTATED // 2, at - ROTATED // 2)
    if ROTATED < D:
        other = tl.where(at < ROTATED, other, at)
    return other


@triton.jit
def cos_sin(angles, at, there, D: tl.constexpr, ROTATED: tl.constexpr, INTERLEAVED: tl.constexpr):
    """The cosine of each column, and the signed sine by which its partner is multiplied: 1 and 0 of columns
    that are not rotated."""
    if INTERLEAVED:
        pair = at // 2
        second = at % 2 == 1
    else:
        pair = at % (ROTATED // 2)
        second = at >= ROTATED // 2
    if ROTATED < D:
        there = there & (at < ROTATED)
    cos = tl.load(angles + pair, mask=there, other=1.0)
    sin = tl.load(angles + ROTATED // 2 + pair, mask=there, other=0.0)
    return cos, tl.where(second, sin, -sin)


@triton.jit
def norm_rotate(y, z, w, z_w, cos, sin, eps, D: tl.constexpr):
    """Heads y (the last axis), normalized by w and rotated; z and z_w are those of the partners. Without a
    norm w is None, without a rotary embedding cos is."""
    if w is not None:
        scale = exact_inv_rms(y, None, D, eps)
        y = y * scale * w
        z = z * scale * z_w
    if cos is not None:
        y = y * cos + z * sin
    return y


@triton.jit
def norm_rotate_pairs(pairs, norm, w, rotation, D: tl.constexpr):
    """The same of both columns of each pair: w are their weights, if there is a norm, and the rotation is
    cosines and sines, or None."""
    y, z = pairs
    if norm is not None:
        scale = exact_inv_rms(y, z, D, norm.eps)
        y = y * scale * w[0]
        z = z * scale * w[1]
    if rotation is not None:
        cos, sin = rotation
        y, z = y * cos - z * sin, z * cos + y * sin
    return y, z


@triton.jit
def _transform(
    source, norm, angles, row, at, there, limits,
    D: tl.constexpr, ROTATED: tl.constexpr, INTERLEAVED: tl.constexpr,
):  # fmt: skip
    """One head of each row, loaded, limited, normalized and rotated; `source` points to the rows."""
    other = rotary_partner(at, D, ROTATED, INTERLEAVED)
    y = tl.load(source + at, mask=there, other=0.0).to(tl.float32)
    z = tl.load(source + other, mask=there, other=0.0).to(tl.float32)
    if limits is not None:  # which need not have 0 between them
        y = tl.where(there, limited(y, limits), 0.0)
        z = tl.where(there, limited(z, limits), 0.0)
    w = None
    z_w = None
    eps = 0.0
    if norm is not None:
        w = norm_weight(norm, at, at < D)
        z_w = norm_weight(norm, other, at < D)
        eps = norm.eps
    cos = None
    sin = None
    if angles is not None:
        cos, sin = cos_sin(angles + row * ROTATED, at, there, D, ROTATED, INTERLEAVED)
    return norm_rotate(y, z, w, z_w, cos, sin, eps, D)


@triton.jit(do_not_specialize=["count"])
def _transform_heads(
    x, out, norm, angles, limits, count, x_stride, out_stride,
    ROWS: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr, ROTATED: tl.constexpr,
    INTERLEAVED: tl.constexpr,
):  # fmt: skip
    """norm is a `NormWeight` or None; angles and limits may be None."""
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS))[:, None]
    head = tl.program_id(1)
    at = tl.arange(0, BLOCK)[None, :]
    there = (row < count) & (at < D)
    wide = row.to(tl.int64)
    begin()
    source = x + wide * x_stride + head * D
    y = _transform(source, norm, angles, wide, at, there, limits, D, ROTATED, INTERLEAVED)
    tl.store(out + wide * out_stride + head * D + at, y.to(out.dtype.element_ty), mask=there)


@triton.jit(do_not_specialize=["count"])
def _store_kv(
    qkv, strides, norms, angles, out, cache, places, count,
    ROWS: tl.constexpr, HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr,
    ROTATED: tl.constexpr, INTERLEAVED: tl.constexpr, PAGE: tl.constexpr,
):  # fmt: skip
    """qkv, strides and norms are triples (`NormWeight` or None); cache is `CachePointers`, places are
    `RowPlaces`."""
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS))[:, None]
    head = tl.program_id(1)
    at = tl.arange(0, BLOCK)[None, :]
    there = (row < count) & (at < D)
    wide = row.to(tl.int64)
    begin()
    if head < HEADS:
        source = qkv[0] + wide * strides[0] + head * D
        y = _transform(source, norms[0], angles, wide, at, there, None, D, ROTATED, INTERLEAVED)
        tl.store(out + wide * (HEADS * D) + head * D + at, y.to(out.dtype.element_ty), mask=there)
    else:
        position = tl.load(places.positions + row, mask=row < count, other=-1)
        there = there & (position >= 0)
        sequence = tl.load(places.sequences + row, mask=position >= 0, other=0).to(tl.int64)
        page_at = cache.table + sequence * cache.table_stride + position // PAGE
        page = tl.load(page_at, mask=position >= 0, other=0)
        slot = (page.to(tl.int64) * PAGE + position % PAGE) * KV_HEADS
        if head < HEADS + KV_HEADS:
            group = head - HEADS
            source = qkv[1] + wide * strides[1] + group * D
            y = _transform(source, norms[1], angles, wide, at, there, None, D, ROTATED, INTERLEAVED)
            store_cached(cache.k, cache.k_scales, slot + group, y, position >= 0, D)
        else:
            group = head - HEADS - KV_HEADS
            source = qkv[2] + wide * strides[2] + group * D
            y = _transform(source, norms[2], None, wide, at, there, None, D, ROTATED, INTERLEAVED)
            store_cached(cache.v, cache.v_scales, slot + group, y, position >= 0, D)


def _rows_per_program(rows: int, head_dim: int) -> dict[str, int]:
    """Rows that a program takes, and its warps: with one row each, a prompt would have too many programs."""
    count = 8 if rows >= 64 else 1
    return {"ROWS": count, "num_warps": max(1, count * triton.next_power_of_2(head_dim) // 256)}


def transform_heads(
    x: torch.Tensor,
    out: torch.Tensor,
    head_dim: int,
    transform: HeadTransform,
    angles: torch.Tensor | None,
    limits: torch.Tensor | None = None,
) -> None:
    """Limits, norm and rotary embedding of each head of x, into `out` [T, heads · d]."""
    rows, width = x.shape
    if rows == 0:
        return
    shape = _rows_per_program(rows, head_dim)
    _transform_heads[(-(-rows // shape["ROWS"]), width // head_dim)](
        x, out, transform.norm, angles, limits, rows, x.stride(0), out.stride(0),
        D=head_dim, BLOCK=triton.next_power_of_2(head_dim), **transform.pairing(head_dim),
        **shape, enable_fp_fusion=False, **LAUNCH,
    )  # fmt: skip


def store_kv(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    queries: torch.Tensor,
    cache: PagedCache,
    places: RowPlaces,
    transform: QkvTransform,
) -> None:
    """Transforms the projections q, k and v: queries into `queries` [T, H · d], keys and values into their
    pages. Padding rows store nothing."""
    rows = q.shape[0]
    if rows == 0:
        return
    _, page, kv_heads, head_dim = cache.k.shape
    heads = q.shape[-1] // head_dim
    shape = _rows_per_program(rows, head_dim)
    _store_kv[(-(-rows // shape["ROWS"]), heads + 2 * kv_heads)](
        (q, k, v), (q.stride(0), k.stride(0), v.stride(0)), transform.norms, transform.angles, queries,
        cache.pointers(), places, rows,
        HEADS=heads, KV_HEADS=kv_heads, D=head_dim, BLOCK=triton.next_power_of_2(head_dim),
        **transform.k.pairing(head_dim), PAGE=page, **shape, enable_fp_fusion=False, **LAUNCH,
    )  # fmt: skip
