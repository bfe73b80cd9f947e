"""Rows of the embedding table, decoded; and beside them the rotary angles of the step.

It is the first kernel of a step's graph, and the second one starts four microseconds later, whatever it does.
So angles have no kernel of their own, and nothing is lost if the next one starts when this one has stored.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from olivine.backends.cuda.formats import LAYOUTS, Format
from olivine.backends.cuda.kernels.dequantize import columns, dequantize_piece
from olivine.backends.cuda.kernels.heads import Angles, store_angles
from olivine.backends.cuda.kernels.pdl import LAUNCH, release_stored, wait
from olivine.backends.cuda.weights import Planes


@triton.jit
def _embed(
    tokens, out, planes, width, scale, angles,
    FORMAT: tl.constexpr, PIECES: tl.constexpr, GROUP: tl.constexpr, BLOCK: tl.constexpr,
    HALVES: tl.constexpr, ANGLES: tl.constexpr,
):  # fmt: skip
    """If there are angles to make, the last program of a row makes them."""
    row = tl.program_id(0).to(tl.int64)
    if len(HALVES) > 0 and tl.program_id(1) == tl.num_programs(1) - 1:
        store_angles(angles, row, HALVES, ANGLES)
    else:
        _embed_block(tokens, out, planes, width, scale, row, FORMAT, PIECES, GROUP, BLOCK)
    release_stored()


@triton.jit
def _embed_block(
    tokens, out, planes, width, scale, row,
    FORMAT: tl.constexpr, PIECES: tl.constexpr, GROUP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    k = tl.program_id(1) * BLOCK
    wait()
    token = tl.load(tokens + row + tl.arange(0, 1))[:, None]
    # All before the first store: the compiler would not load beyond it, and wait for each piece.
    pieces = ()
    for piece in tl.static_range(PIECES):
        w = dequantize_piece(planes, token, token >= 0, k, width, FORMAT, piece, GROUP, BLOCK)
        pieces = pieces + (w.to(tl.float32) * scale,)
    for piece in tl.static_range(PIECES):
        at = columns(k, FORMAT, piece, BLOCK)[None, :]
        rows = row + tl.zeros((1, 1), tl.int64)
        tl.store(out + rows * width + at, pieces[piece], mask=at < width)


def embed(
    tokens: torch.Tensor, table: Planes, out: torch.Tensor, scale: float, angles: Angles | None = None
) -> None:
    """out[t] = table[tokens[t]] · scale, in float32; and the angles, if they are to be made."""
    rows, width = out.shape
    if rows:
        block = min(1024, triton.next_power_of_2(width)) if table.format is Format.FLOAT else 256
        halves, most = ((), 1) if angles is None else angles.sizes()
        _embed[(rows, -(-width // block) + (angles is not None))](
            tokens, out, table.pointers(), width, scale, angles,
            FORMAT=int(table.format), PIECES=LAYOUTS[table.format].pieces, GROUP=table.group, BLOCK=block,
            HALVES=halves, ANGLES=most, **LAUNCH,
        )  # fmt: skip
