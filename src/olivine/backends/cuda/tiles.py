"""How a product is cut into tiles: by the weight's shape and kind and the kind of row, never by the batch."""

from __future__ import annotations

from dataclasses import dataclass

from olivine.backends.cuda.weights import Planes

MULTIPROCESSORS = 132  # of a Hopper card: a measure of how many programs fill it, not a limit
ROWS = 16  # of a weight, that a program for few generated rows takes
WARPS = 4  # that share its columns


@dataclass(frozen=True)
class FewTiles:
    """Of a product with generated rows. A step is WARPS units of `span` columns, in pieces of `width`."""

    span: int
    width: int
    steps: int  # over all columns: a multiple of the splits
    splits: int
    ahead: int  # steps of each split that are fetched before the rows are there, all at once
    rest: int  # steps that are taken at once after them
    stages: int  # of the loop over those


@dataclass(frozen=True)
class ManyTiles:
    """Of a product with prompt rows."""

    block_m: int
    block_n: int
    block_k: int
    warps: int
    stages: int


# Columns of a unit and of its pieces, by kind (see kernels/blocks.py).
_UNITS = {2: (32, 16), 3: (32, 16), 4: (64, 32), 5: (64, 32), 6: (64, 16), 7: (32, 16), 8: (32, 16)}
_AHEAD = 1024  # columns


def few_tiles(weight: Planes, summed: bool) -> FewTiles:
    """The tiles for generated rows, as they were fastest on an H200."""
    if weight.kind == 0:
        fits = [c for c in (64, 32, 16) if weight.k % (WARPS * c) == 0]
        span = width = fits[0] if fits else 16
    else:
        span, width = _UNITS.get(weight.kind, (weight.group, weight.group))
    steps = -(-weight.k // (WARPS * span))
    splits = _splits(-(-weight.n // ROWS), steps, weight.k) if summed else 1
    part = steps // splits
    most = min(part, max(1, _AHEAD // (WARPS * span)))
    ahead = 1 << (most.bit_length() - 1)
    if weight.kind == 0:
        return FewTiles(span, width, steps, splits, ahead, 1, 3)  # the rest comes by asynchronous copies
    if weight.kind > 1 and ahead < part and part % (ahead // 2 or 1) == 0:
        ahead = ahead // 2 or 1  # half of the registers
    left = part - ahead
    return FewTiles(span, width, steps, splits, ahead, min(ahead, left & -left) or 1, 3)


def _splits(blocks: int, steps: int, columns: int) -> int:
    """Enough for all processors to read, and for no program to read for long."""
    even = [s for s in range(1, 9) if steps % s == 0]
    wanted = [
        s
        for s in even
        if blocks * s >= 0.9 * MULTIPROCESSORS
        and (columns <= 1536 * s or blocks * s >= 3.9 * MULTIPROCESSORS)
    ]
    return wanted[0] if wanted else even[-1]


def many_tiles(weight: Planes, gated: bool) -> ManyTiles:
    """The tiles for prompt rows: the fastest of some dozens, measured on an H200."""
    if weight.kind == 0 and weight.codes.element_size() > 2:
        return ManyTiles(64, 64, 64, 4, 2)
    if weight.kind == 0:
        return ManyTiles(128, 128, 64, 8 if gated else 4, 3)
    if weight.kind == 1 and not gated:
        return ManyTiles(128, 128, 64 if weight.group <= 64 else 128, 8, 3)
    wide = weight.kind == 6 or (weight.kind == 1 and weight.group > 64)
    return ManyTiles(128, 64, 128, 4, 2) if wide else ManyTiles(128, 64, 64, 4, 3)
