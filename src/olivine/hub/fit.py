"""Whether a model fits this machine, and how fast it may be."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from olivine.hub.aliases import Alias, aliases

STEPS = 100 << 20  # bytes that a step and the tokenizer take beside weights and cache
# The share of the measured bandwidth that decode reaches: `olivine bench` prints it for a model.
DECODE_SHARE = 0.75


@dataclass(frozen=True)
class Fit:
    """What a model takes and what there is, in bytes."""

    needed: int  # weights, the KV cache of one sequence, and steps
    free: int
    speed: float | None = None  # tokens per second that are to be expected

    @property
    def fits(self) -> bool:
        return self.needed <= self.free


def fit(
    weights: int, cache: int, device: str = "cpu", active: float = 1.0, *, free: int | None = None
) -> Fit:
    """Of a model with so many bytes of weights, of which a token reads the `active` share."""
    speed = None
    if device == "cpu" and weights:
        speed = DECODE_SHARE * _bandwidth() / (weights * active) or None
    return Fit(weights + cache + STEPS, free_memory(device) if free is None else free, speed)


@cache
def _bandwidth() -> float:
    """Once in a process, too: on a busy machine it is not kept."""
    from olivine.machine import bandwidth

    return bandwidth()


def free_memory(device: str = "cpu") -> int:
    if device == "cuda":
        import torch

        return int(torch.cuda.mem_get_info()[0])
    from olivine.engine.budget import spare_bytes

    return spare_bytes()


def fitting(free: int, context: int) -> list[Alias]:
    """The short names whose models fit into so much memory, the largest first."""
    found = [each for each in aliases().values() if each.bytes + each.cache_bytes(context) + STEPS <= free]
    return sorted(found, key=lambda each: -each.bytes)
