"""How much memory a KV cache takes, and a context for which there is enough."""

from __future__ import annotations

import math
from collections.abc import Sequence

from olivine.backends import CACHE_TYPES, CHUNK, Share
from olivine.engine.budget import page_counts, spare_bytes, whole_bytes
from olivine.models import Model
from olivine.towers import Tower, longest_block

# Memory for steps: on a GPU what the backend itself leaves free, on the CPU their buffers.
STEPS = {"cuda": 5 << 28}
STEPS_CPU = 64 << 20
LEAST_CONTEXT = 512  # a context is not reduced below that
_UNLIMITED = 1 << 100
_NOT_KNOWN = 1 << 62  # what `whole_bytes` says where the system does not


def cache_size(
    model: Model,
    context: int,
    *,
    device: str = "cpu",
    sequences: int = 1,
    kv_type: str = "auto",
    block: int = 0,
    share: Share | None = None,
) -> int:
    """Bytes of KV cache that sequences of `context` tokens take at most, on the device that has this share of
    the model. A step takes `block` rows at once, if that is more than a chunk."""
    if device == "cuda":
        from olivine.backends.cuda import CHUNK as chunk
        from olivine.backends.cuda import PAGE_SIZE as page_size
    else:
        from olivine.backends.cpu import PAGE_SIZE as page_size

        chunk = CHUNK
    each = CACHE_TYPES.get("BF16" if kv_type == "auto" else kv_type.upper(), 4.0)
    most = max(chunk, block)
    return page_counts(model.plan, page_size, each, context, sequences, _UNLIMITED, most, share)[1]


def fitting_context(
    model: Model,
    device: str,
    context: int,
    kv_type: str = "auto",
    towers: Sequence[Tower] = (),
    shares: Sequence[Share] = (),
) -> tuple[int, list[str]]:
    """The context; or less, and a warning, where the KV cache of one sequence would not fit into the memory
    that is free: at most the model's own, and a power of two. Where not even `LEAST_CONTEXT` fits it stays as
    it is, which is an error later. `shares`: of a divided model, what each device has; the first has the
    towers."""
    block = longest_block(towers)
    free = [
        (share, _free_for_cache(share, device, () if index else towers))
        for index, share in enumerate(shares or [whole_share(model)])
    ]

    def size(tokens: int, share: Share) -> int:
        return cache_size(model, tokens, device=device, kv_type=kv_type, block=block, share=share)

    def fits(tokens: int) -> bool:
        return all(size(tokens, share) <= room for share, room in free)

    if fits(context):
        return context, []
    least = min(LEAST_CONTEXT, model.config.context)
    found = min(context, model.config.context)
    while found > least and not fits(found):
        found = max(least, 1 << (found - 1).bit_length() - 1)
    if found >= context or not fits(found):
        return context, []
    smaller = "" if kv_type == "q8_0" else " (a KV cache of type q8_0 takes half)"
    fullest, room = min(free, key=lambda each: each[1] - size(context, each[0]))
    return found, [
        f"a context of {context} tokens takes {size(context, fullest) / 1e9:.1f} GB of KV cache, and "
        f"{room / 1e9:.1f} GB of memory is free for it: the context is {found} tokens{smaller}"
    ]


def whole_share(model: Model) -> Share:
    """What the device has of a model that is not divided."""
    stored = sum(part.nbytes for weight in model.plan.weights for part in model.weights[weight.name])
    return Share((model.plan,), stored)


def _free_for_cache(share: Share, device: str, towers: Sequence[Tower]) -> float:
    """Memory that is left for a KV cache; no end of it where the system does not say. Weights on the CPU are
    a mapped file, but for those that were copied: the system drops its pages as it likes."""
    taken = sum(tower.step_bytes for tower in towers) + len(share.plans) * STEPS.get(device, STEPS_CPU)
    if device == "cuda":
        import torch

        taken += share.weights + sum(tower.weight_bytes for tower in towers)
        return max(0, int(torch.cuda.mem_get_info()[0]) - taken)
    return math.inf if whole_bytes() >= _NOT_KNOWN else max(0, spare_bytes() - taken - share.copied)
