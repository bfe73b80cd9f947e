"""y = x @ w.T for decode rows of many sequences, with the bits that `gemv` gives each row.

A program of `gemv` has sixteen rows of the weight. With many rows of x that is too few: rows of x are then
most of what is loaded, and a weight is decoded for every eight of them. Here a program has several tiles of
sixteen rows and up to 32 rows of x. What it loads of x, and the sums of x that formats with a minimum or a
middle need, are used for all tiles. Instructions, and their order for each sum, are those of `gemv`. All
chains are in one loop: a loop for each was slower.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from olivine.backends.cuda.kernels.epilogue import epilogue, load_up
from olivine.backends.cuda.kernels.expert_blocks import ExpertBlocks
from olivine.backends.cuda.kernels.gemv_parts import CHAINS, accumulate, load_inputs, sum_over_warps
from olivine.backends.cuda.kernels.gemv_weights import decode_codes, decode_scales, load_codes, load_scales
from olivine.backends.cuda.kernels.pdl import LAUNCH, keep_loads_early, registers, release, wait
from olivine.backends.cuda.tiles import BLOCK_N, WARPS, GemvTiles, TallTiles, expert_tiles, tall_tiles
from olivine.backends.cuda.weights import Planes


@triton.jit
def _plus(totals, accs):
    sums = ()
    for t in tl.static_range(len(accs)):
        sums = sums + (totals[t] + accs[t],)
    return sums


@triton.jit
def _step_by_chain(i, steps, COUNT: tl.constexpr, PREFETCH: tl.constexpr, UNROLL: tl.constexpr):
    """The i-th step where those of each of COUNT chains come one after another, and whether it is the last of
    its chain."""
    rounds = (steps - PREFETCH) // UNROLL
    chain = i * 0
    first = i * 0
    is_last = i + 1 == steps
    end = i * 0
    for c in tl.static_range(COUNT - 1):
        end += (PREFETCH - c + COUNT - 1) // COUNT + rounds * ((UNROLL - c + COUNT - 1) // COUNT)
        chain += (i >= end).to(tl.int32)
        first = tl.where(i >= end, end, first)
        is_last = is_last | (i + 1 == end)
    i -= first
    each = tl.maximum((UNROLL - chain + COUNT - 1) // COUNT, 1)
    after = i - (PREFETCH - chain + COUNT - 1) // COUNT
    later = PREFETCH + after // each * UNROLL + after % each * COUNT
    return chain + tl.where(after < 0, i * COUNT, later), is_last


@triton.jit
def _load_tiles(
    place, step, K,
    TILES: tl.constexpr, FORMAT: tl.constexpr, SPAN: tl.constexpr, WIDTH: tl.constexpr, GROUP: tl.constexpr,
    EVEN: tl.constexpr,
):  # fmt: skip
    """The codes and scales of a unit a warp, of each tile."""
    planes, base, first_tile, last, u, at = place
    found = ()
    for t in tl.static_range(TILES):
        first = (first_tile + t) * 16
        tile = base // 8 + tl.minimum(first // 8 + tl.arange(0, 2)[None, None, None, :, None], last // 8)
        row = base + tl.minimum(first + tl.arange(0, 16)[None, :], last)
        found = found + (
            load_codes(planes, tile.to(tl.int64), u, step, K, FORMAT, SPAN, WIDTH, EVEN),
            load_scales(planes, row.to(tl.int64), at, step, K, FORMAT, SPAN, GROUP, EVEN),
        )
    return found


@triton.jit(do_not_specialize=["M", "scaled", "steps"])
def _tall_gemv(
    rows, inv_rms, target, bias, up, experts, planes, M, weight_rows, steps, scaled,
    FORMAT: tl.constexpr, PIECES: tl.constexpr, WARPS: tl.constexpr, BATCH: tl.constexpr,
    TILES: tl.constexpr, WIDTH: tl.constexpr, SPAN: tl.constexpr, GROUP: tl.constexpr,
    PREFETCH: tl.constexpr, UNROLL: tl.constexpr, EVEN: tl.constexpr, GATED: tl.constexpr,
    ACTIVATION: tl.constexpr, AT_ONCE: tl.constexpr,
):  # fmt: skip
    """rows are x, its stride and its columns; target is as in `epilogue`; bias may be None, and so may up:
    a pointer and its stride, and experts: `ExpertPointers` of blocks of BATCH rows. `scaled` is 0 or M.
    PREFETCH and UNROLL are those of `gemv`, of which each of four chains has every fourth unit. AT_ONCE steps
    are loaded before the first of them is multiplied."""
    x, x_stride, K = rows
    first_row = tl.program_id(0) * BATCH  # programs that share a part of the weight start together
    block = tl.program_id(1)
    split = tl.program_id(2)
    last = weight_rows - 1
    base = 0
    start = split * (steps * WARPS)
    m = first_row + tl.arange(0, BATCH)
    m_there = m < M
    x_row = (
        first_row
        + tl.arange(0, 8)[None, :, None, None, None]
        + tl.arange(0, BATCH // 8)[None, None, None, :, None] * 8
    )
    x_there = x_row < M
    release()
    wait()
    if experts is not None:
        expert = tl.load(experts.expert_of + tl.program_id(0))
        if expert < 0:
            return
        base = expert * weight_rows.to(tl.int64)
        m = tl.load(experts.row_ids + m)
        m_there = m >= 0
        x_row = tl.load(experts.row_ids + x_row)
        x_there = x_row >= 0
        x_row = tl.maximum(x_row, 0) // experts.rows_per_input
    else:
        x_row = tl.minimum(x_row, M - 1)  # padding rows repeat the last row
    x_at = x + x_row.to(tl.int64) * x_stride
    u = start + (tl.arange(0, WARPS) * steps)[None, None, :, None, None]
    at = start + (tl.arange(0, WARPS) * steps)[:, None]
    zeros = ()
    for _ in tl.static_range(TILES):
        zeros = zeros + (tl.zeros((WARPS, 16, BATCH), tl.float32),)
    totals = zeros
    accs = zeros
    COUNT: tl.constexpr = CHAINS[FORMAT]
    MASKED: tl.constexpr = not EVEN or experts is not None  # half of an expert's block is padding
    place = (planes, base, block * TILES, last, u, at)
    for i in range(0, steps, AT_ONCE):
        raw = ()
        inputs = ()
        for j in tl.static_range(AT_ONCE):
            last_or_next = tl.minimum(i + j, steps - 1)  # what comes after the last is not multiplied
            step = _step_by_chain(last_or_next, steps, COUNT, PREFETCH, UNROLL)[0]
            raw = raw + (_load_tiles(place, step, K, TILES, FORMAT, SPAN, WIDTH, GROUP, EVEN),)
            y = load_inputs(x_at, x_there, u, step, K, FORMAT, PIECES, WIDTH, SPAN, EVEN, MASKED)
            inputs = inputs + (y,)
        if AT_ONCE > 1:
            keep_loads_early(M)
        for j in tl.static_range(AT_ONCE):
            if i + j < steps:
                step, is_last = _step_by_chain(i + j, steps, COUNT, PREFETCH, UNROLL)
                codes = ()
                scales = ()
                for t in tl.static_range(TILES):
                    codes = codes + (decode_codes(raw[j][2 * t], u, step, FORMAT, SPAN, WIDTH),)
                    scales = scales + (decode_scales(raw[j][2 * t + 1], at, step, FORMAT),)
                accs = accumulate(accs, codes, scales, inputs[j], FORMAT, PIECES)
                if is_last:
                    totals = _plus(totals, accs)
                    accs = zeros
    row_scale = tl.load(inv_rms + m, mask=m_there & (m < scaled), other=1.0)
    for tile in tl.static_range(TILES):
        place = (block * TILES + tile, split, m, m_there)
        up_part = None
        if up is not None:
            up_part = load_up(up, target, place[0], m, m_there, 16)
        y = sum_over_warps((totals[tile],))
        epilogue(y, row_scale, bias, up_part, target, place, GATED, ACTIVATION)


def tall_gemv(
    x: torch.Tensor,
    weight: Planes,
    out: torch.Tensor,
    tiles: GemvTiles,
    *,
    inv_rms: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    activation: int | None = None,
    up: torch.Tensor | None = None,
    experts: ExpertBlocks | None = None,
    tall: TallTiles | None = None,
) -> None:
    """As `gemv`; the rows of experts come in blocks."""
    rows, n, k = out.shape[-2], out.shape[-1], weight.k
    splits = out.shape[0] if out.ndim == 3 else 1
    if experts is None:
        cut, height = tall or tall_tiles(weight, tiles, rows, splits), weight.n
        blocks = -(-rows // cut.batch)
    else:
        cut, height = tall or expert_tiles(weight, experts.rows), weight.n // experts.count
        blocks = len(experts.expert_of)
    _tall_gemv[(blocks, -(-height // (BLOCK_N * cut.tiles)), splits)](
        (x, x.stride(0), k), out if inv_rms is None else inv_rms,
        (out, out.stride(-2), out.stride(0) if out.ndim == 3 else 0, n), bias,
        None if up is None else (up, up.stride(0)),
        None if experts is None else experts.pointers(),
        weight.pointers(), rows, height, tiles.steps // splits, 0 if inv_rms is None else rows,
        FORMAT=int(weight.format), PIECES=tiles.span // tiles.width, WARPS=WARPS, BATCH=cut.batch,
        TILES=cut.tiles, WIDTH=tiles.width, SPAN=tiles.span, GROUP=weight.group,
        PREFETCH=tiles.prefetch, UNROLL=tiles.unroll,
        EVEN=k == tiles.steps * WARPS * tiles.span,
        GATED=activation is not None and up is None, ACTIVATION=activation or 0,
        AT_ONCE=cut.at_once,
        num_warps=WARPS, num_stages=1, enable_fp_fusion=False, **registers(cut.registers), **LAUNCH,
    )  # fmt: skip
