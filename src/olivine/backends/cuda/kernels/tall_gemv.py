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

from olivine.backends.cuda.kernels.dot import INTERPRETED
from olivine.backends.cuda.kernels.epilogue import epilogue, load_up
from olivine.backends.cuda.kernels.expert_blocks import ExpertBlocks
from olivine.backends.cuda.kernels.gemv_parts import CHAINS, accumulate, end_of, load_inputs, sum_over_warps
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
def _first_step(chain, PREFETCH: tl.constexpr, UNROLL: tl.constexpr):
    """Of a chain: its first step, where the run of steps ends that has it, and the chain."""
    in_prefetch = chain < PREFETCH
    return (
        tl.where(in_prefetch, chain, PREFETCH + chain),
        tl.where(in_prefetch, PREFETCH, PREFETCH + UNROLL),
        chain,
    )


@triton.jit
def _step_after(at, STEPS: tl.constexpr, COUNT: tl.constexpr, PREFETCH: tl.constexpr, UNROLL: tl.constexpr):
    """Whether this step is the last of its chain, and what comes after it, where the steps of each of COUNT
    chains come one after another: of a run of PREFETCH steps, and of runs of UNROLL steps."""
    step, end, chain = at
    leaves = step + COUNT >= end
    is_last = leaves & ((end >= STEPS) | (chain >= UNROLL))
    step = tl.where(leaves, end + chain, step + COUNT)
    end = tl.where(leaves, end + UNROLL, end)
    first, first_end, next_chain = _first_step(chain + 1, PREFETCH, UNROLL)
    step, end = tl.where(is_last, first, step), tl.where(is_last, first_end, end)
    return is_last, (step, end, tl.where(is_last, next_chain, chain))


@triton.jit
def _opaque(x):
    """An int32 of which the compiler does not know that it is 0 or 1."""
    if not INTERPRETED:
        x = tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [x], dtype=tl.int32, is_pure=True, pack=1)
    return x


@triton.jit
def _load_tiles(
    place, step,
    K: tl.constexpr, TILES: tl.constexpr, FORMAT: tl.constexpr, SPAN: tl.constexpr, WIDTH: tl.constexpr,
    GROUP: tl.constexpr, EVEN: tl.constexpr, FULL: tl.constexpr,
):  # fmt: skip
    """The codes and scales of a unit a warp, of each tile."""
    planes, first, last, u, at = place
    found = ()
    # In 64 bits before what is constant is added, so that this is free as the offset of a load.
    for t in tl.static_range(TILES):
        tile = t * 2 + tl.arange(0, 2)[None, None, None, :, None]
        row = tl.arange(0, 16)[None, :]
        row_tile = t * 2 + row // 8
        if not FULL:
            tile, row_tile = tl.minimum(tile, last), tl.minimum(row_tile, last)
        found = found + (
            load_codes(planes, first + tile, u, step, K, FORMAT, SPAN, WIDTH, EVEN),
            load_scales(planes, (first + row_tile, row % 8), at, step, K, FORMAT, SPAN, GROUP, EVEN),
        )
    return found


