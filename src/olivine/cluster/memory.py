"""The memory that each rank of a divided plan needs, foretold from shapes and types: nothing is read."""

from __future__ import annotations

from typing import NamedTuple

from olivine.backends.base import Share, Weights
from olivine.cluster.rank import Parallel, divide, gpus_of, local_ranks
from olivine.cluster.torch_collectives import require_torch
from olivine.plan import Plan, Weight
from olivine.plan.split import Split


class Need(NamedTuple):
    """Bytes that a rank needs for its part of the plan."""

    weights: int  # that it maps, or copies: columns are copied when the model is loaded
    copied: int  # … of those
    cache_token: float  # of KV cache for a token, with two bytes an element
    plan: Plan


def rank_needs(plan: Plan, weights: Weights, parallel: Parallel) -> list[Need]:
    """What each rank needs, stage by stage."""
    return [
        Need(
            sum(weight_bytes(found, weight, weights) for weight in part.weights),
            sum(weight_bytes(found, weight, weights) for weight in part.weights if _is_copied(found, weight)),
            sum(group.bytes_per_token(2) for group in part.groups),
            part,
        )
        for found in divide(plan, weights, parallel)
        for part in found.plans
    ]


def shares(plan: Plan, weights: Weights, parallel: Parallel, nodes: int, device: str) -> list[Share]:
    """What each device of the driver's machine has, of so many machines: first the driver's own. The ranks of
    a machine have its memory together, and those that share a GPU have the GPU's."""
    needs, here = rank_needs(plan, weights, parallel), local_ranks(parallel, nodes)
    places, held = [0] * parallel.size, 1.0
    if device == "cuda":
        from olivine.backends.cuda import device_bytes

        places = [*gpus_of(parallel, len(here), require_torch().cuda.device_count())]
        stored = sum(tensor.nbytes for weight in plan.weights for tensor in weights[weight.name])
        held = device_bytes(plan, weights) / max(1, stored)  # a GPU keeps some types in others
    found = []
    for place in sorted({places[number] for number in here}):
        mine = [needs[number] for number in here if places[number] == place]
        found.append(
            Share(
                tuple(each.plan for each in mine),
                round(held * sum(each.weights for each in mine)),
                0 if device == "cuda" else sum(each.copied for each in mine),
            )
        )
    return found


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
