"""The short names: gemma3:1b is one quantization of one repository. aliases.json has all that is known."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("aliases.json")
CACHE_ELEMENT_BYTES = 2  # of the KV cache: bf16


@dataclass(frozen=True)
class Alias:
    """A model that a short name means. Sizes are approximate: the hub is asked before a download."""

    name: str  # family:size
    repo: str
    type: str  # the quantization
    bytes: int  # of the weights
    tower_bytes: int  # of the mmproj file; 0: it takes text only
    parameters: str
    context: int  # that it was trained for
    kv: tuple[tuple[int, int, int], ...]  # layers, elements of K and V of a token, window (0: all tokens)
    license: str
    can: tuple[str, ...]  # vision, audio, tools, thinking
    active: float = 1.0  # the share of the weights that a token reads
    default: bool = False  # what the family's name alone means

    @property
    def family(self) -> str:
        return self.name.partition(":")[0]

    @property
    def all_bytes(self) -> int:
        return self.bytes + self.tower_bytes

    def cache_bytes(self, context: int) -> int:
        """Of the KV cache of one sequence."""
        tokens = ((layers * each, min(context, window or context)) for layers, each, window in self.kv)
        return sum(elements * count for elements, count in tokens) * CACHE_ELEMENT_BYTES


@cache
def aliases() -> dict[str, Alias]:
    """All short names, in the order of the file."""
    entries = json.loads(FILE.read_text(encoding="utf-8"))["models"]
    return {entry["name"]: _alias(entry) for entry in entries}


@cache
def defaults() -> dict[str, Alias]:
    """What the name of a family alone means."""
    return {alias.family: alias for alias in aliases().values() if alias.default}


def _alias(entry: dict[str, Any]) -> Alias:
    entry = dict(entry)
    entry["bytes"] = round(entry.pop("gb") * 1e9)
    entry["tower_bytes"] = round(entry.pop("towers_gb", 0) * 1e9)
    entry["kv"] = tuple(map(tuple, entry["kv"]))
    entry["can"] = tuple(entry["can"])
    return Alias(**entry)