@triton.jit(do_not_specialize=["M", "scaled"])
def _tall_gemv(
    rows, inv_rms, target, bias, up, experts, planes, M, weight_rows, scaled,
    K: tl.constexpr, STEPS: tl.constexpr, FORMAT: tl.constexpr, PIECES: tl.constexpr, WARPS: tl.constexpr,
    BATCH: tl.constexpr, TILES: tl.constexpr, WIDTH: tl.constexpr, SPAN: tl.constexpr, GROUP: tl.constexpr,
    PREFETCH: tl.constexpr, UNROLL: tl.constexpr, EVEN: tl.constexpr, FULL: tl.constexpr,
    GATED: tl.constexpr, ACTIVATION: tl.constexpr, AT_ONCE: tl.constexpr,
):  # fmt: skip
    """rows are x and its stride; target is as in `epilogue`; bias may be None, and so may up:
    a pointer and its stride, and experts: `ExpertPointers` of blocks of BATCH rows. `scaled` is 0 or M.
    PREFETCH and UNROLL are those of `gemv`, of which each of four chains has every fourth unit. AT_ONCE steps
    are loaded before the first of them is multiplied. EVEN: the steps have no columns beyond K; FULL: the
    tiles have no rows beyond the weight's."""
    x, x_stride = rows
    first_row = tl.program_id(0) * BATCH  # programs that share a part of the weight start together
    block = tl.program_id(1)
    split = tl.program_id(2)
    first = block.to(tl.int64) * (2 * TILES)  # in tiles of eight rows
    last = (weight_rows - 1) // 8 - block * (2 * TILES)
    start = split * (STEPS * WARPS)
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
        first += expert * (weight_rows.to(tl.int64) // 8)
        m = tl.load(experts.row_ids + m)
        m_there = m >= 0
        x_row = tl.load(experts.row_ids + x_row)
        x_there = x_row >= 0
        x_row = tl.maximum(x_row, 0) // experts.rows_per_input
    else:
        x_row = tl.minimum(x_row, M - 1)  # padding rows repeat the last row
    x_at = x + x_row.to(tl.int64) * x_stride
    u = start + (tl.arange(0, WARPS) * STEPS)[None, None, :, None, None]
    at = start + (tl.arange(0, WARPS) * STEPS)[:, None]
    zeros = ()
    for _ in tl.static_range(TILES):
        zeros = zeros + (tl.zeros((WARPS, 16, BATCH), tl.float32),)
    totals = zeros
    accs = zeros
    COUNT: tl.constexpr = CHAINS[FORMAT]
    MASKED: tl.constexpr = not EVEN or experts is not None  # half of an expert's block is padding
    place = (planes, first, last, u, at)
    at_step = _first_step(tl.program_id(2) * 0, PREFETCH, UNROLL)
    # Told that there is one round, the compiler of Triton 3.6 left out sums in `batched_gemv`.
    for i in range(0, STEPS if STEPS > AT_ONCE else end_of(STEPS, M), AT_ONCE):
        raw = ()
        inputs = ()
        lasts = ()
        steps = ()
        for _ in tl.static_range(AT_ONCE):
            # What comes after the last step is not multiplied.
            step = tl.minimum(at_step[0], STEPS - 1) if STEPS % AT_ONCE else at_step[0]
            raw = raw + (_load_tiles(place, step, K, TILES, FORMAT, SPAN, WIDTH, GROUP, EVEN, FULL),)
            inputs = inputs + (
                load_inputs(x_at, x_there, u, step, K, FORMAT, PIECES, WIDTH, SPAN, EVEN, MASKED),
            )
            is_last, at_step = _step_after(at_step, STEPS, COUNT, PREFETCH, UNROLL)
            steps = steps + (step,)
            lasts = lasts + (is_last,)
        if AT_ONCE > 1:
            keep_loads_early(M)
        for j in tl.static_range(AT_ONCE):
            if STEPS % AT_ONCE == 0 or i + j < STEPS:
                codes = ()
                scales = ()
                for t in tl.static_range(TILES):
                    codes = codes + (decode_codes(raw[j][2 * t], u, steps[j], FORMAT, SPAN, WIDTH),)
                    scales = scales + (decode_scales(raw[j][2 * t + 1], at, steps[j], FORMAT),)
                accs = accumulate(accs, codes, scales, inputs[j], FORMAT, PIECES)
                # A loop of one round or none, in place of an `if`, which would become a select for every sum
                # of every step.
                for _round in range(_opaque(lasts[j].to(tl.int32))):
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
        cut, height = tall or expert_tiles(experts.rows), weight.n // experts.count
        blocks = len(experts.expert_of)
    _tall_gemv[(blocks, -(-height // (BLOCK_N * cut.tiles)), splits)](
        (x, x.stride(0)), out if inv_rms is None else inv_rms,
        (out, out.stride(-2), out.stride(0) if out.ndim == 3 else 0, n), bias,
        None if up is None else (up, up.stride(0)),
        None if experts is None else experts.pointers(),
        weight.pointers(), rows, height, 0 if inv_rms is None else rows, K=k, STEPS=tiles.steps // splits,
        FORMAT=int(weight.format), PIECES=tiles.span // tiles.width, WARPS=WARPS, BATCH=cut.batch,
        TILES=cut.tiles, WIDTH=tiles.width, SPAN=tiles.span, GROUP=weight.group,
        PREFETCH=tiles.prefetch, UNROLL=tiles.unroll,
        EVEN=k == tiles.steps * WARPS * tiles.span, FULL=height % (BLOCK_N * cut.tiles) == 0,
        GATED=activation is not None and up is None, ACTIVATION=activation or 0,
        AT_ONCE=cut.at_once,
        num_warps=WARPS, num_stages=1, enable_fp_fusion=False, **registers(cut.registers), **LAUNCH,
    )  # fmt: skip
