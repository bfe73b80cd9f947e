"""y = x @ w.T for generated rows, with gate and bias.

Few rows need every weight once, so all is arranged for reading: a program has ROWS rows of the weight and a
part of its columns, fetches (and decodes) most of them before it waits for the kernel before, and its warps
share the columns between them. The sum over the columns runs in one order that only the weight's shape and
kind decide: a row has the same bits in any batch. With several splits, as many sums over parts of the columns
are written side by side, and whoever reads them adds them up in order.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from olivine.backends.cuda.kernels.activations import activate
from olivine.backends.cuda.kernels.blocks import PARTS, unit_codes, unit_columns, unit_scales
from olivine.backends.cuda.kernels.launches import LAUNCH, release, wait
from olivine.backends.cuda.kernels.products import product
from olivine.backends.cuda.tiles import ROWS, WARPS, FewTiles
from olivine.backends.cuda.weights import Planes


@triton.jit
def _weights(
    codes, high, scales, minima, halves, n, there, k, K,
    KIND: tl.constexpr, PIECES: tl.constexpr, UNITS: tl.constexpr, WIDTH: tl.constexpr, SPAN: tl.constexpr,
):  # fmt: skip
    """Rows n of the weight and UNITS units from column k on: codes, and a and c, of each piece in turn."""
    b = tl.arange(0, UNITS)[:, None]
    found = ()
    for part in tl.static_range(PIECES):
        q = unit_codes(
            codes, high, n[None, :, None], there[None, :, None], k, b[:, :, None], K, KIND, part, WIDTH, SPAN
        )
        if KIND == 0:
            found = found + (q,)
        else:
            pair = unit_scales(scales, minima, halves, n[None, :], there[None, :], k, b, K, KIND, part, SPAN)
            found = found + (q, pair[0], pair[1])
    return found


@triton.jit
def _added(
    acc, weights, inputs, KIND: tl.constexpr, PIECES: tl.constexpr, UNITS: tl.constexpr, WARPS: tl.constexpr
):
    """acc [WARPS, ROWS, BATCH] and the products of all pieces: warp i adds up units i, i + WARPS, …"""
    if KIND == 0:
        acc = product(weights[0], inputs[0], acc)
    else:
        ROWS: tl.constexpr = acc.shape[1]
        BATCH: tl.constexpr = acc.shape[2]
        zeros = tl.zeros((UNITS, ROWS, BATCH), tl.float32)
        total = zeros
        for part in tl.static_range(PIECES):
            y = product(weights[3 * part], inputs[part], zeros) * weights[3 * part + 1][:, :, None]
            if KIND > 1:
                # The sum of the inputs, in every row: what the constant c is multiplied by.
                ones = tl.full(weights[3 * part].shape, 1.0, tl.bfloat16)
                y += product(ones, inputs[part], zeros) * weights[3 * part + 2][:, :, None]
            total = y if part == 0 else total + y
        if UNITS > WARPS:
            total = tl.sum(tl.reshape(total, (UNITS // WARPS, WARPS, ROWS, BATCH)), 0)
        acc = acc + total
    return acc


@triton.jit
def _inputs(
    x, m, m_there, k, K, x_stride,
    KIND: tl.constexpr, PIECES: tl.constexpr, UNITS: tl.constexpr, WIDTH: tl.constexpr, SPAN: tl.constexpr,
    SINGLE: tl.constexpr,
):  # fmt: skip
    """The columns of x that belong to `_weights`, [UNITS, WIDTH, BATCH] a piece."""
    b = tl.arange(0, UNITS)[:, None]
    found = ()
    for part in tl.static_range(PIECES):
        at = unit_columns(k, b, KIND, part, WIDTH, SPAN)
        if SINGLE:
            y = tl.load(x + at, mask=at < K, other=0.0).to(tl.bfloat16)
            y = tl.broadcast_to(y[:, :, None], (UNITS, WIDTH, m.shape[0]))
        else:
            rows = x + m.to(tl.int64)[None, None, :] * x_stride + at[:, :, None]
            y = tl.load(rows, mask=m_there[None, None, :] & (at < K)[:, :, None], other=0.0)
        found = found + (y,)
    return found


@triton.jit
def _tile(
    acc, x, codes, high, scales, minima, halves, n, there, m, m_there, k, K, x_stride,
    KIND: tl.constexpr, PIECES: tl.constexpr, UNITS: tl.constexpr, WARPS: tl.constexpr, WIDTH: tl.constexpr,
    SPAN: tl.constexpr, SINGLE: tl.constexpr,
):  # fmt: skip
    weights = _weights(codes, high, scales, minima, halves, n, there, k, K, KIND, PIECES, UNITS, WIDTH, SPAN)
    inputs = _inputs(x, m, m_there, k, K, x_stride, KIND, PIECES, UNITS, WIDTH, SPAN, SINGLE)
    return _added(acc, weights, inputs, KIND, PIECES, UNITS, WARPS)


@triton.jit(do_not_specialize=["M"])
def _few(
    x, factors, out, bias, chosen, codes, high, scales, minima, halves,
    M, N, K, weight_rows, x_stride, out_stride, out_plane, part_columns, rest_steps, share,
    KIND: tl.constexpr, PIECES: tl.constexpr, WARPS: tl.constexpr, ROWS: tl.constexpr, BATCH: tl.constexpr,
    UNITS: tl.constexpr, WIDTH: tl.constexpr, SPAN: tl.constexpr, REST_UNITS: tl.constexpr,
    REST_WIDTH: tl.constexpr, REST_SPAN: tl.constexpr, REST: tl.constexpr, AHEAD: tl.constexpr,
    SINGLE: tl.constexpr, FACTORS: tl.constexpr, GATED: tl.constexpr, ACTIVATION: tl.constexpr,
    BIAS: tl.constexpr, EXPERTS: tl.constexpr,
):  # fmt: skip
    block = tl.program_id(0)
    split = tl.program_id(1)
    n = (block * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    n_there = n < weight_rows
    k = split * part_columns
    m = tl.program_id(2) * BATCH + tl.arange(0, BATCH)
    m_there = m < M
    row = tl.program_id(2).to(tl.int64)
    if EXPERTS:
        # Which weight is read is known only now; a program has a row of its own.
        wait()
        n += tl.load(chosen + row).to(tl.int64) * weight_rows
        m = tl.program_id(2) + tl.arange(0, BATCH)
        m_there = tl.arange(0, BATCH) < 1
        row = row // share
    x_at = x + row * x_stride if SINGLE else x
    rest = k + UNITS * SPAN
    if AHEAD:
        weights = _weights(
            codes, high, scales, minima, halves, n, n_there, k, K, KIND, PIECES, UNITS, WIDTH, SPAN
        )
    if not EXPERTS:
        wait()
    release()
    acc = tl.zeros((WARPS, ROWS, BATCH), tl.float32)
    if AHEAD:
        inputs = _inputs(x_at, m, m_there, k, K, x_stride, KIND, PIECES, UNITS, WIDTH, SPAN, SINGLE)
        acc = _added(acc, weights, inputs, KIND, PIECES, UNITS, WARPS)
        if REST:
            for step in range(rest_steps):
                acc = _tile(
                    acc, x_at, codes, high, scales, minima, halves, n, n_there, m, m_there,
                    rest + step * (REST_UNITS * REST_SPAN), K, x_stride,
                    KIND, PIECES, REST_UNITS, WARPS, REST_WIDTH, REST_SPAN, SINGLE,
                )  # fmt: skip
    else:
        # The same sums in smaller steps: many rows take more room.
        if KIND == 0:
            for step in range(SPAN // REST_SPAN):
                acc = _tile(
                    acc, x_at, codes, high, scales, minima, halves, n, n_there, m, m_there,
                    k + step * REST_WIDTH, K, x_stride,
                    KIND, PIECES, WARPS, WARPS, REST_WIDTH, SPAN, SINGLE,
                )  # fmt: skip
        else:
            for step in range(UNITS // WARPS):
                acc = _tile(
                    acc, x_at, codes, high, scales, minima, halves, n, n_there, m, m_there,
                    k + step * (WARPS * SPAN), K, x_stride,
                    KIND, PIECES, WARPS, WARPS, WIDTH, SPAN, SINGLE,
                )  # fmt: skip
        if REST:
            for step in range(rest_steps):
                part = tl.zeros((WARPS, ROWS, BATCH), tl.float32) if KIND > 0 else acc
                for inner in range(REST_UNITS // WARPS):
                    part = _tile(
                        part, x_at, codes, high, scales, minima, halves, n, n_there, m, m_there,
                        rest + (step * REST_UNITS + inner * WARPS) * REST_SPAN, K, x_stride,
                        KIND, PIECES, WARPS, WARPS, REST_WIDTH, REST_SPAN, SINGLE,
                    )  # fmt: skip
                acc = acc + part if KIND > 0 else part
    y = tl.sum(acc, 0)
    if FACTORS:
        y = y * tl.load(factors + m, mask=m_there, other=0.0)[None, :]
    if GATED:
        gate, up = tl.split(tl.permute(tl.reshape(y, (ROWS // 16, 2, 8, BATCH)), (0, 2, 3, 1)))
        y = tl.reshape(activate(gate, ACTIVATION) * up, (ROWS // 2, BATCH))
    OUTS: tl.constexpr = ROWS // 2 if GATED else ROWS
    column = block * OUTS + tl.arange(0, OUTS)
    if BIAS:
        added = tl.load(bias + column, mask=column < N, other=0.0).to(tl.float32)
        y += tl.where(split == 0, added, 0.0)[:, None]
    to = out + split.to(tl.int64) * out_plane + m.to(tl.int64)[None, :] * out_stride + column[:, None]
    tl.store(to, y.to(out.dtype.element_ty), mask=m_there[None, :] & (column < N)[:, None])


def few(
    x: torch.Tensor,
    weight: Planes,
    out: torch.Tensor,
    cut: FewTiles,
    *,
    factors: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    activation: int | None = None,
    chosen: torch.Tensor | None = None,
    share: int = 1,
) -> None:
    """out[s, m] = the s-th part of x[m] @ weight.T · factors[m]; out is [splits, M, N], or [M, N] for one.

    With an activation the weight is gate and up, interleaved, and out = activation(x @ gate.T) · (x @ up.T).
    With `chosen` the weight is one of experts: out row m is x row m // share times expert chosen[m].
    """
    splits = out.shape[0] if out.ndim == 3 else 1
    rows, n, k = out.shape[-2], out.shape[-1], weight.k
    if rows == 0:
        return
    single = rows == 1 or chosen is not None
    batch = 8 if single or rows <= 8 else 16 if rows <= 16 else 32 if rows <= 32 else 64
    height = weight.n if chosen is None else 2 * (n + -n % 8) if activation is not None else n
    steps = cut.steps // splits
    rest = (steps - cut.ahead) // cut.rest
    planes: list[Any] = list(weight.pointers())
    _few[(-(-height // ROWS), splits, rows if chosen is not None else -(-rows // batch))](
        x, x if factors is None else factors, out, x if bias is None else bias,
        x if chosen is None else chosen, *planes, rows, n, k, height, x.stride(0), out.stride(-2),
        out.stride(0) if out.ndim == 3 else 0, steps * WARPS * cut.span, rest, share,
        KIND=weight.kind, PIECES=PARTS[weight.kind], WARPS=WARPS, ROWS=ROWS, BATCH=batch,
        UNITS=WARPS if weight.kind == 0 else WARPS * cut.ahead,
        WIDTH=cut.width * cut.ahead if weight.kind == 0 else cut.width,
        SPAN=cut.span * cut.ahead if weight.kind == 0 else cut.span,
        REST_UNITS=WARPS * cut.rest, REST_WIDTH=cut.width, REST_SPAN=cut.span, REST=rest > 0,
        AHEAD=batch == 8, SINGLE=single,
        FACTORS=factors is not None, GATED=activation is not None, ACTIVATION=activation or 0,
        BIAS=bias is not None, EXPERTS=chosen is not None,
        num_warps=WARPS, num_stages=cut.stages, enable_fp_fusion=False, **LAUNCH,
    )  # fmt: skip
