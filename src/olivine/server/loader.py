"""Opens, loads and closes the models that are served. Every method may take a while: they run in threads."""

from __future__ import annotations

import gc
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from olivine.backends import Progress
from olivine.engine.budget import SHARE
from olivine.formats import Checkpoint, open_checkpoint
from olivine.llm import LLM
from olivine.loading import LoadKwargs, LoadOptions
from olivine.memory import Need, free_bytes, needed, return_freed


@dataclass(frozen=True)
class Room:
    """Bytes that are free on a device. `wanted` leaves the weights of other models in memory."""

    least: int
    wanted: int


class Loader:
    """Loads models with the options of `olivine.load`."""

    def __init__(self, options: LoadKwargs | None = None) -> None:
        self.options = LoadOptions.of(cast(LoadKwargs, dict(options or {})))

    def open(self, path: str | os.PathLike[str], mmproj: Path | None = None) -> tuple[Checkpoint, Need]:
        """The files of a model, and the memory that it needs."""
        checkpoint = open_checkpoint(path)
        return checkpoint, needed(checkpoint, replace(self.options, mmproj=mmproj))

    def room(self, device: str, loaded: Sequence[Need]) -> Room:
        """What is free beside the models that are loaded on the device."""
        if device == "cuda":
            free = free_bytes(device)
            return Room(free, free)
        free = free_bytes(device, sum(each.taken for each in loaded))
        return Room(free, free - sum(each.weights - each.copied for each in loaded))

    def load(
        self,
        checkpoint: Checkpoint,
        need: Need,
        room: Room,
        progress: Progress,
        mmproj: Path | None = None,
    ) -> LLM:
        """A model in that room. On the CPU its cache takes a share of it: others have theirs promised."""

        def compiling(done: int, total: int) -> None:
            progress(0, 0)  # which ends a load that was given up
            if self.options.compile_progress is not None:
                self.options.compile_progress(done, total)

        options = replace(self.options, progress=progress, compile_progress=compiling, mmproj=mmproj)
        if not need.on_gpu:
            share = max(need.least_cache, int(SHARE * room.least))
            options = replace(options, kv_bytes=min(need.cache, share))
        gc.disable()  # loading makes no garbage, only vocabularies that are slow to look through for some
        try:
            llm = LLM(checkpoint, **cast(Any, vars(options)))
            gc.freeze()
        finally:
            gc.enable()
        return llm

    def close(self, llm: LLM) -> None:
        """Ends a model that nobody uses."""
        llm.close()

    def end(self) -> None:
        """No further model is loaded: what was frozen is garbage again."""
        gc.unfreeze()

    def return_freed(self, device: str | None) -> None:
        """After the last reference to a model is gone: its memory goes back to the device."""
        return_freed(device)
