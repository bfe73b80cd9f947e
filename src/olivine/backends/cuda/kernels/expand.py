"""Rows of a quantized weight, expanded to bfloat16 in the tiles of float weights.

A GEMM of many rows spends far more time on its products than it takes to expand the weight, once, for all of
them. Where its rows lie then, and when they are expanded, slabs.py decides.
"""

from __future__ import annotations

from dataclasses import replace

import torch
import triton
import triton.language as tl

from olivine.backends.cuda.formats import FLOAT_TILE_WIDTH, LAYOUTS, Format
from olivine.backends.cuda.kernels.dequantize import columns, dequantize_piece, place
from olivine.backends.cuda.kernels.pdl import set_shared_memory_carveout
from olivine.backends.cuda.weights import Planes

_ROWS, _COLUMNS = 64, 64  # of a program
# Percent of a multiprocessor's memory that is shared memory, as GEMMs have it: this kernel needs little, and
# after another division a GEMM would wait until the multiprocessor is empty.
_CARVEOUT = 100


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
    for i in tl.static_range(TILES * PIECES):  # after all loads
        at = columns(k + i // PIECES * COLUMNS, FORMAT, i % PIECES, COLUMNS)[None, :]
        to = out + place(row.to(tl.int64), at, K, FLOAT_TILE_WIDTH)
        tl.store(to, found[i].to(tl.bfloat16), mask=(row < rows) & (at < K))


def expand(weight: Planes, first: int, out: torch.Tensor) -> Planes:
    """Rows of the weight from `first` on, as many as `out` holds.

    It does not start early (pdl.py): while it waits, it would take room from the kernels beside it.
    """
    rows, layout = len(out), LAYOUTS[weight.format]
    columns = weight.group if weight.format is Format.INT8 else layout.gemm_columns
    tiles = max(1, _COLUMNS // columns)
    kernel = _expand[(-(-weight.k // (columns * tiles)), -(-rows // _ROWS))](
        weight.pointers(), out, first, rows, weight.k,
        FORMAT=int(weight.format), PIECES=layout.pieces, GROUP=weight.group,
        ROWS=_ROWS, COLUMNS=columns, TILES=tiles,
    )  # fmt: skip
    set_shared_memory_carveout(kernel, _CARVEOUT)
    return replace(
        weight, format=Format.FLOAT, n=rows, codes=out, high=None, scales=None, minima=None, halves=None
    )
