"""The epilogue of a product of decode rows: the deferred 1 / rms of a norm, bias, gate, and the store."""

from __future__ import annotations

import triton
import triton.language as tl

from olivine.backends.cuda.kernels.activations import activate


@triton.jit
def load_up(up, target, block, m, m_there, ROWS: tl.constexpr):
    """The part of `up`, a pointer and its stride, that `epilogue` multiplies a block of ROWS with."""
    column = block * ROWS + tl.arange(0, ROWS)
    at = up[0] + m.to(tl.int64)[None, :] * up[1] + column[:, None]
    return tl.load(at, mask=m_there[None, :] & (column < target[3])[:, None], other=0.0).to(tl.float32)


@triton.jit
def epilogue(y, row_scale, bias, up, target, at, GATED: tl.constexpr, ACTIVATION: tl.constexpr):
    """y is [weight rows, rows m] of a block. It is a gate, if there is an `up`, of the same shape; or GATED:
    then gate and up are interleaved by eight rows.

    `target` is out, its stride, that of its splits, and its columns; `at` is block, split, rows m, and which
    of them are there. row_scale, bias and up may be None.
    """
    out, out_stride, out_plane, N = target
    block, split, m, m_there = at
    ROWS: tl.constexpr = y.shape[0]
    OUTS: tl.constexpr = ROWS // 2 if GATED else ROWS
    if row_scale is not None:
        y = y * row_scale[None, :]
    if GATED:
        pairs = tl.permute(tl.reshape(y, (ROWS // 16, 2, 8, y.shape[1])), (0, 2, 3, 1))
        gates, ups = tl.split(pairs)
        y = tl.reshape(activate(gates, ACTIVATION) * ups, (OUTS, y.shape[1]))
    column = block * OUTS + tl.arange(0, OUTS)
    if bias is not None:
        added = tl.load(bias + column, mask=column < N, other=0.0).to(tl.float32)
        y += tl.where(split == 0, added, 0.0)[:, None]
    if up is not None:
        y = activate(y, ACTIVATION) * up
    to = out + split.to(tl.int64) * out_plane + m.to(tl.int64)[None, :] * out_stride + column[:, None]
    tl.store(to, y.to(out.dtype.element_ty), mask=m_there[None, :] & (column < N)[:, None])
