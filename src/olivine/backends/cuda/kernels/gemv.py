"""y = x @ w.T for decode rows, with gate and bias.

Decode reads every weight once for a few rows, so the kernel is laid out for reading. A program has BLOCK_N
rows of the weight and a part of its columns, loads most of them before it waits for the previous kernel (see
kernels/pdl.py), and its warps divide the columns among them. It takes eight rows of x. Where that would read
the weight too often it takes more; those of float weights go through kernels/batched_gemv.py, which sums in
the same order.

The sum over the columns runs in one order that only the weight's shape and format decide: a row has the same
bits in any batch. With split-K, the partial sums of the splits are written side by side, and the kernel that
reads them adds them in order (kernels/norm.py).
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from olivine.backends.cuda.kernels.batched_gemv import batched_gemv
from olivine.backends.cuda.kernels.dot import INTERPRETED, dot
from olivine.backends.cuda.kernels.epilogue import epilogue
from olivine.backends.cuda.kernels.gemv_weights import decoded, fetched, fragment, piece_columns, run_columns
from olivine.backends.cuda.kernels.pdl import LAUNCH, registers, release, wait
from olivine.backends.cuda.tiles import BLOCK_N, WARPS, GemvTiles, tiling_is_bit_exact
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
                total = dot(w[PIECES], inputs[scale * EACH + part], total)
        y = zeros if CONSTANT else total
        for part in tl.static_range(EACH):
            y = dot(w[scale * EACH + part], inputs[scale * EACH + part], y)
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
def _gemv(
    x, inv_rms, out, bias, expert_ids, codes, high, scales, minima, halves,
    M, N, K, weight_rows, x_stride, out_stride, out_plane, steps, rows_per_input, scaled,
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
        base = tl.load(expert_ids + tl.program_id(2)) * weight_rows.to(tl.int64)
        m = tl.program_id(2) + tl.arange(0, BATCH)
        m_there = tl.arange(0, BATCH) < 1
        x_there = tl.arange(0, 8)[None, :, None, None, None] < 1
        x_row = tl.program_id(2) // rows_per_input + x_row * 0
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
    # Decided at run time, so that products with and without inv_rms are one kernel.
    row_scale = tl.load(inv_rms + m, mask=m < scaled, other=1.0)
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
    epilogue(
        _over_warps(acc), row_scale, out, bias, block, split, m, m_there, N, out_stride, out_plane,
        True, GATED, ACTIVATION, BIAS,
    )  # fmt: skip


def gemv(
    x: torch.Tensor,
    weight: Planes,
    out: torch.Tensor,
    tiles: GemvTiles,
    *,
    inv_rms: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    activation: int | None = None,
    expert_ids: torch.Tensor | None = None,
    rows_per_input: int = 1,
) -> None:
    """out[s, m] = the s-th part of x[m] @ weight.T · inv_rms[m]; out is [splits, M, N], or [M, N] for one.

    With an activation the weight is gate and up, interleaved, and out = activation(x @ gate.T) · (x @ up.T).
    With `expert_ids` the weight has those of all experts: out row m is x row m // rows_per_input times the
    weight of expert expert_ids[m].
    """
    splits = out.shape[0] if out.ndim == 3 else 1
    rows, n, k = out.shape[-2], out.shape[-1], weight.k
    if rows == 0:
        return
    batch = min(tiles.max_rows, triton.next_power_of_2(rows))
    if expert_ids is not None or rows <= tiles.eight_row_limit:
        batch = 8
    height = weight.n if expert_ids is None else (1 if activation is None else 2) * (n + -n % 8)
    steps = tiles.steps // splits
    if batch > 8 and weight.kind == 0 and tiling_is_bit_exact(x.device):
        batched_gemv(x, weight, out, tiles, splits, batch, inv_rms, bias, activation)
        return
    # Many rows leave no registers for columns ahead.
    ahead, after = (tiles.prefetch, tiles.unroll) if batch == 8 else (0, 1)
    planes: list[Any] = list(weight.pointers())
    # Four programs fit a multiprocessor if a thread has 128. With all columns ahead it has fewer by itself,
    # but told so the compiler keeps scales in memory and waits for them before the release.
    most = registers(168 if weight.kind >= 2 and steps <= ahead else 128)
    _gemv[(-(-height // BLOCK_N), splits, rows if expert_ids is not None else -(-rows // batch))](
        x, out if inv_rms is None else inv_rms, out, x if bias is None else bias,
        x if expert_ids is None else expert_ids, *planes, rows, n, k, height, x.stride(0), out.stride(-2),
        out.stride(0) if out.ndim == 3 else 0, steps, rows_per_input,
        0 if inv_rms is None else rows,
        KIND=weight.kind, PIECES=tiles.span // tiles.width, WARPS=WARPS, BATCH=batch, WIDTH=tiles.width,
        SPAN=tiles.span, GROUP=weight.group, AHEAD=ahead, AFTER=after, REST=steps > ahead,
        EVEN=k == tiles.steps * WARPS * tiles.span,
        GATED=activation is not None, ACTIVATION=activation or 0, BIAS=bias is not None,
        EXPERTS=expert_ids is not None,
        num_warps=WARPS, num_stages=1, enable_fp_fusion=False, **most, **LAUNCH,
    )  # fmt: skip
