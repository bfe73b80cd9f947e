"""Rows of a quantized weight, expanded to bfloat16 in the tiles of float weights.

A GEMM of many rows spends far more time on its products than it takes to expand the weight, once, for all of
them. A large weight is expanded a slab at a time, into memory that the next slab overwrites.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
import triton
import triton.language as tl

from olivine.backends.cuda.formats import FLOAT_TILE_WIDTH, LAYOUTS, Format
from olivine.backends.cuda.kernels.dequantize import columns, dequantize_piece, place
from olivine.backends.cuda.kernels.pdl import LAUNCH, begin
from olivine.backends.cuda.weights import Planes

SLAB_BYTES = 128 << 20  # smaller ones, that stay in the L2 cache, were slower: their products fill no GPU
EXPERT_SLAB_BYTES = 512 << 20  # of a mixture, whose products have few rows an expert
_ROWS, _COLUMNS = 64, 64  # of a program


@triton.jit(do_not_specialize=["first", "rows"])
def _expand(
    planes, out, first, rows, K,
    FORMAT: tl.constexpr, PIECES: tl.constexpr, GROUP: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """A program has TILES of ROWS × COLUMNS. In a piece of a tile, each row has one scale."""
    k = tl.program_id(0) * (COLUMNS * TILES)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)[:, None]
    found = ()
    for i in tl.static_range(TILES * PIECES):
        found = found + (
            dequantize_piece(
                planes, first + row, row < rows, k + i // PIECES * COLUMNS, K,
                FORMAT, i % PIECES, GROUP, COLUMNS,
            ),
        )  # fmt: skip
    begin()  # what multiplies the slab before may still read it
    for i in tl.static_range(TILES * PIECES):
        at = columns(k + i // PIECES * COLUMNS, FORMAT, i % PIECES, COLUMNS)[None, :]
        to = out + place(row.to(tl.int64), at, K, FLOAT_TILE_WIDTH)
        tl.store(to, found[i].to(tl.bfloat16), mask=(row < rows) & (at < K))


def expand(weight: Planes, first: int, out: torch.Tensor) -> Planes:
    """Rows of the weight from `first` on, as many as `out` holds."""
    rows, layout = len(out), LAYOUTS[weight.format]
    columns = weight.group if weight.format is Format.INT8 else layout.gemm_columns
    tiles = max(1, _COLUMNS // columns)
    _expand[(-(-weight.k // (columns * tiles)), -(-rows // _ROWS))](
        weight.pointers(), out, first, rows, weight.k,
        FORMAT=int(weight.format), PIECES=layout.pieces, GROUP=weight.group,
        ROWS=_ROWS, COLUMNS=columns, TILES=tiles, **LAUNCH,
    )  # fmt: skip
    return replace(
        weight, format=Format.FLOAT, n=rows, codes=out, high=None, scales=None, minima=None, halves=None
    )


def slabs(weight: Planes, unit: int, nbytes: int | None = None) -> Iterator[tuple[int, Planes]]:
    """The first row of each slab and the slab, expanded; a slab is a multiple of `unit` rows."""
    width = weight.k + -weight.k % FLOAT_TILE_WIDTH.value
    most = max(1, (nbytes or SLAB_BYTES) // (2 * width * unit)) * unit
    room = torch.empty((min(most, weight.n), width), dtype=torch.bfloat16, device=weight.codes.device)
    for first in range(0, weight.n, most):
        yield first, expand(weight, first, room[: weight.n - first])
