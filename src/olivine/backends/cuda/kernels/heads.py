"""What happens to queries, keys and values between projection and attention: norm, rotation, cache."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from olivine.backends.cuda.kernels.launches import LAUNCH, begin
from olivine.backends.cuda.kernels.norm import NormWeight, factor_of


@dataclass(frozen=True)
class Turn:
    """A rotation's frequencies on the device."""

    frequencies: torch.Tensor  # [d/2] float32
    magnitude: float
    interleaved: bool


@dataclass(frozen=True)
class Chain:
    """What happens to heads between their projection and their use."""

    norm: NormWeight | None
    turn: Turn | None


@triton.jit
def _angles(positions, frequencies, out, magnitude, HALF: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    begin()
    angle = tl.load(positions + row).to(tl.float32) * tl.load(frequencies + at, mask=at < HALF, other=0.0)
    tl.store(out + row * (2 * HALF) + at, tl.cos(angle) * magnitude, mask=at < HALF)
    tl.store(out + row * (2 * HALF) + HALF + at, tl.sin(angle) * magnitude, mask=at < HALF)


def angles(positions: torch.Tensor, turn: Turn) -> torch.Tensor:
    """Cosines and sines of each row's rotation, [T, d]: all layers that turn alike share them."""
    half = len(turn.frequencies)
    out = torch.empty((len(positions), 2 * half), device=positions.device)
    _angles[(len(positions),)](
        positions, turn.frequencies, out, turn.magnitude,
        HALF=half, BLOCK=triton.next_power_of_2(half), num_warps=1, **LAUNCH,
    )  # fmt: skip
    return out


@triton.jit
def partner(at, D: tl.constexpr, INTERLEAVED: tl.constexpr):
    """The column that each is turned with."""
    if INTERLEAVED:
        other = at ^ 1
    else:
        other = tl.where(at < D // 2, at + D // 2, at - D // 2)
    return other


@triton.jit
def rotation(angles, at, there, D: tl.constexpr, INTERLEAVED: tl.constexpr):
    """Cosine of a column's angle, and the sine by which its partner is multiplied."""
    if INTERLEAVED:
        pair = at // 2
        second = at % 2 == 1
    else:
        pair = at % (D // 2)
        second = at >= D // 2
    cos = tl.load(angles + pair, mask=there, other=0.0)
    sin = tl.load(angles + D // 2 + pair, mask=there, other=0.0)
    return cos, tl.where(second, sin, -sin)


@triton.jit
def turned(
    y, z, w, z_w, cos, sin, eps, D: tl.constexpr, NORM: tl.constexpr, ROPE: tl.constexpr
):  # fmt: skip
    """Heads y (the last axis), normalized by w and rotated; z and z_w are those of the partners."""
    if NORM:
        scale = factor_of(y, D, eps)
        y = y * scale * w
        z = z * scale * z_w
    if ROPE:
        y = y * cos + z * sin
    return y


@triton.jit
def _turned_heads(
    source, norm, angles, at, there, eps, offset,
    D: tl.constexpr, NORM: tl.constexpr, ROPE: tl.constexpr, INTERLEAVED: tl.constexpr,
):  # fmt: skip
    """A head of each row, from where it lies to how it is used; `source` and `angles` point to the rows."""
    other = partner(at, D, INTERLEAVED)
    y = tl.load(source + at, mask=there, other=0.0).to(tl.float32)
    z = tl.load(source + other, mask=there, other=0.0).to(tl.float32)
    w = y
    z_w = z
    if NORM:
        w = tl.load(norm + at, mask=at < D, other=0.0).to(tl.float32) + offset
        z_w = tl.load(norm + other, mask=at < D, other=0.0).to(tl.float32) + offset
    cos = y
    sin = z
    if ROPE:
        cos, sin = rotation(angles, at, there, D, INTERLEAVED)
    return turned(y, z, w, z_w, cos, sin, eps, D, NORM, ROPE)


@triton.jit(do_not_specialize=["count"])
def _heads(
    x, out, norm, angles, count, x_stride, out_stride, eps, offset,
    ROWS: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr, NORM: tl.constexpr, ROPE: tl.constexpr,
    INTERLEAVED: tl.constexpr,
):  # fmt: skip
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS))[:, None]
    head = tl.program_id(1)
    at = tl.arange(0, BLOCK)[None, :]
    there = (row < count) & (at < D)
    wide = row.to(tl.int64)
    begin()
    y = _turned_heads(
        x + wide * x_stride + head * D, norm, angles + wide * D, at, there, eps, offset,
        D, NORM, ROPE, INTERLEAVED,
    )  # fmt: skip
    tl.store(out + wide * out_stride + head * D + at, y.to(out.dtype.element_ty), mask=there)


@triton.jit(do_not_specialize=["count"])
def _store(
    q, k, v, out, keys, values, q_norm, k_norm, v_norm, angles, positions, sequences, table,
    count, q_stride, k_stride, v_stride, table_stride, q_eps, k_eps, v_eps, q_offset, k_offset, v_offset,
    ROWS: tl.constexpr, HEADS: tl.constexpr, GROUPS: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr,
    Q_NORM: tl.constexpr, K_NORM: tl.constexpr, V_NORM: tl.constexpr, ROPE: tl.constexpr,
    INTERLEAVED: tl.constexpr, PAGE: tl.constexpr,
):  # fmt: skip
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS))[:, None]
    head = tl.program_id(1)
    at = tl.arange(0, BLOCK)[None, :]
    there = (row < count) & (at < D)
    wide = row.to(tl.int64)
    begin()
    if head < HEADS:
        y = _turned_heads(
            q + wide * q_stride + head * D, q_norm, angles + wide * D, at, there, q_eps, q_offset,
            D, Q_NORM, ROPE, INTERLEAVED,
        )  # fmt: skip
        tl.store(out + wide * (HEADS * D) + head * D + at, y.to(out.dtype.element_ty), mask=there)
    else:
        position = tl.load(positions + row, mask=row < count, other=-1)
        there = there & (position >= 0)
        sequence = tl.load(sequences + row, mask=position >= 0, other=0).to(tl.int64)
        page = tl.load(table + sequence * table_stride + position // PAGE, mask=position >= 0, other=0)
        slot = (page.to(tl.int64) * PAGE + position % PAGE) * GROUPS
        if head < HEADS + GROUPS:
            group = head - HEADS
            y = _turned_heads(
                k + wide * k_stride + group * D, k_norm, angles + wide * D, at, there, k_eps, k_offset,
                D, K_NORM, ROPE, INTERLEAVED,
            )  # fmt: skip
            tl.store(keys + (slot + group) * D + at, y.to(keys.dtype.element_ty), mask=there)
        else:
            group = head - HEADS - GROUPS
            y = _turned_heads(
                v + wide * v_stride + group * D, v_norm, angles + wide * D, at, there, v_eps, v_offset,
                D, V_NORM, False, INTERLEAVED,
            )  # fmt: skip
            tl.store(values + (slot + group) * D + at, y.to(values.dtype.element_ty), mask=there)


def _together(rows: int, head_dim: int) -> dict[str, int]:
    """Rows that a program has, and its warps: programs of one row would be too many of a prompt's."""
    together = 8 if rows >= 64 else 1
    return {"ROWS": together, "num_warps": max(1, together * triton.next_power_of_2(head_dim) // 256)}


def heads(
    x: torch.Tensor, out: torch.Tensor, head_dim: int, chain: Chain, turns: torch.Tensor | None
) -> None:
    """Norm and rotation of each head of x, into `out` [T, heads · d]."""
    rows, width = x.shape
    if rows == 0:
        return
    norm, turn = chain.norm, chain.turn
    together = _together(rows, head_dim)
    _heads[(-(-rows // together["ROWS"]), width // head_dim)](
        x,
        out,
        x if norm is None else norm.weight,
        x if turns is None else turns,
        rows,
        x.stride(0),
        out.stride(0),
        0.0 if norm is None else norm.eps,
        0.0 if norm is None else norm.offset,
        D=head_dim,
        BLOCK=triton.next_power_of_2(head_dim),
        NORM=norm is not None,
        ROPE=turn is not None,
        INTERLEAVED=turn is not None and turn.interleaved,
        **together,
        enable_fp_fusion=False,
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
    v_norm: NormWeight | None,
    turns: torch.Tensor | None,
) -> None:
    """Queries into `out` [T, H · d], keys and values into their pages. Both chains have the same rotation."""
    rows = q.shape[0]
    if rows == 0:
        return
    _, page, groups, head_dim = keys.shape
    count = q.shape[-1] // head_dim
    q_norm, k_norm, turn = q_chain.norm, k_chain.norm, k_chain.turn
    together = _together(rows, head_dim)
    _store[(-(-rows // together["ROWS"]), count + 2 * groups)](
        q, k, v, out, keys, values,
        q if q_norm is None else q_norm.weight, k if k_norm is None else k_norm.weight,
        v if v_norm is None else v_norm.weight,
        q if turns is None else turns, positions, sequences, table,
        rows, q.stride(0), k.stride(0), v.stride(0), table.stride(0),
        0.0 if q_norm is None else q_norm.eps, 0.0 if k_norm is None else k_norm.eps,
        0.0 if v_norm is None else v_norm.eps, 0.0 if q_norm is None else q_norm.offset,
        0.0 if k_norm is None else k_norm.offset, 0.0 if v_norm is None else v_norm.offset,
        HEADS=count, GROUPS=groups, D=head_dim, BLOCK=triton.next_power_of_2(head_dim),
        Q_NORM=q_norm is not None, K_NORM=k_norm is not None, V_NORM=v_norm is not None,
        ROPE=turn is not None, INTERLEAVED=turn is not None and turn.interleaved, PAGE=page,
        **together, enable_fp_fusion=False, **LAUNCH,
    )  # fmt: skip
