"""The operations that only towers have: encoders of images and of sound.

The rows of a tower are patches of an image or pieces of a sound; a sequence is one image or one sound, with
all of its rows in one batch, adjacent and in order. A row has two coordinates: column and row of a patch, or
the number of a piece's frames that are valid and 0.
"""

from __future__ import annotations

from dataclasses import dataclass

from olivine.plan.ops import Op, Rotation, Value, Weight


@dataclass(frozen=True)
class Input(Op):
    """out[t] = the batch's embedding t · scale + shift. It stands where a decoder embeds tokens."""

    out: Value
    scale: float
    shift: float


@dataclass(frozen=True)
class Clamp(Op):
    """out = x, at least `low` and at most `high`; each a weight of one element, or no limit."""

    out: Value
    x: Value
    low: Weight | None
    high: Weight | None


@dataclass(frozen=True)
class Standardize(Op):
    """out = (x − mean) · scale, with one element of each a column."""

    out: Value
    x: Value
    mean: Weight
    scale: Weight


@dataclass(frozen=True)
class PositionEmbed(Op):
    """out[t] = x[t] + table[start + coordinates[t] · strides]; the table's last axis is a row of it."""

    out: Value
    x: Value
    table: Weight
    start: int
    strides: tuple[int, int]


@dataclass(frozen=True)
class GridRope(Op):
    """Rotates the halves of every head: the first by its row's first coordinate, the second by the other.

    `rotation` is that of a half.
    """

    out: Value
    x: Value
    rotation: Rotation


@dataclass(frozen=True)
class Pool(Op):
    """out[r] = the mean of `size` consecutive rows of x, the first of which is output row r."""

    out: Value
    x: Value
    size: int


@dataclass(frozen=True)
class Conv(Op):
    """A convolution of 3 × 3 over time and frequency, with stride 2 and padding 1. weight [C', C, 3, 3].

    A row of x has `steps` steps in time × frequencies × C, a row of out half the steps, half the frequencies
    and C'. The step before a row's first is the last of the row before it, and 0 before a sequence's first.
    Of the `frames` frames of a row, coordinates[t, 0] are valid; steps after them count as 0.
    """

    out: Value
    x: Value
    weight: Weight
    steps: int
    frames: int


@dataclass(frozen=True)
class DepthwiseConv(Op):
    """out[t] = Σ weight[:, m] · x[t − k + 1 + m], with 0 before a sequence's first row. weight [D, k]."""

    out: Value
    x: Value
    weight: Weight


@dataclass(frozen=True)
class RelativeAttention(Op):
    """Each head of row i attends to row j of its sequence for 0 ≤ i − j < n. relative [n, H · d].

    scores = cap · tanh((q_i·k_j + q_i·relative[i − j]) / cap), softmax in float32.
    """

    out: Value
    q: Value
    k: Value
    v: Value
    relative: Weight
    heads: int
    cap: float
