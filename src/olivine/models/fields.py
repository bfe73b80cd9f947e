"""Reading a configuration: typed, range-checked, and loud about what is missing."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from olivine.errors import ModelError

LONGEST_HEAD = 1 << 10  # columns: what kernels have room for
LONGEST_WINDOW = (1 << 31) - 1  # tokens, in the 32 bits that kernels have for it
_LEAST = 1e-15  # of a number above 0: what divides by two such numbers is finite in float32
_REQUIRED: Any = object()


class Fields:
    """A config.json, or the metadata of a GGUF file with its architecture's prefix."""

    def __init__(self, values: Mapping[str, Any], prefix: str = "") -> None:
        self._values = values
        self._prefix = prefix

    @property
    def architecture(self) -> str:
        """The GGUF architecture whose keys these are."""
        return self._prefix.rstrip(".")

    def has(self, key: str) -> bool:
        return self._values.get(self._prefix + key) is not None

    def is_null(self, key: str) -> bool:
        """Whether the key is there, and says that there is no such thing."""
        return self._prefix + key in self._values and not self.has(key)

    def with_defaults(self, defaults: Mapping[str, Any]) -> Fields:
        """The same, with values for keys that are missing or null."""
        told = {key: value for key, value in self._values.items() if value is not None}
        return Fields({**defaults, **told}, self._prefix)

    def with_values(self, values: Mapping[str, Any]) -> Fields:
        """The same, with these values in place of those that are there."""
        return Fields({**self._values, **values}, self._prefix)

    def contradicts(self, other: Fields) -> bool:
        """Whether a value here is not that of `other`."""
        told = {key: value for key, value in self._values.items() if value is not None}
        return any(other._values.get(key) != value for key, value in told.items())

    def is_list(self, key: str) -> bool:
        value = self._values.get(self._prefix + key)
        return hasattr(value, "__len__") and not isinstance(value, str)

    def integer(self, key: str, default: int = _REQUIRED, *, low: int = 1, high: int = 1 << 24) -> int:
        value = self._get(key, default)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._error(key, value, "must be one whole number")
        if not low <= value <= high:
            raise self._error(key, value, f"must lie in {low}..{high}")
        return value

    def number(
        self, key: str, default: float = _REQUIRED, *, low: float = _LEAST, high: float = 1e12
    ) -> float:
        """A finite number with low < value ≤ high."""
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._error(key, value, "must be one number")
        if not (math.isfinite(value) and low < value <= high):
            raise self._error(key, value, f"must be above {low:g} and at most {high:g}")
        return float(value)

    def flag(self, key: str, default: bool = _REQUIRED) -> bool:
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise self._error(key, value, "must be true or false")
        return value

    def text(self, key: str, default: str = _REQUIRED) -> str:
        value = self._get(key, default)
        if not isinstance(value, str):
            raise self._error(key, value, "must be a string")
        return value

    def choice(self, key: str, choices: Mapping[str, Any], default: str = _REQUIRED) -> Any:
        """What `choices` has for the string at `key`."""
        value = self.text(key, default)
        if value not in choices:
            raise self._error(key, value, f"is not supported; known: {', '.join(sorted(choices))}")
        return choices[value]

    def items(self, key: str, length: int) -> Sequence[Any] | None:
        """A list of exactly `length` entries (one a layer), or None where there is none."""
        value = self._get(key, None)
        if value is None:
            return None
        if hasattr(value, "tolist"):
            value = value.tolist()
        if not isinstance(value, Sequence) or isinstance(value, str) or len(value) != length:
            raise self._error(key, value, f"must be a list of {length} entries, one a layer")
        return value

    def integers(self, key: str) -> tuple[int, ...]:
        """A list of whole numbers of any length; empty where there is none."""
        value = self._get(key, ())
        if isinstance(value, str) or not isinstance(value, Sequence):
            raise self._error(key, value, "must be a list")
        if not all(isinstance(item, int) for item in value):
            raise self._error(key, value, "must be a list of whole numbers")
        return tuple(value)

    def numbers(self, key: str, length: int) -> tuple[float, ...]:
        """A list of exactly `length` numbers above 0."""
        values = self._get(key, _REQUIRED)
        if not isinstance(values, Sequence) or isinstance(values, str) or len(values) != length:
            raise self._error(key, values, f"must be a list of {length} numbers")
        plain = (type(value) in (int, float) and _LEAST < value < 1e12 for value in values)
        if not all(plain):
            raise self._error(key, values, "must be a list of finite numbers above 0")
        return tuple(map(float, values))

    def per_layer(self, key: str, layers: int, *, high: int = 1 << 24) -> tuple[int, ...]:
        """Whole numbers from 1 to `high`, one a layer; one number alone is that of every layer."""
        if not self.is_list(key):
            return (self.integer(key, high=high),) * layers
        values = self.items(key, layers) or ()
        if not all(type(value) is int and 1 <= value <= high for value in values):
            raise self._error(key, values, f"must be whole numbers in 1..{high}")
        return tuple(values)

    def sections(self) -> Iterator[tuple[str, Fields]]:
        """Every key that has not null, with the object that it must have."""
        for key in self._values:
            if (section := self.section(key)) is not None:
                yield key, section

    def section(self, key: str) -> Fields | None:
        """A nested object, or None where there is none."""
        value = self._get(key, None)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self._error(key, value, "must be an object")
        return Fields(value)

    def refuse(self, key: str, why: str) -> ModelError:
        """The error for a value that is well-formed but cannot be run."""
        return self._error(key, self._values.get(self._prefix + key), why)

    def _get(self, key: str, default: Any) -> Any:
        value = self._values.get(self._prefix + key)
        if value is None:
            if default is _REQUIRED:
                raise ModelError(f"the model's configuration lacks {self._prefix + key!r}")
            return default
        return value

    def _error(self, key: str, value: object, problem: str) -> ModelError:
        shown = repr(value)
        shown = shown if len(shown) <= 60 else shown[:57] + "..."
        return ModelError(f"the model's configuration has {self._prefix + key} = {shown}, which {problem}")
