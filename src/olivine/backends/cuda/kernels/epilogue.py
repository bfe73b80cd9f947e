"""The epilogue of a product of decode rows: the deferred 1 / rms of a norm, gate, bias, and the store."""

from __future__ import annotations

import triton
import triton.language as tl

from olivine.backends.cuda.kernels.activations import activate


@triton.jit
def epilogue(y, row_scale, bias, target, at, GATED: tl.constexpr, ACTIVATION: tl.constexpr):
    """y is [weight rows, rows m] of a block; gate and up are interleaved by eight rows.

    `target` is out, its stride, that of its splits, and its columns; `at` is block, split, rows m, and which
    of them are there. row_scale and bias may be None.
    """
    out, out_stride, out_plane, N = target
    block, split, m, m_there = at
    ROWS: tl.constexpr = y.shape[0]
    OUTS: tl.constexpr = ROWS // 2 if GATED else ROWS
    if row_scale is not None:
        y = y * row_scale[None, :]
    if GATED:
        pairs = tl.permute(tl.reshape(y, (ROWS // 16, 2, 8, y.shape[1])), (0, 2, 3, 1))
        gate, up = tl.split(pairs)
        y = tl.reshape(activate(gate, ACTIVATION) * up, (OUTS, y.shape[1]))
    column = block * OUTS + tl.arange(0, OUTS)
    if bias is not None:
        added = tl.load(bias + column, mask=column < N, other=0.0).to(tl.float32)
        y += tl.where(split == 0, added, 0.0)[:, None]
    to = out + split.to(tl.int64) * out_plane + m.to(tl.int64)[None, :] * out_stride + column[:, None]
    tl.store(to, y.to(out.dtype.element_ty), mask=m_there[None, :] & (column < N)[:, None])
