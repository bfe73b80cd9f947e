"""How a product is cut into tiles. The order of its sums is a matter of the weight's shape and kind and the
kind of row, never of the batch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
import triton

from olivine.backends.cuda.weights import Planes, tile_width

MULTIPROCESSORS = 132  # of a Hopper card: a measure of how many programs fill it, not a limit
BLOCK_N = 16  # of a weight, that a program for few generated rows takes
WARPS = 4  # that share its columns


@dataclass(frozen=True)
class GemvTiles:
    """Of a product with generated rows. A step is a unit of `span` columns a warp, in pieces of `width`."""

    span: int
    width: int
    steps: int  # over all columns: a multiple of the splits
    splits: int
    prefetch: int  # steps of each split that are fetched before the rows are there, all at once
    unroll: int  # steps that are taken at once after them
    max_rows: int  # rows that it takes at most, as its registers allow
    eight_row_limit: int  # rows, up to which programs have eight each


@dataclass(frozen=True)
class GemmTiles:
    """Of a product with prompt rows."""

    block_m: int
    block_n: int
    block_k: int
    warps: int
    stages: int


# Columns of a unit and of its pieces, by kind (see kernels/gemv_weights.py); those of others are a tile's.
_UNITS = {
    0: (32, 16),
    2: (32, 16),
    3: (32, 16),
    4: (64, 32),
    5: (64, 32),
    6: (64, 16),
    7: (32, 16),
    8: (32, 16),
}
_AHEAD, _AFTER = 1024, 1024  # columns
_READ = 36 << 20  # bytes of a weight that all programs of eight rows may ask for: most come from the cache
# All of them ahead, by kind, if there are no more than these: then nothing is left to wait for, and the
# registers suffice for four programs on a multiprocessor.
_ALL_AHEAD = {0: 1280, 1: 1280, 2: 1280, 3: 1152, 7: 1152}


def gemv_tiles(weight: Planes, split_k: bool) -> GemvTiles:
    """The tiles for generated rows, as they were fastest on an H200."""
    wide = tile_width(weight)
    span, width = _UNITS.get(weight.kind, (wide, wide))
    if weight.kind == 0 and weight.k >= 2048 and weight.k % 512 == 0:
        span = 64  # many rows then wait for the tensor cores half as often
    steps = -(-weight.k // (WARPS * span))
    splits = _splits(-(-weight.n // BLOCK_N), steps, weight.k) if split_k else 1
    part = steps // splits
    ahead = min(part, _AHEAD // (WARPS * span))
    if part * WARPS * span <= _ALL_AHEAD.get(weight.kind, 0):
        ahead = part
    if weight.kind == 0 and weight.codes.element_size() > 2:
        ahead = -(-ahead // 2)
    after = max(c for c in range(1, _AFTER // (WARPS * span) + 1) if (part - ahead) % c == 0)
    batch = 32 if weight.kind in (4, 5, 6) else 64
    eights = max(8, min(32, 8 * _READ // max(1, weight.nbytes)))
    return GemvTiles(span, width, steps, splits, ahead, after, batch, eights)


def _splits(blocks: int, steps: int, columns: int) -> int:
    """Enough for all processors to read, and for no program to read for long."""
    even = [s for s in range(1, 10) if steps % s == 0]
    wanted = [
        s
        for s in even
        if blocks * s >= 0.9 * MULTIPROCESSORS
        and (columns <= 1152 * s or blocks * s >= 3.9 * MULTIPROCESSORS)
    ]
    return wanted[0] if wanted else even[-1]


@cache
def shared_memory(device: torch.device) -> int:
    """Bytes that a program may have; a Hopper card's, where there is no GPU."""
    if device.type == "cpu":
        return 227 << 10
    found = triton.runtime.driver.active.utils.get_device_properties(device.index or 0)
    return int(found["max_shared_mem"])


@cache
def multiprocessors(device: torch.device) -> int:
    """How many there are; a Hopper card's, where there is no GPU."""
    if device.type == "cpu":
        return MULTIPROCESSORS
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


@cache
def tiling_is_bit_exact(device: torch.device) -> bool:
    """Whether sums were seen to come out alike, however a product is cut: on Hopper cards. Others, whose
    larger tensor core instructions nobody has run, take one way for any number of rows."""
    return device.type == "cpu" or torch.cuda.get_device_capability(device)[0] == 9


# For prompt rows and floats: the larger the tile, the less is read, and the fewer programs there are. All sum
# up sixteen columns at a time, in their order.
GEMM_FLOAT_TILES = (
    GemmTiles(128, 256, 64, 8, 3),
    GemmTiles(128, 128, 64, 8, 4),
    GemmTiles(64, 128, 64, 4, 5),
    GemmTiles(64, 64, 128, 4, 4),
    GemmTiles(64, 32, 128, 4, 6),
)


def gemm_float_tiles(weight: Planes, rows: int, group: int | None = None) -> GemmTiles:
    """The tiles for so many prompt rows and floats; those of a mixture come in groups."""
    if weight.codes.element_size() > 2:
        return GemmTiles(group or 64, 64, 64, 4, 2)
    if group is not None:
        return GemmTiles(group, 128, 64, 4, 3)
    device = weight.codes.device
    if shared_memory(device) < 160 << 10:
        return GemmTiles(128, 128, 64, 8, 3)
    if not tiling_is_bit_exact(device):
        return GEMM_FLOAT_TILES[0]

    def time(tile: GemmTiles) -> int:
        """In turns of all processors, each as long as a tile's operands take to read."""
        programs = -(-rows // tile.block_m) * -(-weight.n // tile.block_n)
        return -(-programs // multiprocessors(device)) * (tile.block_m + tile.block_n)

    return min(GEMM_FLOAT_TILES, key=time)


def gemm_quantized_tiles(weight: Planes, gated: bool, rows: int | None = None) -> GemmTiles:
    """The tiles for prompt rows and quantized weights: the fastest of some dozens, measured on an H200.

    Fewer rows may have smaller tiles where those were found to give the same bits.
    """
    known = weight.kind == 4 or (weight.kind == 1 and weight.group == 32)
    if rows is not None and known and tiling_is_bit_exact(weight.codes.device):
        if rows <= 32:
            return GemmTiles(32, 64, 64, 4, 4)
        if rows <= 128 and not gated:
            return GemmTiles(64, 64, 64, 4, 3)
    if weight.kind == 1 and not gated:
        return GemmTiles(128, 128, 64 if weight.group <= 64 else 128, 8, 3)
    wide = weight.kind == 6 or (weight.kind == 1 and weight.group > 64)
    return GemmTiles(128, 64, 128, 4, 2) if wide else GemmTiles(128, 64, 64, 4, 3)
