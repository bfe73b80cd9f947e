"""Two products of one decode row in one launch, with the bits that `gemv_alone` gives each.

Neither waits for the other, and together they fill the device better. The weights may have different formats,
as v in half of the layers of a Q4_K_M file, and different x, as a dense branch beside experts.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from olivine.backends.cuda.kernels.gemv_alone import constants_of, height_of, row_program, weight_arguments
from olivine.backends.cuda.kernels.pdl import LAUNCH, registers
from olivine.backends.cuda.tiles import BLOCK_N, WARPS, GemvTiles, alone_tiles
from olivine.backends.cuda.weights import Planes


@triton.jit(do_not_specialize=["M", "scaled"])
def _gemv_pair(
    inv_rms,
    rows, planes, weight_rows, target, bias,
    second_rows, second_planes, second_weight_rows, second_target, second_bias,
    experts, M, scaled,
    WARPS: tl.constexpr, CONSTANTS: tl.constexpr, SECOND_CONSTANTS: tl.constexpr, ROWS: tl.constexpr,
    SPLITS: tl.constexpr, GATED: tl.constexpr, ACTIVATION: tl.constexpr,
):  # fmt: skip
    """As `row_program` for each. The first has ROWS result rows, whose experts may be given, and the second
    SPLITS of split-K."""
    program = tl.program_id(0)
    # Those of the second weight come first.
    programs = tl.cdiv(second_weight_rows, SECOND_CONSTANTS.rows) * SPLITS
    if program < programs:
        # These release before they wait, even beside experts, whose ids the next kernel may read early:
        # that one starts when all programs have released, and those of the experts have waited before.
        row_program(
            (program // SPLITS, program % SPLITS, program * 0),
            second_rows, inv_rms, second_planes, second_weight_rows, second_target, second_bias, None, None,
            M, scaled, WARPS, SECOND_CONSTANTS, False, 0, False,
        )  # fmt: skip
    else:
        other = program - programs
        row_program(
            (other // ROWS, other * 0, other % ROWS),
            rows, inv_rms, planes, weight_rows, target, bias, None, experts, M, scaled,
            WARPS, CONSTANTS, GATED, ACTIVATION, False,
        )  # fmt: skip


class RowProduct(NamedTuple):
    """x @ weight.T + bias of one row of x; with experts, a result row for each."""

    x: torch.Tensor
    weight: Planes
    out: torch.Tensor
    bias: torch.Tensor | None
    tiles: GemvTiles


def gemv_pair(
    first: RowProduct,
    second: RowProduct,
    *,
    inv_rms: torch.Tensor | None = None,
    activation: int | None = None,
    experts: tuple[torch.Tensor, int] | None = None,
) -> None:
    """inv_rms is that of both. Activation and experts, whose ids are not known early, are those of the first,
    and split-K is for the second."""
    assert first.tiles.splits == 1 and second.out.shape[-2] == 1
    splits, rows = second.tiles.splits, first.out.shape[-2]
    heights = height_of(first.weight, first.out, activation, experts), second.weight.n
    own = -(-heights[1] // BLOCK_N) * splits
    programs = -(-heights[0] // BLOCK_N) * rows + own
    # Beside experts, which wait before they load, the programs of the second load as if they were alone.
    tiles = alone_tiles(first.weight, first.tiles, first.tiles.steps, programs)
    second_tiles = alone_tiles(
        second.weight, second.tiles, second.tiles.steps // splits, programs if experts is None else own
    )
    programs = -(-heights[0] // tiles.rows) * rows + -(-heights[1] // second_tiles.rows) * splits
    _gemv_pair[(programs, 1, 1)](
        first.out if inv_rms is None else inv_rms,
        _rows(first), *weight_arguments(*first[1:], heights[0]),
        _rows(second), *weight_arguments(*second[1:], heights[1]),
        experts, rows, 0 if inv_rms is None else rows,
        WARPS=WARPS, CONSTANTS=constants_of(first.weight, first.tiles, tiles, 1, heights[0]),
        SECOND_CONSTANTS=constants_of(second.weight, second.tiles, second_tiles, splits, heights[1]),
        ROWS=rows, SPLITS=splits, GATED=activation is not None, ACTIVATION=activation or 0,
        num_warps=WARPS, num_stages=1, enable_fp_fusion=False,
        **registers(max(tiles.registers, second_tiles.registers)), **LAUNCH,
    )  # fmt: skip


def _rows(product: RowProduct) -> tuple[Any, ...]:
    return product.x, product.x.stride(0)
