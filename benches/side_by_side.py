"""Two engines in turn: a row of a table whose cells are speeds. What fails costs its cell, not the row."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol, TypeVar

T = TypeVar("T")

REPEATS = 3  # of ours in each round; the other engine's benchmarks repeat by themselves
WARM_UPS = 2  # in which kernels are loaded, and graphs recorded


class Measured(Protocol):
    def speed(self) -> float: ...


@dataclass(frozen=True)
class Run:
    """A run of the other engine, and the cells that it fills: it gives their speeds, in this order."""

    cells: Sequence[str]
    speeds: Callable[[], Sequence[float]]


@dataclass
class Row:
    """Tokens a second by cell, one for each round; `failures` says why there are none."""

    ours: dict[str, list[float]] = field(default_factory=dict)
    theirs: dict[str, list[float]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def cell(self, name: str) -> str:
        """Medians of both, and their ratio; what is missing is a dash."""
        mine, other = (
            statistics.median(found[name]) if found.get(name) else None for found in (self.ours, self.theirs)
        )
        ratio = None if mine is None or other is None else mine / other
        return f"{_number(mine, 0):>9} /{_number(other, 0):>7} {_number(ratio, 2):>6}×"


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def side_by_side(ours: Mapping[str, Callable[[], Measured]], theirs: Sequence[Run], rounds: int) -> Row:
    """`ours` makes what is measured for each cell. What has failed is not tried again."""
    row = Row()
    runs = list(theirs)
    ready = {name: _attempt(row, f"{name}, ours", partial(_warmed_up, make)) for name, make in ours.items()}
    for _ in range(rounds):
        for run in list(runs):
            speeds = _attempt(row, f"{', '.join(run.cells)}, theirs", run.speeds)
            if speeds is None:
                runs.remove(run)
                continue
            for name, speed in zip(run.cells, speeds, strict=True):
                row.theirs.setdefault(name, []).append(speed)
        for name, measured in ready.items():
            if measured is None:
                continue
            found = _attempt(row, f"{name}, ours", partial(_typical, measured))
            if found is None:
                ready[name] = None
            else:
                row.ours.setdefault(name, []).append(found)
    return row


def _attempt(row: Row, what: str, run: Callable[[], T]) -> T | None:
    try:
        return run()
    except Exception as error:
        row.failures.append(f"{what}: {error}")
        return None


def _warmed_up(make: Callable[[], Measured]) -> Measured:
    made = make()
    for _ in range(WARM_UPS):
        made.speed()
    return made


def _typical(measured: Measured) -> float:
    return statistics.median([measured.speed() for _ in range(REPEATS)])
