"""The memory that a model needs, asked before it is loaded, and the memory that is free."""

from __future__ import annotations

import gc
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from olivine import malloc
from olivine.backends import Share
from olivine.cache_fit import STEPS, STEPS_CPU, cache_size
from olivine.engine.budget import spare_bytes
from olivine.formats import Checkpoint
from olivine.loading import LoadOptions, choose_device, model_and_context, shares_of
from olivine.perception import CACHE_BYTES
from olivine.towers import longest_block, towers_of


@dataclass(frozen=True)
class Need:
    """Bytes that a model needs on a device: of one that is divided, what this machine has of it, or the GPU
    that has most."""

    device: str  # "cpu", "cuda" or "reference"
    weights: int  # with those of towers
    cache: int  # KV cache for all sequences
    least_cache: int  # … for one, which a model cannot run without
    towers: int = 0  # the largest steps of its towers
    kept: int = 0  # soft tokens of earlier images, which are kept in the memory of the CPU
    copied: int = 0  # weights of a divided model that its ranks copy, in the memory of the CPU
    ranks: int = 1  # that are there

    @property
    def on_gpu(self) -> bool:
        return self.device == "cuda"

    @property
    def steps(self) -> int:
        return self.ranks * STEPS.get(self.device, STEPS_CPU)

    @property
    def least(self) -> int:
        """What must be free. Weights on the CPU are a mapped file, but for those that were copied: the system
        drops its pages as it likes."""
        return self.least_cache + self.towers + self.steps + (self.weights if self.on_gpu else self.copied)

    @property
    def taken(self) -> int:
        """What it takes, sooner or later, of memory that no file is behind."""
        return self.cache + self.towers + self.copied

    @property
    def wanted(self) -> int:
        """What it takes to run all sequences at full speed: the weights stay in memory."""
        return self.cache + self.towers + self.kept + self.steps + self.weights


def needed(checkpoint: Checkpoint, options: LoadOptions) -> Need:
    """What a model takes when it is loaded with these options."""
    device, _ = choose_device(options.device)
    model, context = model_and_context(checkpoint, options)
    path = None if options.mmproj is None else Path(options.mmproj)
    towers, _ = towers_of(checkpoint, model, path)
    block = longest_block(towers)

    def need(index: int, share: Share) -> Need:
        def cache(sequences: int) -> int:
            kind = options.kv_type
            return cache_size(
                model,
                context,
                device=device,
                sequences=sequences,
                kv_type=kind,
                block=block,
                share=share,
            )

        least, most = cache(1), cache(options.sequences)
        if options.kv_bytes is not None:
            most = max(least, min(most, options.kv_bytes))
        mine = () if index else towers
        return Need(
            device,
            share.weights + sum(tower.weight_bytes for tower in mine),
            most,
            least,
            sum(tower.step_bytes for tower in mine),
            CACHE_BYTES if mine and device != "cuda" else 0,
            share.copied,
            len(share.plans),
        )

    needs = [need(index, share) for index, share in enumerate(shares_of(model, device, options))]
    return max(needs, key=lambda each: each.least)


def free_bytes(device: str, promised: int = 0, proc: Path = Path("/proc")) -> int:
    """Bytes that can be had on a device.

    On the CPU a KV cache is taken page by page: of the `promised` bytes, those that this process and its
    children (the ranks of divided models) have not touched yet are not free, though the system counts them
    so.
    """
    if device == "cuda":
        import torch

        return int(torch.cuda.mem_get_info()[0])
    return max(0, spare_bytes() - max(0, promised - _anonymous(proc)))


def return_freed(device: str | None) -> None:
    """Frees what a closed model has left: objects in cycles, and on a GPU what torch keeps for itself."""
    gc.unfreeze()  # a model's objects are frozen when it is loaded
    gc.collect()
    gc.freeze()
    if device == "cuda" and "torch" in sys.modules:
        import torch

        torch.cuda.empty_cache()
    malloc.return_freed()  # 130 MB where 80 remain, after a model with 49,000 tokens


def _anonymous(proc: Path) -> int:
    """Memory of this process and of its children that no file is behind."""
    found = 0
    with suppress(OSError, ValueError, IndexError):
        pids = [pid for each in proc.glob("self/task/*/children") for pid in each.read_text().split()]
        for pid in ("self", *pids):
            lines = (proc / pid / "status").read_text().splitlines()
            found += next((1024 * int(line.split()[1]) for line in lines if line.startswith("RssAnon:")), 0)
    return found
