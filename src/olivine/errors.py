"""Every error that Olivine raises on purpose.

OlivineError
├── CheckpointError     a model file is missing, broken or hostile: names the file and the field
├── TokenizerError      a tokenizer cannot be built, or cannot do what was asked
├── ModelError          an architecture, a configuration value or a set of tensors that we cannot run
├── RequestError        what the caller asked for does not make sense
└── BusyError           more requests are waiting than may wait: try again later

A message says what was wrong, where, and (where there is one) the next thing to do.
"""

from __future__ import annotations

from os import PathLike


class OlivineError(Exception):
    """The root: `except OlivineError` catches everything that is not a bug of ours."""


class CheckpointError(OlivineError):
    """A model file that cannot be used. `path` and `field` say where, `problem` says what."""

    def __init__(self, path: str | PathLike[str], field: str, problem: str) -> None:
        super().__init__(f"{path}: {field}: {problem}" if field else f"{path}: {problem}")
        self.path = str(path)
        self.field = field
        self.problem = problem


class TokenizerError(OlivineError):
    """A tokenizer file or vocabulary that cannot be used."""


class ModelError(OlivineError):
    """An architecture, configuration or set of weights that cannot be run."""


class RequestError(OlivineError):
    """A request that cannot be served as it was asked."""


class BusyError(OlivineError):
    """A request that cannot be served now."""
