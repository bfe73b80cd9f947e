"""The memory that a model needs, asked before it is loaded, and the memory that is free."""

from __future__ import annotations

import gc
import sys
from dataclasses import dataclass
from pathlib import Path

from olivine import malloc
from olivine.cache_fit import STEPS, STEPS_CPU, cache_size
from olivine.engine.budget import spare_bytes
from olivine.formats import Checkpoint
from olivine.loading import LoadOptions, choose_device, model_and_context
from olivine.perception import CACHE_BYTES
from olivine.towers import longest_block, towers_of


@dataclass(frozen=True)
class Need:
    """Bytes that a model needs on a device."""

    device: str  # "cpu", "cuda" or "reference"
    weights: int  # with those of towers
    cache: int  # KV cache for all sequences
    least_cache: int  # … for one, which a model cannot run without
    towers: int = 0  # the largest steps of its towers
    kept: int = 0  # soft tokens of earlier images, which are kept in the memory of the CPU

    @property
    def on_gpu(self) -> bool:
        return self.device == "cuda"

    @property
    def steps(self) -> int:
        return STEPS.get(self.device, STEPS_CPU)

    @property
    def least(self) -> int:
        """What must be free. Weights on the CPU are a mapped file: the system drops its pages as it likes."""
        return self.least_cache + self.towers + self.steps + (self.weights if self.on_gpu else 0)

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

    def cache(sequences: int) -> int:
        kind = options.kv_type
        return cache_size(model, context, device=device, sequences=sequences, kv_type=kind, block=block)

    least = cache(1)
    most = cache(options.sequences)
    if options.kv_bytes is not None:
        most = max(least, min(most, options.kv_bytes))
    if device == "cuda":
        from olivine.backends.cuda import device_bytes  # which brings torch

        weights = device_bytes(model.plan, model.weights)
    else:
        weights = sum(part.nbytes for weight in model.plan.weights for part in model.weights[weight.name])
    return Need(
        device,
        weights + sum(tower.weight_bytes for tower in towers),
        most,
        least,
        sum(tower.step_bytes for tower in towers),
        CACHE_BYTES if towers and device != "cuda" else 0,
    )


def free_bytes(device: str, promised: int = 0, proc: Path = Path("/proc")) -> int:
    """Bytes that can be had on a device.

    On the CPU a KV cache is taken page by page: of the `promised` bytes, those that this process has not
    touched yet are not free, though the system counts them so.
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
    """Memory of this process that no file is behind."""
    try:
        lines = (proc / "self" / "status").read_text().splitlines()
        return next((1024 * int(line.split()[1]) for line in lines if line.startswith("RssAnon:")), 0)
    except (OSError, ValueError, IndexError):
        return 0
