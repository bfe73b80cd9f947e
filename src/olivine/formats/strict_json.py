"""JSON from untrusted files: limits on size, depth and numbers, and no repeated names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from olivine.errors import CheckpointError, printable
from olivine.formats.mapping import read_text

# "[[],[],…" costs twenty times its size once parsed. A safetensors header has three brackets a tensor.
_MAX_CONTAINERS = 2**20
_MAX_DIGITS = 40  # Python's own conversion is quadratic in the number of digits


def parse_object(path: Path, field: str, text: str, *, unique: bool) -> dict[str, Any]:
    """The JSON object that `text` is; with `unique`, a name that occurs twice in one object is refused."""
    if text.count("[") + text.count("{") > _MAX_CONTAINERS:
        raise CheckpointError(path, field, f"has more than {_MAX_CONTAINERS} lists and objects")
    try:
        value = json.loads(text, parse_int=_integer, object_pairs_hook=_unique if unique else None)
    except RecursionError:  # not chained: its traceback is a thousand frames
        raise CheckpointError(path, field, "is nested too deeply") from None
    except ValueError as error:
        raise CheckpointError(path, field, f"is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(path, field, f"holds a JSON {type(value).__name__}, not an object")
    return value


def read_object(path: Path, limit: int, *, unique: bool = False) -> dict[str, Any]:
    """The JSON object in a file of at most `limit` bytes."""
    return parse_object(path, "", read_text(path, limit), unique=unique)


def _integer(digits: str) -> int:
    if len(digits) > _MAX_DIGITS:
        raise ValueError(f"a number has {len(digits)} digits")
    return int(digits)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise ValueError(f'"{printable(twice)}" occurs twice')
    return result
