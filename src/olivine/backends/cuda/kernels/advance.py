"""A drawn token is written down and becomes the next input of its row, unless it ends the row: by the last
kernel of a draw (kernels/sampling.py), because a launch of its own costs more than that.

No value decides a branch: each is loaded at the start, by all threads, and stored by one.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from olivine.backends.cuda.kernels.adjust import RING

OPEN, STOPPED, BROKEN, NOTHING = 0, 1, 2, 3  # of a row: goes on, met a stop token, NaN, no legal token
STOPS = 32  # stop tokens that a row may have

_OPEN: tl.constexpr = tl.constexpr(OPEN)
_STOPPED: tl.constexpr = tl.constexpr(STOPPED)
_BROKEN: tl.constexpr = tl.constexpr(BROKEN)
_NOTHING: tl.constexpr = tl.constexpr(NOTHING)
_STOPS: tl.constexpr = tl.constexpr(STOPS)
_RING: tl.constexpr = tl.constexpr(RING)


class RowState(NamedTuple):
    """The state of a chain's rows on the device."""

    ends: torch.Tensor  # [B] OPEN, or why the row has ended
    drawn: torch.Tensor  # [B, most] the tokens drawn since the host last read them
    step: torch.Tensor  # [B] how many those are
    positions: torch.Tensor  # [B] of the forward's inputs; -1: padding, or a row that has ended
    inputs: torch.Tensor  # [B] its tokens
    stops: torch.Tensor  # [B, STOPS] stop tokens; -1 beyond them
    stop_count: torch.Tensor  # [B] how many those are

    @staticmethod
    def empty(rows: int, most: int, device: torch.device) -> RowState:
        def ints(*shape: int) -> torch.Tensor:
            return torch.zeros(shape, dtype=torch.int32, device=device)

        return RowState(
            ends=ints(rows),
            drawn=ints(rows, most),
            step=ints(rows),
            positions=ints(rows),
            inputs=ints(rows),
            stops=torch.full((rows, STOPS), -1, dtype=torch.int32, device=device),
            stop_count=ints(rows),
        )


@triton.jit
def end_of_row(end, peak):
    """Why a row ends for want of a token to draw, by its largest logit; or as it was, if it had ended."""
    found = tl.where(peak == float("inf"), _BROKEN, tl.where(peak == float("-inf"), _NOTHING, _OPEN))
    return tl.where(end == _OPEN, found, end)


@triton.jit
def load_stops(rows, row):
    """Before the wait, because no kernel writes them."""
    return tl.load(rows.stops + row * _STOPS + tl.arange(0, _STOPS))


@triton.jit
def load_progress(rows, adjusting, row):
    """What `advance` needs of a row, to be loaded with all else: step, position, and where logits are
    adjusted, the window, the tokens so far, the one that leaves the window, and those before a stop."""
    step = tl.load(rows.step + row)
    position = tl.load(rows.positions + row)
    size, length, gone, at_least = 0, 0, -1, 0
    if adjusting is not None:
        size = tl.load(adjusting.window + row)
        length = tl.load(adjusting.length + row)
        at_least = tl.load(adjusting.at_least + row)
        leaves = (size > 0) & (length >= size)
        gone = tl.load(adjusting.ring + row * _RING + (length - size) % _RING, mask=leaves, other=-1)
    return step, position, size, length, gone, at_least


@triton.jit
def advance(rows, adjusting, row, token, end, stops, progress, most, V):
    """rows is a `RowState`, adjusting an `AdjustState` or None; `end` is of the row before this token."""
    step, position, size, length, gone, at_least = progress
    stops_now = (end == _OPEN) & (tl.max((stops == token).to(tl.int32), 0) > 0)
    end = tl.where(stops_now, _STOPPED, end)
    goes_on = end == _OPEN
    tl.store(rows.ends + row, end)
    tl.store(rows.positions + row, tl.where(goes_on, position + 1, -1))  # a row that has ended is padding
    tl.store(rows.drawn + row * most + step, token, mask=goes_on)
    tl.store(rows.step + row, step + 1, mask=goes_on)
    tl.store(rows.inputs + row, token, mask=goes_on)
    if adjusting is not None:
        _count(adjusting, row, token, goes_on, size, length, gone, V)
        tl.store(adjusting.masked + row, 0, mask=goes_on)
        tl.store(adjusting.at_least + row, at_least - 1, mask=goes_on)


@triton.jit
def _count(adjusting, row, token, goes_on, size, length, gone, V):
    """The token enters the counts, and another may leave the window. It may be the same one, so both add."""
    output = adjusting.output_counts + row.to(tl.int64) * V
    recent = adjusting.recent_counts + row.to(tl.int64) * V
    tl.atomic_add(output + token, 1, mask=goes_on, sem="relaxed")
    tl.atomic_add(recent + token, 1, mask=goes_on & (size != 0), sem="relaxed")
    tl.atomic_add(recent + gone, -1, mask=goes_on & (gone >= 0) & (gone < V), sem="relaxed")
    tl.store(adjusting.ring + row * _RING + length % _RING, token, mask=goes_on)
    tl.store(adjusting.length + row, length + 1, mask=goes_on)
