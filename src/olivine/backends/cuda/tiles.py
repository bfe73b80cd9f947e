"""How products are cut into tiles. The order of a product's sums depends on the weight's shape and format and
on prefill or decode, never on the batch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import torch
import triton

from olivine.backends.cuda.formats import LAYOUTS, Format
from olivine.backends.cuda.weights import Planes
from olivine.backends.devices import HOPPER, Gpu, assumed_gpu, gpu_at

MULTIPROCESSORS = 132  # of a Hopper card: a measure of how many programs fill it, not a limit
BLOCK_N = 16  # rows of the weight that a GEMV program has, or 32, of one row of x
WARPS = 4  # of a GEMV program, which divide its columns
# The units of a warp are summed up in so many chains, by format, and these one after another. Floats have no
# scales, and one chain.
CHAINS = {format: 1 if format is Format.FLOAT else 4 for format in Format}


@dataclass(frozen=True)
class GemvTiles:
    """The tiles of a GEMV. In a step each warp takes a unit of `span` columns, in pieces of `width`."""

    span: int
    width: int
    steps: int  # over all columns: a multiple of the splits
    splits: int  # of split-K
    prefetch: int  # steps of each split whose weights are loaded before the previous kernel is done
    unroll: int  # steps of a round after those, which one row loads at once
    loaded: int  # steps of a round that eight rows load at once
    max_rows: int  # rows of x that a program takes at most
    eight_row_limit: int  # up to so many rows of x, each program takes eight


@dataclass(frozen=True)
class AloneTiles:
    """How a GEMV of one row is compiled."""

    rounds: int  # after the prefetched steps, written out one after another; 0: a plain loop
    ahead: bool  # whether each round is loaded while the one before is multiplied
    registers: int  # of a thread
    rows: int = 16  # of the weight that a program has
    # Whether the tensor cores add up the products of four units: x is then loaded for each unit, with zeros
    # in the columns of the others. Else each unit is multiplied with the columns of all four.
    linked: bool = False
    # Whether the codes of the prefetched steps are decoded before the previous kernel is done.
    decodes_early: bool = False


@dataclass(frozen=True)
class TallTiles:
    """The tiles of a GEMV of many rows, and how it is compiled."""

    batch: int  # rows of x that a program has
    tiles: int  # of sixteen rows of the weight
    registers: int  # of a thread
    at_once: int = 1  # steps that are loaded before the first of them is multiplied


@dataclass(frozen=True)
class GemmTiles:
    """The tiles of a GEMM, and how it is compiled."""

    block_m: int
    block_n: int
    block_k: int
    warps: int
    stages: int


_PREFETCH = 1024  # columns, and no more, but for `longer`, are loaded at once after those
_INT8 = 512  # in its place: bytes are as many registers as four-bit codes of twice the columns
# Bytes of a weight that all programs of eight rows may read together: most of it comes from the L2 cache.
_READ = 36 << 20
_MAX_ROWS = 64
# With 32 rows of x, programs of four tiles were faster in the first, and in the second programs of two tiles
# that load two steps at once.
_FOUR_TILES = frozenset({Format.Q6_K, Format.Q5_0})
_TWO_AT_ONCE = frozenset({Format.Q4_K, Format.INT8})


def gemv_tiles(weight: Planes, split_k: bool) -> GemvTiles:
    """The tiles for decode rows, as they were fastest on an H200. With `split_k`, the product may leave
    several partial sums to be added by the kernel that reads them."""
    layout, is_float = LAYOUTS[weight.format], weight.format is Format.FLOAT
    span, width = layout.unit or weight.tile_width, layout.piece or weight.tile_width
    if is_float and weight.k >= 2048 and weight.k % 512 == 0:
        span = 64  # many rows then wait for the tensor cores half as often
    steps = -(-weight.k // (WARPS * span))
    blocks = -(-weight.n // BLOCK_N)
    splits = _splits(blocks, steps, weight.k, is_float) if split_k else 1
    part = steps // splits
    most = (_INT8 if weight.format is Format.INT8 else _PREFETCH) // (WARPS * span)
    prefetch, unroll = min(part, most), most
    # Ten steps as 4 + 6: with no more than four at once they would be 4 + 3 + 3.
    longer = weight.format is Format.Q4_K and part == 10 and blocks * splits > 4 * MULTIPROCESSORS
    if longer:
        unroll = 6
    if part * WARPS * span <= layout.prefetch_all:
        if is_float or blocks * splits <= 4 * MULTIPROCESSORS:
            prefetch = part
        elif part > 3:  # few registers, and so more programs on a multiprocessor
            prefetch, unroll = 3, 3
    if is_float and weight.codes.element_size() > 2:
        prefetch = -(-prefetch // 2)
    prefetch, unroll = _rounds(part, prefetch, unroll)
    loaded = unroll // 2 if longer else unroll  # eight rows have no registers for more
    eight_row_limit = max(8, min(32, 8 * _READ // max(1, weight.nbytes)))
    return GemvTiles(span, width, steps, splits, prefetch, unroll, loaded, _MAX_ROWS, eight_row_limit)


def alone_tiles(weight: Planes, tiles: GemvTiles, steps: int, programs: int) -> AloneTiles:
    """The tiles for one decode row.

    Where all programs run at once, and their weights arrive before the previous kernel is done, these are
    decoded before, too. In others x is better loaded while weights arrive: with all weights decoded early,
    Gemma 3 4B generated 824 tokens a second in place of 916.
    """
    found = _alone_tiles(weight, tiles, steps, programs)
    # Five programs fit if all they need is loaded at once; but four of many scales.
    five = steps <= tiles.prefetch and not (LAYOUTS[weight.format].sixteens and steps > 3)
    places = (5 if five else 4) * multiprocessors(weight.codes.device)
    return replace(found, decodes_early=programs <= places)


def _alone_tiles(weight: Planes, tiles: GemvTiles, steps: int, programs: int) -> AloneTiles:
    """Few programs are short of loads in flight, many of room for each other, as was measured on an H200."""
    rounds = (steps - tiles.prefetch) // tiles.unroll
    written = rounds if rounds <= 4 else 0
    processors, is_int8 = multiprocessors(weight.codes.device), weight.format is Format.INT8
    sixteens = LAYOUTS[weight.format].sixteens
    if programs <= 4 * processors:
        return AloneTiles(written, written > 0, 168)
    # Many programs of INT8 or of formats with a scale for 16 columns, and those of 32 rows, are linked: else
    # their registers spill. With twice the rows, what is loaded of x serves both halves; that was measured
    # for Q4_K, and for a head in Q6_K. Six steps of Q4_K, and ten as 4 + 6, were faster with sixteen rows.
    tall = weight.format is Format.Q4_K and steps > 6 and tiles.unroll <= 4
    if tall and _filled(-(-programs // 2), 3 * processors, 0.8):
        return AloneTiles(written, False, 168, rows=32, linked=True)
    if rounds == 0:
        if weight.format is Format.Q6_K and programs > 16 * processors:
            return AloneTiles(0, False, 168, rows=32, linked=True)  # the weight is a head's
        return AloneTiles(0, False, 96 if is_int8 else 168, linked=sixteens)
    if steps * WARPS * tiles.span <= LAYOUTS[weight.format].prefetch_all:
        return AloneTiles(written, False, 72)  # seven programs fit a multiprocessor
    if is_int8 or programs <= 5 * processors:  # five programs of 96 registers fit a multiprocessor
        return AloneTiles(written, False, 96, linked=is_int8 or sixteens)
    if sixteens:
        if programs <= 16 * processors:
            return AloneTiles(written, False, 128, linked=True)
        return AloneTiles(written, rounds == 1, 128 if rounds == 1 else 96, linked=True)  # a head's
    if steps <= 8 and _filled(programs, 6 * processors):  # six of 80 registers, too few for longer programs
        return AloneTiles(written, False, 80)
    return AloneTiles(written, False, 96 if _filled(programs, 5 * processors) else 168)


def _filled(programs: int, places: int, share: float = 0.9) -> bool:
    """Whether programs that take turns in so many places fill this share of them."""
    return programs >= share * places * -(-programs // places)


def tall_tiles(weight: Planes, tiles: GemvTiles, rows: int, splits: int) -> TallTiles:
    """The tiles for so many decode rows: as tall as leaves programs for all multiprocessors, and registers
    for the sums of a chain and of all chains before."""
    batch = min(tiles.max_rows, 32, max(16, triton.next_power_of_2(rows)))
    others, processors = -(-rows // batch) * splits, multiprocessors(weight.codes.device)
    most = 128 if weight.format in _FOUR_TILES else 64

    def programs(tall: int) -> int:
        return -(-weight.n // (BLOCK_N * tall)) * others

    fitting = (t for t in (4, 2) if batch * t <= most and programs(t) >= 1.9 * processors)
    tall = next(fitting, 1)
    if batch * tall <= 32:
        return TallTiles(batch, tall, 128)
    if (batch, tall) == (32, 2) and 2 * processors < programs(tall) <= 3 * processors:
        return TallTiles(batch, tall, 168)  # three fit a multiprocessor, and of those with 255 two
    two = (batch, tall) == (32, 2) and weight.format in _TWO_AT_ONCE
    return TallTiles(batch, tall, 255, 2 if two else 1)


def expert_tiles(rows: int) -> TallTiles:
    """The tiles for decode rows that come in blocks of so many of one expert's."""
    return TallTiles(rows, 4 if rows == 8 else 2, 128)


