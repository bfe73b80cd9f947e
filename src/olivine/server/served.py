"""A model under the name by which clients ask for it, loaded or not."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from olivine.errors import OlivineError
from olivine.llm import LLM
from olivine.memory import Need

State = Literal["unloaded", "loading", "loaded", "unloading"]


class ServedModel:
    """A model of the server. One that was loaded by others (`llm`) stays loaded: it cannot be had again.

    Only the event loop's thread touches it.
    """

    def __init__(
        self,
        name: str,
        llm: LLM | None = None,
        *,
        path: Path | None = None,
        mmproj: Path | None = None,
        aliases: Sequence[str] = (),
        pinned: bool = False,
        preload: bool = False,
        created: int | None = None,
    ) -> None:
        assert llm is not None or path is not None
        self.name = name
        self.aliases = tuple(aliases)
        self.path = path
        self.mmproj = mmproj  # the file with its towers; None: the one beside it
        self.pinned = pinned or path is None  # not unloaded by itself
        self.preload = preload  # it is loaded at the start of the server
        self.created = int(time.time()) if created is None else created
        self.state: State = "unloaded" if llm is None else "loaded"
        self.users = 0  # requests that it answers
        self.waiting = 0  # requests that wait for it to be loaded
        self.used = time.monotonic()  # when it was last in use
        self.expires: float | None = None  # when it will be unloaded if nobody uses it (`time.time`)
        self.progress = (0, 0)  # bytes of weights that are loaded, and their total
        self.failure: str | None = None  # why it could not be loaded, the last time, for clients …
        self.error: OlivineError | None = None  # … and for the operator
        self.need = None if llm is None else _need_of(llm)
        if self.need is not None:
            self.progress = (self.need.weights, self.need.weights)
        self._llm = llm
        self.failed_start = False  # it was to be loaded at the start of the server, and was not
        self.facts: tuple[Any, Any] | None = None  # for `facts_of`
        self.past: Counter[str] = Counter(model_loads=int(llm is not None))  # totals until it was unloaded
        # For `Models`.
        self.loading: asyncio.Task[None] | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.asked: float | None = None  # `keep`, as a request asked for it, until the last one is done
        self.keep: float | None = None  # seconds that it stays loaded when nobody uses it; None: forever

    def __repr__(self) -> str:
        return f"<ServedModel {self.name}: {self.state}, {self.users} requests>"

    @property
    def llm(self) -> LLM:
        """The model itself; there while `Models.use` lends it."""
        assert self._llm is not None, f"{self.name} is not loaded"
        return self._llm

    @property
    def loaded(self) -> LLM | None:
        """The model itself if it is loaded, to look at."""
        return self._llm if self.state == "loaded" else None

    @property
    def device(self) -> str | None:
        """Where it is loaded, or was."""
        return None if self.need is None else self.need.device

    @property
    def file_bytes(self) -> int:
        """Of the file, or of all files in the folder; 0 where they are gone."""
        if self._llm is not None:
            return self._llm.checkpoint.file_bytes
        try:
            files = (
                [self.path] if self.path and self.path.is_file() else list(Path(self.path or "").iterdir())
            )
            return sum(file.stat().st_size for file in files)
        except OSError:
            return 0

    def totals(self) -> Counter[str]:
        """Totals since the start of the server, however often it was loaded."""
        return self.past if self._llm is None else self.past + _totals_of(self._llm)

    def event(self) -> dict[str, Any]:
        """How it is, for those who listen."""
        done, total = self.progress
        found: dict[str, Any] = {"model": self.name, "state": self.state, "bytes": done, "total": total}
        if self.failure is not None:
            found["error"] = self.failure
        return found

    def without_path(self, text: str) -> str:
        """A text in which the place of the file is replaced by the model's name."""
        return text if self.path is None else text.replace(str(self.path), self.name)

    def put(self, llm: LLM, need: Need) -> None:
        """It is loaded."""
        self._llm, self.need = llm, replace(need, cache=llm.cache_bytes)
        self.state = "loaded"
        self.past["model_loads"] += 1
        self.failed_start = False

    def take(self) -> LLM:
        """It is about to be unloaded. Its totals stay: counters never fall."""
        llm, self._llm = self.llm, None
        self.past += _totals_of(llm)
        self.state = "unloading"
        self.progress = (0, self.progress[1])
        return llm


def _totals_of(llm: LLM) -> Counter[str]:
    """What an engine has done, by the names of /metrics; requests by how they ended."""
    stats = llm.stats()
    found = Counter(
        prompt_tokens=stats.prompt_tokens,
        generation_tokens=stats.generated_tokens,
        prompt_tokens_cached=stats.prefix_hit,
        prefix_cache_queries=stats.prefix_asked,
        prefix_cache_hits=stats.prefix_hit,
        num_preemptions=stats.preempted,
        engine_steps=stats.steps,
    )
    return found + Counter({f"finished:{reason}": count for reason, count in stats.finished.items()})


def _need_of(llm: LLM) -> Need:
    weights = sum(part.nbytes for parts in llm.model.weights.values() for part in parts)
    weights += sum(tower.weight_bytes for tower in llm.towers)
    kind = llm.device.partition("×")[0].partition(" ")[0].rstrip(",")  # "cpu×8 avx2", "cpu, 2 ranks"
    return Need(
        kind, weights, llm.cache_bytes, llm.cache_bytes, sum(tower.step_bytes for tower in llm.towers)
    )
