"""What an application is made of, read from the options of `olivine serve` or from a mapping of YAML."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

from olivine.checks import from_kwargs, refuse_unknown, refused
from olivine.errors import RequestError
from olivine.loading import LoadOptions
from olivine.server.settings import Settings

_LOAD = {each.name for each in fields(LoadOptions)} - {"progress", "compile_progress"}
_SETTINGS = {each.name for each in fields(Settings)}
_OWN = {"model", "alias", "replicas", "ingresses"}
_TEXTS = {"model", "alias", "replicas", "device", "kv_type", "mmproj", "host", "log_format"}
# Options of a server that one process is: elsewhere Ray decides, or all replicas would have to agree.
_NOT_HERE = {
    "idle_unload": "the model of a replica stays loaded",
    "pull": "replicas serve one model, which every machine has",
    "max_connections": "Ray's proxies accept connections",
    "rank_address": "the ranks of a replica are processes of one machine",
    "nodes": "the ranks of a replica are processes of one machine",
}
_USUAL = {**vars(LoadOptions()), **vars(Settings())}
MOST_REPLICAS = 4096


class Replicas(NamedTuple):
    """How many there are: a fixed number, or between two, as many as the requests need."""

    least: int
    most: int

    @classmethod
    def of(cls, value: Any) -> Replicas:
        """2, "2", or "1-4"."""
        found = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", str(value).strip())
        least, most = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
        if isinstance(value, bool) or not 1 <= least <= most <= MOST_REPLICAS:
            raise refused("replicas", f"a number, or two such as 1-4, up to {MOST_REPLICAS}", value)
        return cls(least, most)


@dataclass(frozen=True)
class Config:
    """A model, how many replicas of it, and how each is loaded and served."""

    model: str  # a path that every machine of the cluster has, or a name that each finds
    replicas: Replicas
    alias: str | None = None
    ingresses: int | None = None  # processes that send requests to replicas; None: two, where there are two
    load: LoadOptions = field(default_factory=LoadOptions)
    settings: Settings = field(default_factory=Settings)

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Config:
        """From options by name; one that is not known is refused. Lists of YAML become tuples, and what
        `serve run name=value` gives as text, numbers."""
        refuse_unknown(given, sorted(_LOAD | _SETTINGS | _OWN))
        values: dict[str, Any] = {name: _plain(name, each) for name, each in given.items()}
        if not isinstance(values.get("model"), str) or not values["model"]:
            raise refused("model", "the name or the path of a model", values.get("model"))
        for name, why in _NOT_HERE.items():
            if values.get(name, _USUAL[name]) != _USUAL[name]:
                raise RequestError(f"{name} is not for replicas on a Ray cluster: {why}")
        values["pull"] = False
        return cls(
            model=values["model"],
            replicas=Replicas.of(values.get("replicas", 1)),
            alias=values.get("alias"),
            ingresses=values.get("ingresses"),
            load=from_kwargs(LoadOptions, {name: values[name] for name in values if name in _LOAD}),
            settings=from_kwargs(Settings, {name: values[name] for name in values if name in _SETTINGS}),
        )

    @property
    def ranks(self) -> int:
        """Processes of one replica."""
        return self.load.tensor_parallel * self.load.pipeline_parallel

    @property
    def gpus(self) -> int:
        """GPUs of a rank. Ray hides those that a replica has not asked for."""
        return 1 if self.load.device == "cuda" else 0


def _plain(name: str, value: Any) -> Any:
    if isinstance(value, str) and name not in _TEXTS:
        with suppress(ValueError):
            value = json.loads(value)
        if isinstance(getattr(Settings, name, None), tuple) and not isinstance(value, list):
            value = [str(value)]
    return tuple(value) if isinstance(value, list) else value


def cores_per_rank(nodes: Sequence[float], replicas: int, ranks: int) -> int:
    """The most cores that each rank can have, if so many replicas are to find room on nodes with so many
    cores; at least 1."""
    for cores in range(int(max(nodes, default=1)) // ranks, 1, -1):
        if sum(int(node) // (cores * ranks) for node in nodes) >= replicas:
            return cores
    return 1
