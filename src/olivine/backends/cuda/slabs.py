"""Slabs: parts of quantized weights, expanded to bfloat16 for the GEMMs of prompts (kernels/expand.py).

Expanding depends on nothing that a forward computes, and most GEMMs leave room beside them. So slabs are
expanded on a stream of their own, as far ahead of their GEMMs as a ring of memory has room: each slab lies
behind the one before it, and at the ring's end they go on at its start. In a CUDA graph the two streams are
two branches. For few rows only a part of the ring is used, where the GEMM in front often has to end first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from olivine.backends.cuda.formats import FLOAT_TILE_WIDTH, Format
from olivine.backends.cuda.kernels.expand import expand
from olivine.backends.cuda.weights import Planes

SLAB_BYTES = 128 << 20
# Few rows take less time than their weights take to be written to memory and read again. So slabs for them
# lie in a part of the ring that is as large as the L2 cache of an H200. (Smaller ones were slower: they fill
# no GPU.)
FEW_ROWS = 128
CACHED_BYTES = 56 << 20
EXPERT_SLAB_BYTES = 512 << 20  # of a mixture, whose products have few rows an expert
_UNIT = 16  # a slab is a multiple of so many rows of the weight: gate and up are interleaved by eight
_AHEAD = 4  # slabs of the largest size that a ring holds, but no more bytes than two of SLAB_BYTES


def expanded_in_turn(
    weight: Planes, unit: int = _UNIT, nbytes: int | None = None
) -> Iterator[tuple[int, Planes]]:
    """The first row of each slab and the slab, a multiple of `unit` rows. Without a ring: on the stream of
    all kernels, each slab where the one before lay."""
    most = _slab_rows(weight, unit, nbytes or SLAB_BYTES)
    room = torch.empty((most, _width(weight)), dtype=torch.bfloat16, device=weight.codes.device)
    for first in range(0, weight.n, most):
        yield first, expand(weight, first, room[: weight.n - first])


class Ring:
    """A program's memory for slabs, and the stream that expands them. Its priority is the lowest: graphs.py
    records all other kernels with a higher one, so that slabs take the room which those leave."""

    def __init__(self, nbytes: int, device: torch.device) -> None:
        self.memory = torch.empty(nbytes // 2, dtype=torch.bfloat16, device=device)
        self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def ring_of(weights: Sequence[Planes], device: torch.device) -> Ring | None:
    """A ring for the slabs of these weights; None where no weight is quantized, or no GPU has streams."""
    quantized = [weight for weight in weights if weight.format is not Format.FLOAT]
    if device.type != "cuda" or not quantized:
        return None
    largest = max(2 * _width(weight) * _slab_rows(weight, _UNIT, SLAB_BYTES) for weight in quantized)
    return Ring(max(largest, min(_AHEAD * largest, 2 * SLAB_BYTES)), device)


@dataclass
class _Use:
    """Elements of the ring that a GEMM reads, until the event."""

    start: int
    end: int
    read: torch.cuda.Event


class RingSlabs:
    """The slabs of one forward, in a ring.

    1. The first slab waits for all that was launched before it, so also for the forward before this one.
    2. Each slab waits for the GEMMs that read what it overwrites.
    3. Each GEMM waits for its slab. So with the last GEMM the ring's stream is done, and a graph may end.
    """

    def __init__(self, ring: Ring, rows: int) -> None:
        """For so many rows."""
        self._ring, self._end, self._has_begun = ring, 0, False
        self._most, self._room = SLAB_BYTES, len(ring.memory)  # bytes of a slab, elements of the ring
        if rows <= FEW_ROWS:
            self._most = min(SLAB_BYTES, CACHED_BYTES)
            self._room = min(self._room, CACHED_BYTES // 2)
        self._uses: list[_Use] = []  # in the order of their GEMMs

    def expanded(self, weight: Planes) -> Iterator[tuple[int, Planes]]:
        """The first row of each slab and the slab. Whoever takes one launches its GEMM before taking more."""
        most, width = _slab_rows(weight, _UNIT, self._most), _width(weight)
        main, side = torch.cuda.current_stream(), self._ring.stream
        if not self._has_begun:
            side.wait_stream(main)
            self._has_begun = True
        for first in range(0, weight.n, most):
            rows = min(most, weight.n - first)
            start, end = self._take(rows * width)
            with torch.cuda.stream(side):
                slab = expand(weight, first, self._ring.memory[start:end].view(rows, width))
            main.wait_stream(side)
            yield first, slab
            self._uses.append(_Use(start, end, main.record_event()))

    def _take(self, size: int) -> tuple[int, int]:
        """So many elements, behind those taken last; the ring's stream waits until they have been read."""
        start = self._end if self._end + size <= self._room else 0
        end = self._end = start + size
        overwritten = [i for i, use in enumerate(self._uses) if use.start < end and start < use.end]
        if overwritten:
            last = overwritten[-1]
            self._ring.stream.wait_event(self._uses[last].read)
            del self._uses[: last + 1]  # GEMMs run one after another: those before it are done, too
        return start, end


def _width(weight: Planes) -> int:
    """Columns of an expanded row."""
    return weight.k + -weight.k % int(FLOAT_TILE_WIDTH.value)


def _slab_rows(weight: Planes, unit: int, nbytes: int) -> int:
    """Rows of the weight's largest slab: all have about as many."""
    most = max(1, nbytes // (2 * _width(weight) * unit)) * unit
    return min(-(-weight.n // -(-weight.n // most) // unit) * unit, weight.n)
