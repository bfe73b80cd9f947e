"""Rows of the embedding table, decoded."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from olivine.backends.cuda.formats import LAYOUTS, Format
from olivine.backends.cuda.kernels.dequantize import columns, dequantize_piece
from olivine.backends.cuda.kernels.pdl import LAUNCH, begin
from olivine.backends.cuda.weights import Planes


@triton.jit
def _embed(
    tokens, out, planes, width, scale,
    FORMAT: tl.constexpr, PIECES: tl.constexpr, GROUP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    k = tl.program_id(1) * BLOCK
    begin()
    token = tl.load(tokens + row + tl.arange(0, 1))[:, None]
    # All before the first store: the compiler would not load beyond it, and wait for each piece.
    pieces = ()
    for piece in tl.static_range(PIECES):
        w = dequantize_piece(planes, token, token >= 0, k, width, FORMAT, piece, GROUP, BLOCK)
        pieces = pieces + (w.to(tl.float32) * scale,)
    for piece in tl.static_range(PIECES):
        at = columns(k, FORMAT, piece, BLOCK)[None, :]
        rows = row.to(tl.int64) + tl.zeros((1, 1), tl.int64)
        tl.store(out + rows * width + at, pieces[piece], mask=at < width)


def embed(tokens: torch.Tensor, table: Planes, out: torch.Tensor, scale: float) -> None:
    """out[t] = table[tokens[t]] · scale, in float32."""
    rows, width = out.shape
    if rows:
        block = min(1024, triton.next_power_of_2(width)) if table.format is Format.FLOAT else 256
        _embed[(rows, -(-width // block))](
            tokens, out, table.pointers(), width, scale,
            FORMAT=int(table.format), PIECES=LAYOUTS[table.format].pieces, GROUP=table.group, BLOCK=block,
            **LAUNCH,
        )  # fmt: skip
