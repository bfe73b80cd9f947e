"""The memory that each rank of a divided plan needs, foretold from shapes and types: nothing is read."""

from __future__ import annotations

from typing import NamedTuple

from olivine.backends.base import Weights
from olivine.cluster.rank import Parallel, divide
from olivine.plan import Plan, Weight
from olivine.plan.split import Split


class Need(NamedTuple):
    """Bytes that a rank needs."""

    weights: int  # that it maps, or copies: columns are copied when the model is loaded
    copied: int  # … of those
    cache_token: float  # of KV cache for a token, with two bytes an element


def rank_needs(plan: Plan, weights: Weights, parallel: Parallel) -> list[Need]:
    """What each rank needs, stage by stage."""
    return [
        Need(
            sum(weight_bytes(found, weight, weights) for weight in part.weights),
            sum(weight_bytes(found, weight, weights) for weight in part.weights if _is_copied(found, weight)),
            sum(group.bytes_per_token(2) for group in part.groups),
        )
        for found in divide(plan, weights, parallel)
        for part in found.plans
    ]


def _is_copied(found: Split, weight: Weight) -> bool:
    part = found.parts.get(weight.name)
    return part is not None and part.axis != 0


def weight_bytes(found: Split, weight: Weight, weights: Weights) -> int:
    """Of a rank's part of a weight. Both axes are cut between blocks, so its bytes are its share."""
    part = found.parts.get(weight.name)
    whole = weights[weight.name if part is None else part.name]
    total = sum(tensor.nbytes for tensor in whole)
    if part is None:
        return total
    elements = sum(tensor.size for tensor in whole)
    size = 1
    for length in weight.shape:
        size *= length
    return total * size // elements
