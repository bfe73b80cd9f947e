"""y = x @ w.T for one decode row and quantized weights, with the bits that `gemv` gives each row.

The tensor cores multiply sixteen rows of a weight by eight columns, which `gemv` has for eight rows of x. For
one row, seven of them would be idle, and all lanes of a row decode the scales that one of them needs. So here
the columns are for different units of the weight: columns 2 i and 2 i + 1 have x for two scales of the unit
of chain i, or both for its only one. Sums of x, for formats with a minimum or a middle, are then made for
four units at once, and a lane decodes the scales of one unit in four, and scales one sum in four.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from olivine.backends.cuda.formats import BLOCK, HAS_MINIMUM, HAS_OFFSET, PACKED, SIXTEENS
from olivine.backends.cuda.kernels.dot import dot
from olivine.backends.cuda.kernels.epilogue import epilogue, load_up
from olivine.backends.cuda.kernels.gemv_parts import end_of
from olivine.backends.cuda.kernels.gemv_weights import (
    decode_codes,
    decode_scales,
    fragment,
    load_codes,
    load_scales,
    piece_start,
    run_columns,
)
from olivine.backends.cuda.kernels.pdl import (
    LAUNCH,
    keep_early,
    keep_loads_early,
    registers,
    release,
    wait,
)
from olivine.backends.cuda.tiles import BLOCK_N, WARPS, AloneTiles, GemvTiles, alone_tiles
from olivine.backends.cuda.weights import Planes


@triton.jit
def _load(
    at, step, K,
    COUNT: tl.constexpr, FORMAT: tl.constexpr, SPAN: tl.constexpr, WIDTH: tl.constexpr, GROUP: tl.constexpr,
    EVEN: tl.constexpr,
):  # fmt: skip
    """The codes of COUNT units from `step` on, and then the scales of each four, for `_accumulate`."""
    planes, tile, row, u, unit = at
    found = ()
    for s in tl.static_range(COUNT):
        found = found + (load_codes(planes, tile, u, step + s, K, FORMAT, SPAN, WIDTH, EVEN),)
    for r in tl.static_range((COUNT + 3) // 4):
        units = unit + _chain(COUNT, r)
        found = found + (load_scales(planes, row, units, step + r * 4, K, FORMAT, SPAN, GROUP, EVEN),)
    return found


@triton.jit
def _chain(COUNT: tl.constexpr, ROUND: tl.constexpr):
    """The four chains, [4, 1, 1, 1]; those that have no unit in this round repeat the last."""
    return tl.minimum(tl.arange(0, 4), COUNT - ROUND * 4 - 1)[:, None, None, None]


@triton.jit
def _decode(
    raw, at, step,
    COUNT: tl.constexpr, FORMAT: tl.constexpr, SPAN: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    _, _, _, u, unit = at
    found = ()
    for s in tl.static_range(COUNT):
        found = found + (decode_codes(raw[s], u, step + s, FORMAT, SPAN, WIDTH),)
    for r in tl.static_range((COUNT + 3) // 4):
        found = found + (decode_scales(raw[COUNT + r], unit + _chain(COUNT, r), step + r * 4, FORMAT),)
    return found


@triton.jit
def _kept_early(weights, COUNT: tl.constexpr, PIECES: tl.constexpr):
    """The weights, their codes decoded before the wait: after it, x is all that is loaded, and what is left
    is to multiply and to add up. The codes take two to four times the registers that they were loaded to."""
    found = ()
    for s in tl.static_range(COUNT):
        codes = ()
        for piece in tl.static_range(PIECES):
            codes = codes + (keep_early(weights[s][piece]),)
        for piece in tl.static_range(PIECES, len(weights[s])):  # a constant
            codes = codes + (weights[s][piece],)
        found = found + (codes,)
    for r in tl.static_range((COUNT + 3) // 4):
        found = found + (weights[COUNT + r],)
    return found


@triton.jit
def _inputs(
    x, u, step, K,
    COUNT: tl.constexpr, FORMAT: tl.constexpr, PIECES: tl.constexpr, WIDTH: tl.constexpr, SPAN: tl.constexpr,
    EVEN: tl.constexpr, LINKED: tl.constexpr,
):  # fmt: skip
    """x for COUNT units from `step` on: of each four units, for each two scales (or the only one), the pieces
    of a scale, with columns for all four. LINKED: only for sums of x, and then the pieces of each unit, with
    zeros elsewhere."""
    SCALES: tl.constexpr = PIECES if BLOCK[FORMAT] == 256 else 1
    EACH: tl.constexpr = PIECES // SCALES  # pieces of a scale
    TWO: tl.constexpr = 2 if SCALES > 1 else 1
    PAIRS: tl.constexpr = SCALES // TWO if HAS_OFFSET[FORMAT] or not LINKED else 0
    NEXT: tl.constexpr = 32 if SIXTEENS[FORMAT] else WIDTH  # columns of x from a piece to the next
    column = tl.arange(0, 8)[None, :, None, None, None]
    found = ()
    for r in tl.static_range((COUNT + 3) // 4):
        for pair in tl.static_range(PAIRS):
            for piece in tl.static_range(EACH):
                units = u + column // 2
                first, more = piece_start(units, step + r * 4, FORMAT, pair * TWO + piece, SPAN, WIDTH)
                if TWO == 2:
                    first += column % 2 * NEXT
                at = first + run_columns(WIDTH // 4)
                if EVEN and COUNT - r * 4 >= 4:
                    y = tl.load(x + at + more)
                else:
                    there = column // 2 < COUNT - r * 4
                    if not EVEN:
                        there = there & (at + more < K)
                    y = tl.load(x + at + more, mask=there, other=0.0)
                found = found + (_operand(y),)
    if LINKED:
        for s in tl.static_range(COUNT):
            for piece in tl.static_range(PIECES):
                first, more = piece_start(u, step + s, FORMAT, piece, SPAN, WIDTH)
                at = first + run_columns(WIDTH // 4)
                there = column == 2 * (s % 4) + piece // EACH % 2
                if not EVEN:
                    there = there & (at + more < K)
                found = found + (_operand(tl.load(x + at + more, mask=there, other=0.0)),)
    return found


@triton.jit
def _operand(x):
    """x as it was loaded, [4, 8, WARPS, 1, RUN], to [WARPS, 4 · RUN, 8]."""
    return tl.permute(fragment(x.to(tl.bfloat16), 4), (0, 2, 1))


@triton.jit
def _as_sums(scale):
    """[4, 8, WARPS, ROWS / 8] to [WARPS, ROWS, 4]."""
    return tl.reshape(tl.permute(scale, (2, 3, 1, 0)), (scale.shape[2], scale.shape[3] * 8, 4))


@triton.jit
def _accumulate(
    acc, weights, inputs,
    COUNT: tl.constexpr, FORMAT: tl.constexpr, PIECES: tl.constexpr, LINKED: tl.constexpr,
):  # fmt: skip
    """acc, [WARPS, ROWS, 4 chains], plus the products of COUNT units a warp.

    LINKED: the tensor cores add up those of four units, one after another. Else each is multiplied with the
    columns of all four, and a lane keeps what is of its own chain.
    """
    WARPS: tl.constexpr = acc.shape[0]
    ROWS: tl.constexpr = acc.shape[1]
    SCALES: tl.constexpr = PIECES if BLOCK[FORMAT] == 256 else 1
    EACH: tl.constexpr = PIECES // SCALES  # pieces of a scale
    TWO: tl.constexpr = 2 if SCALES > 1 else 1
    PAIRS: tl.constexpr = SCALES // TWO
    # Inputs before those of single units.
    SHARED: tl.constexpr = (COUNT + 3) // 4 * PAIRS * EACH if HAS_OFFSET[FORMAT] else 0
    zeros = tl.zeros((WARPS, ROWS, 8), tl.float32)
    chain = tl.arange(0, 4)[None, None, :]
    for r in tl.static_range((COUNT + 3) // 4):
        scales = weights[COUNT + r]
        for pair in tl.static_range(PAIRS):
            # The sum of the inputs, as in `accumulate`: of all units at once.
            total = zeros
            if HAS_OFFSET[FORMAT]:
                for piece in tl.static_range(EACH):
                    total = dot(weights[r * 4][PIECES], inputs[(r * PAIRS + pair) * EACH + piece], total)
            start = zeros if HAS_MINIMUM[FORMAT] else total
            if LINKED:
                z = start
                for s in tl.static_range(r * 4, min(COUNT, r * 4 + 4)):
                    for piece in tl.static_range(pair * TWO * EACH, (pair + 1) * TWO * EACH):
                        z = dot(weights[s][piece], inputs[SHARED + s * PIECES + piece], z)
                ys = tl.split(tl.reshape(z, (WARPS, ROWS, 4, 2)))
            else:
                ys = ()
                for i in tl.static_range(TWO):
                    y = tl.zeros_like(acc)
                    for s in tl.static_range(r * 4, min(COUNT, r * 4 + 4)):
                        z = start
                        for piece in tl.static_range(EACH):
                            own = weights[s][(pair * TWO + i) * EACH + piece]
                            z = dot(own, inputs[(r * PAIRS + pair) * EACH + piece], z)
                        both = tl.split(tl.reshape(z, (WARPS, ROWS, 4, 2)))
                        # Chains without a unit take the last one's, and have no x.
                        y = tl.where(chain >= s - r * 4, both[i], y)
                    ys = ys + (y,)
            totals = tl.split(tl.reshape(total, (WARPS, ROWS, 4, 2)))
            for i in tl.static_range(TWO):
                acc = tl.fma(ys[i], _as_sums(scales[pair * TWO + i]), acc)
                if HAS_MINIMUM[FORMAT]:
                    acc = tl.fma(totals[i], _as_sums(scales[SCALES + pair * TWO + i]), acc)
    return acc


@triton.jit
def _sum(acc):
    """[WARPS, ROWS, 4 chains] to [ROWS, 1]: the chains of a warp one after another, then the warps as in
    `sum_over_warps`. By way of shared memory once: a lane then has all numbers of a row."""
    apart = tl.permute(tl.reshape(acc, (2, 2, acc.shape[1], 2, 2)), (2, 1, 0, 3, 4))
    even, odd = tl.split(apart)
    first, third = tl.split(even)
    second, fourth = tl.split(odd)
    low, high = tl.split(((first + second) + third) + fourth)
    even, odd = tl.split(low + high)
    return (even + odd)[:, None]


@triton.jit(do_not_specialize=["M", "scaled"])
def _gemv_alone(
    rows, inv_rms, planes, weight_rows, target, bias, up, experts, M, scaled,
    WARPS: tl.constexpr, CONSTANTS: tl.constexpr, GATED: tl.constexpr, ACTIVATION: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    row_program(
        (tl.program_id(0), tl.program_id(1), tl.program_id(2)),
        rows, inv_rms, planes, weight_rows, target, bias, up, experts, M, scaled,
        WARPS, CONSTANTS, GATED, ACTIVATION, EARLY,
    )  # fmt: skip


class RowConstants(NamedTuple):
    """What is compiled into the programs of a weight. After the `prefetch` steps come `rounds` of `unroll`
    steps, each loaded one round ahead or when its turn comes; if there are too many, `rounds` is 0."""

    format: int
    columns: int
    steps: int  # of a split
    pieces: int  # of a unit
    width: int  # columns of a piece
    span: int  # columns of a unit
    group: int  # columns that have a scale, of formats that leave it open
    prefetch: int
    unroll: int
    rounds: int
    ahead: bool
    linked: bool  # this and the next as in `AloneTiles`
    decodes_early: bool
    rows: int  # of the weight that a program has
    even: bool  # whether the last unit is a whole one
    full: bool  # whether the last program has all its rows


@triton.jit
def row_program(
    place, rows, inv_rms, planes, weight_rows, target, bias, up, experts, M, scaled,
    WARPS: tl.constexpr, CONSTANTS: tl.constexpr, GATED: tl.constexpr, ACTIVATION: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """A place is a block of rows of the weight, a split of its columns, and a row of the results. Rows are x
    and its stride; weight_rows are those of the weight, or of an expert; target is as in `epilogue`.
    Bias may be None, and so may up, a pointer and its stride, and experts: ids, known EARLY or not, and
    rows_per_input. `scaled` is 0 or M."""
    FORMAT: tl.constexpr = CONSTANTS.format
    PIECES: tl.constexpr = CONSTANTS.pieces
    WIDTH: tl.constexpr = CONSTANTS.width
    SPAN: tl.constexpr = CONSTANTS.span
    GROUP: tl.constexpr = CONSTANTS.group
    PREFETCH: tl.constexpr = CONSTANTS.prefetch
    UNROLL: tl.constexpr = CONSTANTS.unroll
    ROUNDS: tl.constexpr = CONSTANTS.rounds
    AHEAD: tl.constexpr = CONSTANTS.ahead
    LINKED: tl.constexpr = CONSTANTS.linked
    DECODES_EARLY: tl.constexpr = CONSTANTS.decodes_early
    ROWS: tl.constexpr = CONSTANTS.rows
    K: tl.constexpr = CONSTANTS.columns
    STEPS: tl.constexpr = CONSTANTS.steps
    EVEN: tl.constexpr = CONSTANTS.even
    tl.static_assert(ROUNDS > 0 or not AHEAD)
    x, x_stride = rows
    block, split, which = place
    first = block.to(tl.int64) * (ROWS // 8)  # in tiles of eight rows
    x_row = which
    if experts is not None:
        if not EARLY:
            wait()  # before the release, as in `gemv`
        ids, rows_per_input = experts
        first += tl.load(ids + which) * (weight_rows.to(tl.int64) // 8)
        x_row = which // rows_per_input
    x += x_row.to(tl.int64) * x_stride
    # Constants are added to the first tile in 64 bits: so they are free as offsets of loads.
    tile = tl.arange(0, ROWS // 8)[None, None, None, :]
    if not CONSTANTS.full:
        tile = tl.minimum(tile, (weight_rows - 1) // 8 - block * (ROWS // 8))
    # Rows [1, 8, 1, ROWS / 8] and units [1, 1, WARPS, 1], or four of them, have the layout of a product's
    # sums: four units on the lanes of a row. If the compiler knew that rows are neighbors, a lane would load
    # two.
    place_in_tile = tl.arange(0, 8)[None, :, None, None] ^ tl.minimum(M - 1, 0)
    unit = split * (STEPS * WARPS) + tl.arange(0, WARPS)[None, None, :, None] * STEPS
    u = split * (STEPS * WARPS) + tl.arange(0, WARPS)[None, None, :, None, None] * STEPS
    at = (planes, first + tile[:, :, :, :, None], (first + tile, place_in_tile), u, unit)
    raw = _load(at, 0, K, PREFETCH, FORMAT, SPAN, WIDTH, GROUP, EVEN)
    if AHEAD:
        ahead = _load(at, PREFETCH, K, UNROLL, FORMAT, SPAN, WIDTH, GROUP, EVEN)
    m = tl.full((1,), 0, tl.int32) + which
    up_part = None
    if up is not None:
        up_part = load_up(up, target, block, m, m < M, ROWS)
    # As in `gemv`: a loop keeps the compiler from decoding before the release.
    for _ in range(tl.minimum(M, 16) if PACKED[FORMAT] else 1):
        release()
    weights = _decode(raw, at, 0, PREFETCH, FORMAT, SPAN, WIDTH)
    if experts is None or EARLY:
        if DECODES_EARLY:
            weights = _kept_early(weights, PREFETCH, PIECES)
            wait()
        else:
            # A loop and a second release keep it from decoding scales after the wait.
            for _ in range(tl.minimum(M, 1)):
                wait()
            if BLOCK[FORMAT] == 256 and HAS_MINIMUM[FORMAT]:
                release()
    row_scale = tl.load(inv_rms + m, mask=m < scaled, other=1.0)
    inputs = _inputs(x, u, 0, K, PREFETCH, FORMAT, PIECES, WIDTH, SPAN, EVEN, LINKED)
    acc = tl.zeros((WARPS, ROWS, 4), tl.float32)
    acc = _accumulate(acc, weights, inputs, PREFETCH, FORMAT, PIECES, LINKED)
    if ROUNDS > 0:
        for i in tl.static_range(ROUNDS):
            step = PREFETCH + i * UNROLL
            if AHEAD:
                raw = ahead
                if i + 1 < ROUNDS:
                    ahead = _load(at, step + UNROLL, K, UNROLL, FORMAT, SPAN, WIDTH, GROUP, EVEN)
            else:
                raw = _load(at, step, K, UNROLL, FORMAT, SPAN, WIDTH, GROUP, EVEN)
            inputs = _inputs(x, u, step, K, UNROLL, FORMAT, PIECES, WIDTH, SPAN, EVEN, LINKED)
            if not AHEAD:
                keep_loads_early(M)
            weights = _decode(raw, at, step, UNROLL, FORMAT, SPAN, WIDTH)
            acc = _accumulate(acc, weights, inputs, UNROLL, FORMAT, PIECES, LINKED)
    elif STEPS > PREFETCH:
        for step in range(PREFETCH, end_of(STEPS, M), UNROLL):
            more = _load(at, step, K, UNROLL, FORMAT, SPAN, WIDTH, GROUP, EVEN)
            w = _decode(more, at, step, UNROLL, FORMAT, SPAN, WIDTH)
            y = _inputs(x, u, step, K, UNROLL, FORMAT, PIECES, WIDTH, SPAN, EVEN, LINKED)
            acc = _accumulate(acc, w, y, UNROLL, FORMAT, PIECES, LINKED)
    epilogue(_sum(acc), row_scale, bias, up_part, target, (block, split, m, m < M), GATED, ACTIVATION)


def gemv_alone(
    x: torch.Tensor,
    weight: Planes,
    out: torch.Tensor,
    tiles: GemvTiles,
    *,
    inv_rms: torch.Tensor | None,
    bias: torch.Tensor | None,
    activation: int | None,
    up: torch.Tensor | None,
    experts: tuple[torch.Tensor, int] | None,
    early: bool,
) -> None:
    """As `gemv`, of one row, or of rows that each have an expert: `experts` are ids and rows_per_input, and
    `early` says that the ids are there before the previous kernel is done."""
    splits, rows = out.shape[0] if out.ndim == 3 else 1, out.shape[-2]
    height = height_of(weight, out, activation, experts)
    alone = alone_tiles(weight, tiles, tiles.steps // splits, -(-height // BLOCK_N) * splits * rows)
    _gemv_alone[(-(-height // alone.rows), splits, rows)](
        (x, x.stride(0)), out if inv_rms is None else inv_rms,
        *weight_arguments(weight, out, bias, tiles, height), None if up is None else (up, up.stride(0)),
        experts, rows, 0 if inv_rms is None else rows,
        WARPS=WARPS, CONSTANTS=constants_of(weight, tiles, alone, splits, height),
        GATED=activation is not None and up is None, ACTIVATION=activation or 0, EARLY=early,
        num_warps=WARPS, num_stages=1, enable_fp_fusion=False, **registers(alone.registers), **LAUNCH,
    )  # fmt: skip


def height_of(
    weight: Planes, out: torch.Tensor, activation: int | None, experts: tuple[torch.Tensor, int] | None
) -> int:
    """The rows of the weight that a result has: of one expert, if it has those of several."""
    n = out.shape[-1]
    return weight.n if experts is None else (1 if activation is None else 2) * (n + -n % 8)


def weight_arguments(
    weight: Planes, out: torch.Tensor, bias: torch.Tensor | None, tiles: GemvTiles, height: int
) -> tuple[Any, ...]:
    """Planes, rows, target and bias, as `row_program` takes them."""
    splits, plane = (out.shape[0], out.stride(0)) if out.ndim == 3 else (1, 0)
    assert splits == tiles.splits, "rounds of steps are those of a split"
    target = (out, out.stride(-2), plane, out.shape[-1])
    return weight.pointers(), height, target, bias


def constants_of(
    weight: Planes, tiles: GemvTiles, alone: AloneTiles, splits: int, height: int
) -> RowConstants:
    return RowConstants(
        format=int(weight.format), columns=weight.k, steps=tiles.steps // splits,
        pieces=tiles.span // tiles.width, width=tiles.width, span=tiles.span, group=weight.group,
        prefetch=tiles.prefetch, unroll=tiles.unroll, rounds=alone.rounds, ahead=alone.ahead,
        linked=alone.linked, decodes_early=alone.decodes_early, rows=alone.rows,
        even=weight.k == tiles.steps * WARPS * tiles.span, full=height % alone.rows == 0,
    )  # fmt: skip
