"""The models that are served."""

from __future__ import annotations

import difflib
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from olivine.llm import LLM
from olivine.server.errors import ApiError


@dataclass
class ServedModel:
    """A model that is loaded, under the name by which clients ask for it."""

    name: str
    llm: LLM
    created: int = field(default_factory=lambda: int(time.time()))


class Models:
    """Which models there are. `use` gives one for as long as a request needs it."""

    def __init__(self, models: list[ServedModel]) -> None:
        self._models = {model.name: model for model in models}

    def list(self) -> list[ServedModel]:
        return [*self._models.values()]

    @asynccontextmanager
    async def use(self, name: str | None) -> AsyncIterator[ServedModel]:
        """The model of this name, or the first where a request names none; not unloaded meanwhile."""
        if not name:
            yield next(iter(self._models.values()))
            return
        if name not in self._models:
            near = difflib.get_close_matches(name, self._models, 3, 0.3) or [*self._models]
            raise ApiError(
                404,
                f"there is no model {name[:120]!r}; nearest: {', '.join(near)}",
                code="model_not_found",
                param="model",
            )
        yield self._models[name]

    def close(self) -> None:
        for model in self._models.values():
            model.llm.close()
