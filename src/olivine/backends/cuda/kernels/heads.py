"""What happens to queries, keys and values between projection and attention: norm, rotation, cache."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from olivine.backends.cuda.kernels.launches import LAUNCH, begin


@dataclass(frozen=True)
class Turn:
    """A rotation's frequencies on the device."""

    frequencies: torch.Tensor  # [d/2] float32
    magnitude: float
    interleaved: bool


@dataclass(frozen=True)
class HeadNorm:
    """The weight of a norm over each head."""

    weight: torch.Tensor
    eps: float
    offset: float


@triton.jit
def _sum(source, at, there, plane, TERMS: tl.constexpr):
    y = tl.load(source + at, mask=there, other=0.0).to(tl.float32)
    for term in tl.static_range(1, TERMS):
        y += tl.load(source + term * plane + at, mask=there, other=0.0)
    return y


@triton.jit
def _turned(
    source, norm, frequencies, position, at, there, eps, offset, magnitude,
    plane, TERMS: tl.constexpr,
    D: tl.constexpr, NORM: tl.constexpr, ROPE: tl.constexpr, INTERLEAVED: tl.constexpr,
):  # fmt: skip
    """One head, summed up from its terms, normalized and rotated."""
    # Each column also needs the one that it is turned with: it is loaded again rather than moved.
    if INTERLEAVED:
        other = at ^ 1
        pair = at // 2
        second = at % 2 == 1
    else:
        other = tl.where(at < D // 2, at + D // 2, at - D // 2)
        pair = at % (D // 2)
        second = at >= D // 2
    y = _sum(source, at, there, plane, TERMS)
    scale = 1.0
    if NORM:
        scale = 1.0 / tl.sqrt(tl.sum(y * y, axis=0) / D + eps)
        y = y * scale * (tl.load(norm + at, mask=there, other=0.0).to(tl.float32) + offset)
    if ROPE:
        z = _sum(source, other, there, plane, TERMS)
        if NORM:
            z = z * scale * (tl.load(norm + other, mask=there, other=0.0).to(tl.float32) + offset)
        angle = position.to(tl.float32) * tl.load(frequencies + pair, mask=there, other=0.0)
        cos = tl.cos(angle) * magnitude
        sin = tl.sin(angle) * magnitude
        y = y * cos + tl.where(second, z, -z) * sin
    return y


@triton.jit
def _heads(
    x, out, norm, frequencies, positions, x_stride, out_stride, eps, offset, magnitude,
    D: tl.constexpr, BLOCK: tl.constexpr, NORM: tl.constexpr, ROPE: tl.constexpr, INTERLEAVED: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    head = tl.program_id(1)
    at = tl.arange(0, BLOCK)
    there = at < D
    begin()
    y = _turned(
        x + row.to(tl.int64) * x_stride + head * D, norm, frequencies, tl.load(positions + row), at, there,
        eps, offset, magnitude, 0, 1, D, NORM, ROPE, INTERLEAVED,
    )  # fmt: skip
    tl.store(out + row.to(tl.int64) * out_stride + head * D + at, y.to(out.dtype.element_ty), mask=there)


@triton.jit
def _store(
    q, k, v, out, keys, values, q_norm, k_norm, frequencies, positions, sequences, table,
    q_stride, k_stride, v_stride, plane, table_stride, q_eps, k_eps, q_offset, k_offset, magnitude,
    TERMS: tl.constexpr, HEADS: tl.constexpr, GROUPS: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr,
    Q_NORM: tl.constexpr,
    K_NORM: tl.constexpr, ROPE: tl.constexpr, INTERLEAVED: tl.constexpr, PAGE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    head = tl.program_id(1)
    at = tl.arange(0, BLOCK)
    there = at < D
    begin()
    position = tl.load(positions + row)
    wide = row.to(tl.int64)
    if head < HEADS:
        y = _turned(
            q + wide * q_stride + head * D, q_norm, frequencies, position, at, there, q_eps, q_offset,
            magnitude, plane, TERMS, D, Q_NORM, ROPE, INTERLEAVED,
        )  # fmt: skip
        tl.store(out + wide * (HEADS * D) + head * D + at, y.to(out.dtype.element_ty), mask=there)
    elif position >= 0:
        sequence = tl.load(sequences + row)
        page = tl.load(table + sequence.to(tl.int64) * table_stride + position // PAGE).to(tl.int64)
        slot = (page * PAGE + position % PAGE) * GROUPS
        if head < HEADS + GROUPS:
            group = head - HEADS
            y = _turned(
                k + wide * k_stride + group * D, k_norm, frequencies, position, at, there, k_eps, k_offset,
                magnitude, plane, TERMS, D, K_NORM, ROPE, INTERLEAVED,
            )  # fmt: skip
            tl.store(keys + (slot + group) * D + at, y.to(keys.dtype.element_ty), mask=there)
        else:
            group = head - HEADS - GROUPS
            y = _sum(v + wide * v_stride + group * D, at, there, plane, TERMS)
            tl.store(values + (slot + group) * D + at, y.to(values.dtype.element_ty), mask=there)


@dataclass(frozen=True)
class Chain:
    """What happens to heads between their projection and their use."""

    norm: HeadNorm | None
    turn: Turn | None


def heads(x: torch.Tensor, out: torch.Tensor, head_dim: int, positions: torch.Tensor, chain: Chain) -> None:
    """Norm and rotation of each head of x, into `out` [T, heads · d]."""
    rows, width = x.shape
    if rows == 0:
        return
    norm, turn = chain.norm, chain.turn
    _heads[(rows, width // head_dim)](
        x,
        out,
        x if norm is None else norm.weight,
        x if turn is None else turn.frequencies,
        positions,
        x.stride(0),
        out.stride(0),
        0.0 if norm is None else norm.eps,
        0.0 if norm is None else norm.offset,
        1.0 if turn is None else turn.magnitude,
        D=head_dim,
        BLOCK=triton.next_power_of_2(head_dim),
        NORM=norm is not None,
        ROPE=turn is not None,
        INTERLEAVED=turn is not None and turn.interleaved,
        num_warps=1,
        **LAUNCH,
    )


def store(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    positions: torch.Tensor,
    sequences: torch.Tensor,
    table: torch.Tensor,
    q_chain: Chain,
    k_chain: Chain,
) -> None:
    """Queries into `out` [T, H · d], keys and values into their pages. Both chains have the same rotation.

    q, k and v are [T, ·], or columns of one [splits, T, ·] whose terms are to be added up.
    """
    rows = q.shape[-2]
    terms = q.shape[0] if q.ndim == 3 else 1
    assert q.ndim == k.ndim == v.ndim
    if rows == 0:
        return
    _, page, groups, head_dim = keys.shape
    count = q.shape[-1] // head_dim
    q_norm, k_norm, turn = q_chain.norm, k_chain.norm, k_chain.turn
    _store[(rows, count + 2 * groups)](
        q, k, v, out, keys, values,
        q if q_norm is None else q_norm.weight, k if k_norm is None else k_norm.weight,
        q if turn is None else turn.frequencies, positions, sequences, table,
        q.stride(-2), k.stride(-2), v.stride(-2), q.stride(0) if terms > 1 else 0, table.stride(0),
        0.0 if q_norm is None else q_norm.eps, 0.0 if k_norm is None else k_norm.eps,
        0.0 if q_norm is None else q_norm.offset, 0.0 if k_norm is None else k_norm.offset,
        1.0 if turn is None else turn.magnitude,
        TERMS=terms, HEADS=count, GROUPS=groups, D=head_dim, BLOCK=triton.next_power_of_2(head_dim),
        Q_NORM=q_norm is not None, K_NORM=k_norm is not None, ROPE=turn is not None,
        INTERLEAVED=turn is not None and turn.interleaved, PAGE=page, num_warps=1, **LAUNCH,
    )  # fmt: skip
