"""A figure that was measured several times."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median
from typing import Any


@dataclass(frozen=True)
class Spread:
    """Repeated measurements of one figure: their median, lowest and highest."""

    values: tuple[float, ...]  # in the order in which they were measured

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        return cls(tuple(values))

    @property
    def median(self) -> float:
        return median(self.values)

    @property
    def low(self) -> float:
        return min(self.values)

    @property
    def high(self) -> float:
        return max(self.values)

    def over(self, other: Spread) -> Spread:
        """The ratios within each repeat: what slows the machine for a moment slows both and cancels out."""
        return Spread.of(a / b for a, b in zip(self.values, other.values, strict=True))

    def times(self, factor: float) -> Spread:
        return Spread.of(factor * value for value in self.values)

    def to_json(self) -> dict[str, Any]:
        return {"median": self.median, "low": self.low, "high": self.high, "values": list(self.values)}