def _rounds(steps: int, prefetch: int, unroll: int) -> tuple[int, int]:
    """Of no more than these, the steps to prefetch and to load at once after that: in the fewest rounds, each
    about as long as the others."""
    if prefetch >= steps:
        return prefetch, 1
    found = [(p, u) for p in range(1, prefetch + 1) for u in range(1, unroll + 1) if (steps - p) % u == 0]
    return min(found, key=lambda pair: ((steps - pair[0]) // pair[1], abs(pair[0] - pair[1]), -pair[0]))


def _splits(blocks: int, steps: int, columns: int, is_float: bool) -> int:
    """Enough for all multiprocessors to read, and for no program to read for long.

    Quantized weights are little to read and much to decode: two programs a multiprocessor, each with whole
    rounds of four steps, were faster.
    """
    most = 9 if blocks > 9 else 16  # a router has few rows
    even = [s for s in range(1, most + 1) if steps % s == 0]
    wanted = [
        s
        for s in even
        if blocks * s >= (0.9 if is_float else 1.9) * MULTIPROCESSORS
        and (columns <= 1152 * s or blocks * s >= 3.9 * MULTIPROCESSORS)
    ]
    whole = [s for s in wanted if steps // s <= 4 or steps // s % 4 == 0]
    if whole and not is_float:
        return whole[0]
    return wanted[0] if wanted else even[-1]


@cache
def gpu_of(device: torch.device) -> Gpu:
    """The GPU that kernels are chosen for. The meta device stands for the one that is assumed."""
    if device.type == "cuda":
        found = gpu_at(device.index or 0)
        assert found is not None
        return found
    return (assumed_gpu() if device.type == "meta" else None) or HOPPER


def shared_memory(device: torch.device) -> int:
    """Bytes of shared memory that a program may have."""
    return gpu_of(device).shared_memory


def multiprocessors(device: torch.device) -> int:
    return gpu_of(device).multiprocessors


def tiling_is_bit_exact(device: torch.device) -> bool:
    """Whether a row's sums were seen to have the same bits in tiles of any size: on Hopper cards. Others,
    whose larger tensor core instructions were not tested, use one tile size for any number of rows."""
    return gpu_of(device).capability[0] == 9


# For float weights: the larger the tile, the less is read, and the fewer programs there are. All sum up
# sixteen columns at a time, in order.
GEMM_FLOAT_TILES = (
    GemmTiles(128, 256, 64, 8, 3),
    GemmTiles(128, 128, 64, 8, 4),
    GemmTiles(64, 128, 64, 4, 5),
    GemmTiles(64, 64, 128, 4, 4),
    GemmTiles(64, 32, 128, 4, 6),
)


def gemm_float_tiles(weight: Planes, rows: int, block_m: int | None = None) -> GemmTiles:
    """The tiles for so many prefill rows and a float weight; a mixture's rows come in blocks of `block_m`."""
    if weight.codes.element_size() > 2:
        return GemmTiles(block_m or 64, 64, 64, 4, 2)
    device = weight.codes.device
    large = shared_memory(device) >= 160 << 10
    if block_m is not None:
        return GemmTiles(block_m, 256, 64, 8, 3) if large else GemmTiles(block_m, 128, 64, 4, 3)
    if not large:
        return GemmTiles(128, 128, 64, 8, 3)
    if not tiling_is_bit_exact(device):
        return GEMM_FLOAT_TILES[0]

    def time(tile: GemmTiles) -> int:
        """In waves over all multiprocessors, each as long as a tile's operands take to read."""
        programs = -(-rows // tile.block_m) * -(-weight.n // tile.block_n)
        return -(-programs // multiprocessors(device)) * (tile.block_m + tile.block_n)

    return min(GEMM_FLOAT_TILES, key=time)


GROUPED_DECODE_ROWS = 16  # of so many decode rows, those of an expert read its weight together


def decode_block(rows: int, experts: int) -> int:
    """The decode rows of a block of `ExpertBlocks`: eight, or twice as many where most experts have more than
    eight, so that their weights are read once."""
    return 8 if rows < 12 * experts else 16


def expert_block(rows: int, experts: int, is_float: bool, device: torch.device) -> int:
    """The rows of a block of `ExpertBlocks` of a GEMM, so that most experts have one, or else little padding.

    Blocks of less than 64 rows are for weights that are decoded in registers.
    """
    if not tiling_is_bit_exact(device):
        return 64
    each = rows / experts
    least = 64 if is_float else 16
    return next((block for block in (16, 32, 64) if block >= max(least, each + 2 * each**0.5)), 128)


def gemm_quantized_tiles(
    weight: Planes, gated: bool, rows: int, experts: tuple[int, int] | None = None
) -> GemmTiles | None:
    """The tiles of a GEMM that decodes a quantized weight in registers, the fastest of some dozens on an
    H200; None: the weight is better expanded first. Of a mixture, `experts` has the rows of a block and
    how many experts there are.

    Few rows are worth it where there are tiles for all multiprocessors, and where both ways were seen to give
    the same bits.
    """
    device, columns = weight.codes.device, LAYOUTS[weight.format].gemm_columns
    block_k = max(columns, weight.group) if weight.format is Format.INT8 else columns
    if experts is not None:
        block_m, count = experts
        if rows >= LAYOUTS[weight.format].expert_rows * count and tiling_is_bit_exact(device):
            return None
        return GemmTiles(block_m, 64, block_k, 4, 2 if block_k == 128 else 3)
    if not tiling_is_bit_exact(device):
        return None
    if rows <= 32:
        tiles = GemmTiles(32, 64, block_k, 4, 4)
    elif gated:
        tiles = GemmTiles(128, 64, block_k, 4, 2 if block_k == 128 else 3)
    else:
        tiles = GemmTiles(64, 64, block_k, 4, 3)
    outs = weight.n // 2 if gated else weight.n
    programs = -(-outs // tiles.block_n) * -(-rows // tiles.block_m)
    return tiles if rows <= 128 and programs >= multiprocessors(device) else None
