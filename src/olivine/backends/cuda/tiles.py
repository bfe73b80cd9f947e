"""How a product is cut into tiles: by the weight's shape and kind and the kind of row, never by the batch."""

from __future__ import annotations

from dataclasses import dataclass

from olivine.backends.cuda.weights import Planes

MULTIPROCESSORS = 132  # of a Hopper card: a measure of how many programs fill it, not a limit


@dataclass(frozen=True)
class Tiles:
    block_m: int
    block_n: int
    block_k: int
    warps: int
    stages: int


def splits_for(weight: Planes, n: int) -> int:
    """Into how many parts the sum over K is cut for generated rows: so many that all processors read."""
    cut = _few_rows(weight, n, False)
    steps = -(-weight.k // cut.block_k)
    blocks = -(-n // cut.block_n)
    wanted = min(8, steps, 1 << (-(-2 * MULTIPROCESSORS // blocks) - 1).bit_length())
    return -(-steps // -(-steps // wanted))  # no part without a step


def choose(weight: Planes, n: int, few: bool, gated: bool, splits: int) -> Tiles:
    """The tiles of a product: the fastest of some dozens, measured on an H200."""
    return _few_rows(weight, n, gated) if few else _many_rows(weight, gated)


def _few_rows(weight: Planes, n: int, gated: bool) -> Tiles:
    if weight.kind != 0:
        return Tiles(0, 32, 128, 2, 3) if n >= 65536 else Tiles(0, 16, 256, 2, 2 if gated else 3)
    if n >= 65536:
        return Tiles(0, 64, 128, 4, 3)
    if not gated:
        return Tiles(0, 32, 128, 4, 3)
    if -(-n // 32) >= 2 * MULTIPROCESSORS:
        return Tiles(0, 32, 128, 2, 3)
    return Tiles(0, 16, 256, 2, 4) if weight.k % 256 == 0 else Tiles(0, 16, 128, 2, 4)


def _many_rows(weight: Planes, gated: bool) -> Tiles:
    if weight.kind == 0 and weight.codes.element_size() > 2:
        return Tiles(64, 64, 64, 4, 2)
    if weight.kind == 0:
        return Tiles(128, 128, 64, 8 if gated else 4, 3)
    if weight.kind == 1 and not gated:
        return Tiles(128, 128, 64 if weight.group <= 64 else 128, 8, 3)
    wide = weight.kind == 6 or (weight.kind == 1 and weight.group > 64)
    return Tiles(128, 64, 128, 4, 2) if wide else Tiles(128, 64, 64, 4, 3)
