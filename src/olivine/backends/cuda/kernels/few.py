"""y = x @ w.T for generated rows, with gate and bias.

Few rows need every weight once, so all is arranged for reading: a program has ROWS rows of the weight and a
part of its columns, asks for most of them before it waits for the kernel before, and its warps share the
columns between them. It has eight rows of x; where more of them would read the weight too often, it has more,
and of floats they go through kernels/crowd.py, in the same order.

The sum over the columns runs in one order that only the weight's shape and kind decide: a row has the same
bits in any batch. With several splits, as many sums over parts of the columns are written side by side, and
whoever reads them adds them up in order.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from olivine.backends.cuda.kernels.crowd import crowd
from olivine.backends.cuda.kernels.epilogue import finish
from olivine.backends.cuda.kernels.launches import LAUNCH, registers, release, wait
from olivine.backends.cuda.kernels.products import INTERPRETED, product
from olivine.backends.cuda.kernels.units import decoded, fetched, fragment, piece_columns, run_columns
from olivine.backends.cuda.tiles import ROWS, WARPS, FewTiles, any_cut_has_the_same_bits
from olivine.backends.cuda.weights import Planes


@triton.jit
def _fetched(
    codes, high, scales, minima, halves, first, last, base, start, step, steps, K,
    KIND: tl.constexpr, WARPS: tl.constexpr, WIDTH: tl.constexpr, SPAN: tl.constexpr, GROUP: tl.constexpr,
    EVEN: tl.constexpr,
):  # fmt: skip
    """A unit a warp, of sixteen rows from `first` on; those from `last` on repeat that one."""
    warp = tl.arange(0, WARPS)
    tile = tl.minimum(first // 8 + tl.arange(0, 2)[None, None, None, :, None], last // 8)
    row = tl.minimum(first + tl.arange(0, 16)[None, :], last)
    u = start + (warp * steps)[None, None, :, None, None]
    at = start + (warp * steps)[:, None]
    return fetched(
        codes, high, scales, minima, halves, (base // 8 + tile).to(tl.int64), u, (base + row).to(tl.int64),
        at, step, K, KIND, SPAN, WIDTH, GROUP, EVEN,
    )  # fmt: skip


@triton.jit
def _inputs(
    x, there, u, step, K,
    KIND: tl.constexpr, PIECES: tl.constexpr, WIDTH: tl.constexpr, SPAN: tl.constexpr, EVEN: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    """The columns of units u + step, of rows that x points to [1, 8, 1, BATCH / 8, 1], piece by piece."""
    found = ()
    for part in tl.static_range(PIECES):
        column, more = piece_columns(u, step, KIND, part, SPAN, WIDTH)
        at = column + run_columns(WIDTH // 4)
        fine = there if EVEN else there & (at + more < K)
        y = tl.load(x + at + more, mask=fine, other=0.0) if MASKED else tl.load(x + at + more)
        found = found + (tl.permute(fragment(y.to(tl.bfloat16), 2 if KIND == 0 else 4), (0, 2, 1)),)
    return found


@triton.jit
def _added(acc, w, inputs, KIND: tl.constexpr, PIECES: tl.constexpr):
    """acc, [WARPS, 16, BATCH], and the products of a unit a warp."""
    zeros = tl.zeros_like(acc)
    SCALES: tl.constexpr = 1 if KIND <= 3 or KIND >= 7 else PIECES
    EACH: tl.constexpr = PIECES // SCALES
    CONSTANT: tl.constexpr = KIND == 3 or KIND == 4 or KIND == 5 or KIND == 8
    A: tl.constexpr = PIECES + (KIND >= 2)
    for scale in tl.static_range(SCALES):
        # The sum of the inputs, in every row: for the constant c, or the middle of codes that have a sign.
        total = zeros
        if KIND >= 2:
            for part in tl.static_range(EACH):
                total = product(w[PIECES], inputs[scale * EACH + part], total)
        y = zeros if CONSTANT else total
        for part in tl.static_range(EACH):
            y = product(w[scale * EACH + part], inputs[scale * EACH + part], y)
        if KIND == 0:
            # Not a plain sum, which the compiler would make a chain of products that wait for each other.
            acc = tl.fma(y, 1.0, acc)
        else:
            acc = tl.fma(y, w[A + scale][:, :, None], acc)
        if CONSTANT:
            acc = tl.fma(total, w[A + SCALES + scale][:, :, None], acc)
    return acc


@triton.jit
def _over_warps(acc):
    """The sum over the four parts of the columns, (first + third) + (second + fourth): so a GPU adds them."""
    if INTERPRETED:
        acc = tl.sum(tl.reshape(acc, (2, 2, acc.shape[1], acc.shape[2])), 0)
    return tl.sum(acc, 0)


@triton.jit(do_not_specialize=["M", "scaled"])
def _few(
    x, factors, out, bias, chosen, codes, high, scales, minima, halves,
    M, N, K, weight_rows, x_stride, out_stride, out_plane, steps, share, scaled,
    KIND: tl.constexpr, PIECES: tl.constexpr, WARPS: tl.constexpr, BATCH: tl.constexpr, WIDTH: tl.constexpr,
    SPAN: tl.constexpr, GROUP: tl.constexpr, AHEAD: tl.constexpr, AFTER: tl.constexpr,
    REST: tl.constexpr, EVEN: tl.constexpr, GATED: tl.constexpr, ACTIVATION: tl.constexpr,
    BIAS: tl.constexpr, EXPERTS: tl.constexpr,
):  # fmt: skip
    block = tl.program_id(0)
    split = tl.program_id(1)
    first = block * 16
    last = weight_rows - 1
    base = 0
    start = split * (steps * WARPS)
    m = tl.program_id(2) * BATCH + tl.arange(0, BATCH)
    m_there = m < M
    x_row = (
        tl.program_id(2) * BATCH
        + tl.arange(0, 8)[None, :, None, None, None]
        + tl.arange(0, BATCH // 8)[None, None, None, :, None] * 8
    )
    x_there = x_row < M
    # Lanes without a row load nothing, and loads of one row cost a quarter. Many rows rather repeat the last.
    MASKED: tl.constexpr = BATCH == 8 or not EVEN
    x_row = tl.minimum(x_row, M - 1)
    if EXPERTS:
        # Which weight is read is known only now; a program has a row of its own.
        wait()
        base = tl.load(chosen + tl.program_id(2)) * weight_rows.to(tl.int64)
        m = tl.program_id(2) + tl.arange(0, BATCH)
        m_there = tl.arange(0, BATCH) < 1
        x_there = tl.arange(0, 8)[None, :, None, None, None] < 1
        x_row = tl.program_id(2) // share + x_row * 0
    x_at = x + x_row.to(tl.int64) * x_stride
    u = start + (tl.arange(0, WARPS) * steps)[None, None, :, None, None]
    raw = ()
    for s in tl.static_range(AHEAD):
        raw = raw + (
            _fetched(
                codes, high, scales, minima, halves, first, last, base, start, s, steps, K,
                KIND, WARPS, WIDTH, SPAN, GROUP, EVEN,
            ),
        )  # fmt: skip
    # The kernel after may fetch its weights now: they come after these. A loop, though once is enough, or
    # the compiler would decode before it, and so release only when the weights are there.
    for _ in range(tl.minimum(M, 16) if KIND >= 2 else 1):
        release()
    weights = ()
    for s in tl.static_range(AHEAD):
        weights = weights + (decoded(raw[s], u, s, KIND, SPAN, WIDTH),)
    if not EXPERTS:
        # A loop, and a release that changes nothing: without them the compiler puts off what the scales cost
        # until after the wait.
        for _ in range(tl.minimum(M, 1)):
            wait()
        if KIND == 4 or KIND == 5:
            release()
    # Asked while it runs, so that products with factors and without are one kernel.
    factor = tl.load(factors + m, mask=m < scaled, other=1.0)
    acc = tl.zeros((WARPS, 16, BATCH), tl.float32)
    # All is on its way before any of it is needed.
    inputs = ()
    for s in tl.static_range(AHEAD):
        inputs = inputs + (_inputs(x_at, x_there, u, s, K, KIND, PIECES, WIDTH, SPAN, EVEN, MASKED),)
    for s in tl.static_range(AHEAD):
        acc = _added(acc, weights[s], inputs[s], KIND, PIECES)
    if REST:
        for step in range(AHEAD, steps, AFTER):
            more = ()
            for s in tl.static_range(AFTER):
                more = more + (
                    _fetched(
                        codes, high, scales, minima, halves, first, last, base, start, step + s, steps, K,
                        KIND, WARPS, WIDTH, SPAN, GROUP, EVEN,
                    ),
                )  # fmt: skip
            for s in tl.static_range(AFTER):
                w = decoded(more[s], u, step + s, KIND, SPAN, WIDTH)
                y = _inputs(x_at, x_there, u, step + s, K, KIND, PIECES, WIDTH, SPAN, EVEN, MASKED)
                acc = _added(acc, w, y, KIND, PIECES)
    finish(
        _over_warps(acc), factor, out, bias, block, split, m, m_there, N, out_stride, out_plane,
        True, GATED, ACTIVATION, BIAS,
    )  # fmt: skip


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
    batch = min(cut.batch, triton.next_power_of_2(rows))
    if chosen is not None or rows <= cut.eights:
        batch = 8
    height = weight.n if chosen is None else (1 if activation is None else 2) * (n + -n % 8)
    steps = cut.steps // splits
    if batch > 8 and weight.kind == 0 and any_cut_has_the_same_bits(x.device):
        crowd(x, weight, out, cut, splits, batch, factors, bias, activation)
        return
    # Many rows leave no registers for columns ahead.
    ahead, after = (cut.ahead, cut.after) if batch == 8 else (0, 1)
    planes: list[Any] = list(weight.pointers())
    # Four programs fit a multiprocessor if a thread has 128. With all columns ahead it has fewer by itself,
    # but told so the compiler keeps scales in memory and waits for them before the release.
    most = registers(168 if weight.kind >= 2 and steps <= ahead else 128)
    _few[(-(-height // ROWS), splits, rows if chosen is not None else -(-rows // batch))](
        x, out if factors is None else factors, out, x if bias is None else bias,
        x if chosen is None else chosen, *planes, rows, n, k, height, x.stride(0), out.stride(-2),
        out.stride(0) if out.ndim == 3 else 0, steps, share,
        0 if factors is None else rows,
        KIND=weight.kind, PIECES=cut.span // cut.width, WARPS=WARPS, BATCH=batch, WIDTH=cut.width,
        SPAN=cut.span, GROUP=weight.group, AHEAD=ahead, AFTER=after, REST=steps > ahead,
        EVEN=k == cut.steps * WARPS * cut.span,
        GATED=activation is not None, ACTIVATION=activation or 0, BIAS=bias is not None,
        EXPERTS=chosen is not None,
        num_warps=WARPS, num_stages=1, enable_fp_fusion=False, **most, **LAUNCH,
    )  # fmt: skip
