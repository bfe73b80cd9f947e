"""y = x @ w.T for decode rows, with gate and bias.

Decode reads every weight once for a few rows, so the kernel is laid out for reading. A program has BLOCK_N
rows of the weight and a part of its columns, loads most of them before it waits for the previous kernel (see
kernels/pdl.py), and its warps divide the columns among them. It takes eight rows of x. Where that would read
the weight too often, rows go through kernels/tall_gemv.py, as blocks of rows of one expert do, and those of
float weights through kernels/batched_gemv.py; one row of x goes through kernels/gemv_alone.py. All sum in the
same order.

The sum over the columns runs in one order that only the weight's shape and format decide: a row has the same
bits in any batch. With split-K, the partial sums of the splits are written side by side, and the kernel that
reads them adds them in order (kernels/norm.py).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from olivine.backends.cuda.formats import BLOCK, FLOAT, HAS_MINIMUM, LAYOUTS, PACKED, Format
from olivine.backends.cuda.kernels.batched_gemv import batched_gemv
from olivine.backends.cuda.kernels.epilogue import epilogue, load_up
from olivine.backends.cuda.kernels.expert_blocks import ExpertBlocks
from olivine.backends.cuda.kernels.gemv_alone import gemv_alone
from olivine.backends.cuda.kernels.gemv_parts import (
    CHAINS,
    accumulate,
    end_of,
    load_inputs,
    sum_over_warps,
    with_chain,
)
from olivine.backends.cuda.kernels.gemv_weights import decode_codes, decode_scales, load_codes, load_scales
from olivine.backends.cuda.kernels.pdl import LAUNCH, keep_loads_early, registers, release, wait
from olivine.backends.cuda.kernels.tall_gemv import tall_gemv
from olivine.backends.cuda.tiles import BLOCK_N, WARPS, GemvTiles, tiling_is_bit_exact
from olivine.backends.cuda.weights import Planes


class GemvExperts(NamedTuple):
    """The expert that each result row is of, and the result rows that each row of x has.

    `early`: the ids are there before the previous kernel is done, because that one waited for the kernel that
    made them before it released the next.
    """

    ids: torch.Tensor
    rows_per_input: int
    early: bool = False


@triton.jit(do_not_specialize=["M", "scaled"])
def _gemv(
    rows, inv_rms, target, bias, up, experts, planes, M, weight_rows, scaled,
    K: tl.constexpr, STEPS: tl.constexpr, FORMAT: tl.constexpr, PIECES: tl.constexpr, WARPS: tl.constexpr,
    WIDTH: tl.constexpr, SPAN: tl.constexpr, GROUP: tl.constexpr, PREFETCH: tl.constexpr,
    UNROLL: tl.constexpr, LOADED: tl.constexpr, EVEN: tl.constexpr, FULL: tl.constexpr, GATED: tl.constexpr,
    ACTIVATION: tl.constexpr,
):  # fmt: skip
    """rows are x and its stride; target is as in `epilogue`; bias may be None, and so may up:
    a pointer and its stride, and experts: ids and rows_per_input. `scaled` is 0 or M. EVEN: the steps have no
    columns beyond K; FULL: the last program's rows are all the weight's."""
    x, x_stride = rows
    block = tl.program_id(0)
    split = tl.program_id(1)
    first = block.to(tl.int64) * 2  # in tiles of eight rows
    start = split * (STEPS * WARPS)
    m = tl.program_id(2) * 8 + tl.arange(0, 8)
    m_there = m < M
    x_row = tl.program_id(2) * 8 + tl.arange(0, 8)[None, :, None, None, None]
    x_there = x_row < M
    x_row = tl.minimum(x_row, M - 1)
    if experts is not None:
        # Which expert's weight is read is known only now; a program has one row. The next kernel relies on
        # this being before the release: see `GemvExperts.early`.
        wait()
        ids, rows_per_input = experts
        first += tl.load(ids + tl.program_id(2)) * (weight_rows.to(tl.int64) // 8)
        m = tl.program_id(2) + tl.arange(0, 8)
        m_there = tl.arange(0, 8) < 1
        x_there = tl.arange(0, 8)[None, :, None, None, None] < 1
        x_row = tl.program_id(2) // rows_per_input + x_row * 0
    x_at = x + x_row.to(tl.int64) * x_stride
    # Constants are added to the first tile in 64 bits: so they are free as offsets of loads.
    tile = tl.arange(0, 2)[None, None, None, :, None]
    row = tl.arange(0, 16)[None, :]
    row_tile = row // 8
    if not FULL:
        last = (weight_rows - 1) // 8 - block * 2
        tile, row_tile = tl.minimum(tile, last), tl.minimum(row_tile, last)
    tile, row = first + tile, (first + row_tile, row % 8)
    u = start + (tl.arange(0, WARPS) * STEPS)[None, None, :, None, None]
    at = start + (tl.arange(0, WARPS) * STEPS)[:, None]
    raw = ()
    for s in tl.static_range(PREFETCH):
        raw = raw + (
            load_codes(planes, tile, u, s, K, FORMAT, SPAN, WIDTH, EVEN),
            load_scales(planes, row, at, s, K, FORMAT, SPAN, GROUP, EVEN),
        )
    up_part = None
    if up is not None:
        up_part = load_up(up, target, block, m, m_there, 16)
    # The next kernel may load its weights now: they come after these. A loop, though once is enough, or the
    # compiler would decode before it, and so release only when the weights have arrived.
    for _ in range(tl.minimum(M, 16) if PACKED[FORMAT] else 1):
        release()
    codes = ()
    scales = ()
    for s in tl.static_range(PREFETCH):
        codes = codes + (decode_codes(raw[2 * s], u, s, FORMAT, SPAN, WIDTH),)
        scales = scales + (decode_scales(raw[2 * s + 1], at, s, FORMAT),)
    if experts is None:
        # A loop, and a release that changes nothing: without them the compiler moves the decoding of scales
        # behind the wait. Floats have none, and without the loop where x lies is computed before the wait.
        for _ in range(tl.minimum(M, 1) if FORMAT != FLOAT else 1):
            wait()
        if BLOCK[FORMAT] == 256 and HAS_MINIMUM[FORMAT]:
            release()
    # Decided at run time, so that products with and without inv_rms are one kernel.
    row_scale = tl.load(inv_rms + m, mask=m_there & (m < scaled), other=1.0)
    COUNT: tl.constexpr = CHAINS[FORMAT]
    accs = ()
    for _ in tl.static_range(COUNT):
        accs = accs + (tl.zeros((WARPS, 16, 8), tl.float32),)
    # All loads are issued before any of them is needed. Lanes without a row load nothing.
    inputs = ()
    for s in tl.static_range(PREFETCH):
        inputs = inputs + (load_inputs(x_at, x_there, u, s, K, FORMAT, PIECES, WIDTH, SPAN, EVEN, True),)
    for s in tl.static_range(PREFETCH):
        acc = accumulate((accs[s % COUNT],), (codes[s],), (scales[s],), inputs[s], FORMAT, PIECES)[0]
        accs = with_chain(accs, s % COUNT, acc)
    if STEPS > PREFETCH:
        tl.static_assert(UNROLL % LOADED == 0)
        for begin in range(PREFETCH, end_of(STEPS, M), UNROLL):
            for part in tl.static_range(0, UNROLL, LOADED):
                if part > 0:
                    keep_loads_early(M)  # and those of this part late: all at once have no registers
                step = begin + part
                more = ()
                for s in tl.static_range(LOADED):
                    more = more + (
                        load_codes(planes, tile, u, step + s, K, FORMAT, SPAN, WIDTH, EVEN),
                        load_scales(planes, row, at, step + s, K, FORMAT, SPAN, GROUP, EVEN),
                    )
                for s in tl.static_range(LOADED):
                    w = decode_codes(more[2 * s], u, step + s, FORMAT, SPAN, WIDTH)
                    a = decode_scales(more[2 * s + 1], at, step + s, FORMAT)
                    y = load_inputs(x_at, x_there, u, step + s, K, FORMAT, PIECES, WIDTH, SPAN, EVEN, True)
                    acc = accumulate((accs[(part + s) % COUNT],), (w,), (a,), y, FORMAT, PIECES)[0]
                    accs = with_chain(accs, (part + s) % COUNT, acc)
    place = (block, split, m, m_there)
    epilogue(sum_over_warps(accs), row_scale, bias, up_part, target, place, GATED, ACTIVATION)


def gemv(
    x: torch.Tensor,
    weight: Planes,
    out: torch.Tensor,
    tiles: GemvTiles,
    *,
    inv_rms: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    activation: int | None = None,
    up: torch.Tensor | None = None,
    experts: GemvExperts | ExpertBlocks | None = None,
) -> None:
    """out[s, m] = the s-th part of x[m] @ weight.T · inv_rms[m]; out is [splits, M, N], or [M, N] for one.

    With an activation the weight is gate and up, interleaved, and out = activation(x @ gate.T) · (x @ up.T).
    With `up` too it is the gate, and out = activation(x @ weight.T) · up. All of `up` must be there when
    the kernel starts: it is loaded before the wait.
    With `experts` the weight has those of all experts: out row m is x row m // rows_per_input times the
    weight of its expert. Where many rows are of one expert, they come in blocks.
    """
    splits = out.shape[0] if out.ndim == 3 else 1
    rows, n, k = out.shape[-2], out.shape[-1], weight.k
    if rows == 0:
        return
    if isinstance(experts, ExpertBlocks):
        tall_gemv(
            x, weight, out, tiles, inv_rms=inv_rms, bias=bias, activation=activation, up=up, experts=experts,
        )  # fmt: skip
        return
    if experts is None and rows > tiles.eight_row_limit:
        if weight.format is Format.FLOAT and tiling_is_bit_exact(x.device):
            batched_gemv(x, weight, out, tiles, inv_rms=inv_rms, bias=bias, activation=activation, up=up)
        else:
            tall_gemv(x, weight, out, tiles, inv_rms=inv_rms, bias=bias, activation=activation, up=up)
        return
    if weight.format is not Format.FLOAT and (rows == 1 or experts is not None):
        by_row = None if experts is None else (experts.ids, experts.rows_per_input)
        gemv_alone(
            x, weight, out, tiles, inv_rms=inv_rms, bias=bias, activation=activation, up=up,
            experts=by_row, early=experts is not None and experts.early,
        )  # fmt: skip
        return
    height = weight.n if experts is None else (1 if activation is None else 2) * (n + -n % 8)
    steps, prefetch = tiles.steps // splits, tiles.prefetch
    # Four programs fit a multiprocessor if a thread has 128. With all columns prefetched it has fewer by
    # itself, but told so the compiler keeps scales in memory and waits for them before the release.
    packed = LAYOUTS[weight.format].pieces > 1
    most = registers(168 if packed and steps <= prefetch else 128)
    _gemv[(-(-height // BLOCK_N), splits, -(-rows // 8) if experts is None else len(experts.ids))](
        (x, x.stride(0)), out if inv_rms is None else inv_rms,
        (out, out.stride(-2), out.stride(0) if out.ndim == 3 else 0, n), bias,
        None if up is None else (up, up.stride(0)),
        None if experts is None else (experts.ids, experts.rows_per_input),
        weight.pointers(), rows, height, 0 if inv_rms is None else rows, K=k, STEPS=steps,
        FORMAT=int(weight.format), PIECES=tiles.span // tiles.width, WARPS=WARPS,
        WIDTH=tiles.width, SPAN=tiles.span, GROUP=weight.group, PREFETCH=prefetch, UNROLL=tiles.unroll,
        LOADED=tiles.loaded, EVEN=k == tiles.steps * WARPS * tiles.span, FULL=height % BLOCK_N == 0,
        GATED=activation is not None and up is None, ACTIVATION=activation or 0,
        num_warps=WARPS, num_stages=1, enable_fp_fusion=False, **most, **LAUNCH,
    )  # fmt: skip
