"""The rows of a step on the device, and what the launches of the step hand to each other."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from olivine.backends.cuda.kernels.decode_attention import Scratch
from olivine.backends.cuda.kernels.expert_blocks import ExpertBlocks
from olivine.backends.cuda.kernels.heads import Rotary
from olivine.backends.cuda.slabs import RingSlabs
from olivine.plan import Rotation


@dataclass
class TowerRows:
    """What only the rows of a tower have."""

    embeddings: torch.Tensor  # [T, width] that enter it
    coordinates: torch.Tensor  # [T, 2]
    lengths: tuple[int, ...]  # rows of each sequence; there is no padding
    output_lengths: tuple[int, ...]  # likewise of the outputs
    # Cosines and sines of rotations by coordinates, made once a step.
    angles: dict[Rotation, tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)


@dataclass
class Route:
    """The experts of a mixture's rows. Result row i is of expert ids[i]."""

    logits: torch.Tensor  # of the router
    shares: torch.Tensor
    ids: torch.Tensor
    blocks: ExpertBlocks | None  # of all prefill rows, and of many decode rows


@dataclass
class Rows:
    """The rows of a step: all of prompts, or all generated."""

    tokens: torch.Tensor
    positions: torch.Tensor
    sequences: torch.Tensor
    outputs: torch.Tensor | None  # which rows' logits are wanted; None: those of all
    tables: list[torch.Tensor]
    prefill: bool
    tiles: torch.Tensor | None  # of prefill attention
    max_position: int  # that generated rows have, at most
    scratch: Scratch
    alone: bool  # whether each generated row is the only row of its sequence
    injected: tuple[torch.Tensor, torch.Tensor] | None = None
    last: torch.Tensor | None = None  # the last position that each row sees, where that is not its own
    tower: TowerRows | None = None
    slabs: RingSlabs | None = None  # of quantized weights, where there is a ring for them
    values: dict[int, torch.Tensor] = field(default_factory=dict)
    rounded: dict[int, torch.Tensor] = field(default_factory=dict)  # values in bfloat16, beside float32
    inv_rms: dict[int, torch.Tensor] = field(default_factory=dict)  # factors that norms left to products
    angles: dict[int, torch.Tensor] = field(default_factory=dict)  # of rotary embeddings, made once a step
    beside: dict[int, torch.Tensor] = field(default_factory=dict)  # x of products that mixtures launch
    routes: dict[int, Route] = field(default_factory=dict)  # of mixtures, by the ids of their outputs
    # Of scales by position, made once a step: by beta and length.
    factors: dict[tuple[float, int], torch.Tensor] = field(default_factory=dict)

    def count(self, rows: str) -> int:
        return len(self.tokens) if rows == "tokens" or self.outputs is None else len(self.outputs)

    def operand(self, value: int) -> torch.Tensor:
        """A value as products read it."""
        return self.rounded.get(value, self.values[value])

    def release(self, value: int) -> None:
        self.values.pop(value, None)
        self.rounded.pop(value, None)

    def angles_of(self, rotary: Rotary | None) -> torch.Tensor | None:
        return None if rotary is None else self.angles[id(rotary)]

    def position_factors(self, beta: float, length: int) -> torch.Tensor:
        """1 + beta · ln(1 + ⌊position / length⌋) of each row, [T, 1]; 1 of padding rows."""
        if (beta, length) not in self.factors:
            steps = torch.div(self.positions, length, rounding_mode="floor").clamp(min=0)
            self.factors[beta, length] = (1 + beta * torch.log1p(steps.float()))[:, None]
        return self.factors[beta, length]
