"""How a product is cut into tiles. The order of its sums is a matter of the weight's shape and kind and the
kind of row, never of the batch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
import triton

from olivine.backends.cuda.weights import Planes, tile_width

MULTIPROCESSORS = 132  # of a Hopper card: a measure of how many programs fill it, not a limit
ROWS = 16  # of a weight, that a program for few generated rows takes
WARPS = 4  # that share its columns


@dataclass(frozen=True)
class FewTiles:
    """Of a product with generated rows. A step is a unit of `span` columns a warp, in pieces of `width`."""

    span: int
    width: int
    steps: int  # over all columns: a multiple of the splits
    splits: int
    ahead: int  # steps of each split that are fetched before the rows are there, all at once
    after: int  # steps that are taken at once after them
    batch: int  # rows that it takes at most, as its registers allow
    eights: int  # rows, up to which programs have eight each


@dataclass(frozen=True)
class ManyTiles:
    """Of a product with prompt rows."""

    block_m: int
    block_n: int
    block_k: int
    warps: int
    stages: int


# Columns of a unit and of its pieces, by kind (see kernels/units.py); those of others are a tile's.
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


def few_tiles(weight: Planes, summed: bool) -> FewTiles:
    """The tiles for generated rows, as they were fastest on an H200."""
    wide = tile_width(weight)
    span, width = _UNITS.get(weight.kind, (wide, wide))
    if weight.kind == 0 and weight.k >= 2048 and weight.k % 512 == 0:
        span = 64  # many rows then wait for the tensor cores half as often
    steps = -(-weight.k // (WARPS * span))
    splits = _splits(-(-weight.n // ROWS), steps, weight.k) if summed else 1
    part = steps // splits
    ahead = min(part, _AHEAD // (WARPS * span))
    if part * WARPS * span <= _ALL_AHEAD.get(weight.kind, 0):
        ahead = part
    if weight.kind == 0 and weight.codes.element_size() > 2:
        ahead = -(-ahead // 2)
    after = max(c for c in range(1, _AFTER // (WARPS * span) + 1) if (part - ahead) % c == 0)
    batch = 32 if weight.kind in (4, 5, 6) else 64
    eights = max(8, min(32, 8 * _READ // max(1, weight.nbytes)))
    return FewTiles(span, width, steps, splits, ahead, after, batch, eights)


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
def any_cut_has_the_same_bits(device: torch.device) -> bool:
    """Whether sums were seen to come out alike, however a product is cut: on Hopper cards. Others, whose
    larger tensor core instructions nobody has run, take one way for any number of rows."""
    return device.type == "cpu" or torch.cuda.get_device_capability(device)[0] == 9


# For prompt rows and floats: the larger the tile, the less is read, and the fewer programs there are. All sum
# up sixteen columns at a time, in their order.
FLOAT_TILES = (
    ManyTiles(128, 256, 64, 8, 3),
    ManyTiles(128, 128, 64, 8, 4),
    ManyTiles(64, 128, 64, 4, 5),
    ManyTiles(64, 64, 128, 4, 4),
    ManyTiles(64, 32, 128, 4, 6),
)


def float_tiles(weight: Planes, rows: int, group: int | None = None) -> ManyTiles:
    """The tiles for so many prompt rows and floats; those of a mixture come in groups."""
    if weight.codes.element_size() > 2:
        return ManyTiles(group or 64, 64, 64, 4, 2)
    if group is not None:
        return ManyTiles(group, 128, 64, 4, 3)
    device = weight.codes.device
    if shared_memory(device) < 160 << 10:
        return ManyTiles(128, 128, 64, 8, 3)
    if not any_cut_has_the_same_bits(device):
        return FLOAT_TILES[0]

    def time(tile: ManyTiles) -> int:
        """In turns of all processors, each as long as a tile's operands take to read."""
        programs = -(-rows // tile.block_m) * -(-weight.n // tile.block_n)
        return -(-programs // multiprocessors(device)) * (tile.block_m + tile.block_n)

    return min(FLOAT_TILES, key=time)


def block_tiles(weight: Planes, gated: bool, rows: int | None = None) -> ManyTiles:
    """The tiles for prompt rows and quantized weights: the fastest of some dozens, measured on an H200.

    Fewer rows may have smaller tiles where those were found to give the same bits.
    """
    known = weight.kind == 4 or (weight.kind == 1 and weight.group == 32)
    if rows is not None and known and any_cut_has_the_same_bits(weight.codes.device):
        if rows <= 32:
            return ManyTiles(32, 64, 64, 4, 4)
        if rows <= 128 and not gated:
            return ManyTiles(64, 64, 64, 4, 3)
    if weight.kind == 1 and not gated:
        return ManyTiles(128, 128, 64 if weight.group <= 64 else 128, 8, 3)
    wide = weight.kind == 6 or (weight.kind == 1 and weight.group > 64)
    return ManyTiles(128, 64, 128, 4, 2) if wide else ManyTiles(128, 64, 64, 4, 3)
