"""A table of two engines: medians and ratios by cell, and cells that fail."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from side_by_side import REPEATS, WARM_UPS, Run, side_by_side


class Clock:
    """Is measured: gives the speeds told, after those of warming up."""

    def __init__(self, *speeds: float) -> None:
        self._speeds = iter([0.5] * WARM_UPS + [*speeds])

    def speed(self) -> float:
        return next(self._speeds)


def failing(message: str) -> Callable[[], Sequence[float]]:
    def fail() -> Sequence[float]:
        raise RuntimeError(message)

    return fail


def test_a_cell_has_the_medians_of_both_and_their_ratio() -> None:
    rounds = iter([[10.0, 4.0], [20.0, 6.0]])
    ours = {"decode": lambda: Clock(*[25, 30, 99] * 2), "prompt-16": lambda: Clock(*[1] * 3, *[9] * 3)}
    row = side_by_side(ours, [Run(["decode", "prompt-16"], lambda: next(rounds))], 2)
    assert REPEATS == 3
    assert row.cell("decode").split() == ["30", "/", "15", "2.00×"]
    assert row.cell("prompt-16").split() == ["5", "/", "5", "1.00×"]
    assert not row.failures


def test_what_fails_is_a_dash_with_its_reason_and_the_other_cells_stay() -> None:
    calls = []

    def refused() -> Sequence[float]:
        calls.append(1)
        raise RuntimeError("n_parallel is too large")

    def unmade() -> Clock:
        raise ValueError("no memory")

    ours = {"decode": lambda: Clock(*[8.0] * 9), "many-64": unmade, "many-256": lambda: Clock(*[9.0] * 9)}
    theirs = [Run(["decode"], lambda: [4.0]), Run(["many-64"], lambda: [3.0]), Run(["many-256"], refused)]
    row = side_by_side(ours, theirs, 2)
    assert row.cell("decode").split() == ["8", "/", "4", "2.00×"]
    assert row.cell("many-64").split() == ["-", "/", "3", "-×"]
    assert row.cell("many-256").split() == ["9", "/", "-", "-×"]
    assert len(row.cell("many-256")) == len(row.cell("decode"))
    assert row.failures == [
        "many-64, ours: no memory",
        "many-256, theirs: n_parallel is too large",
    ]
    assert len(calls) == 1  # the second round does not ask again


def test_one_run_that_fails_costs_all_its_cells() -> None:
    ours = {"a": lambda: Clock(*[2.0] * 3), "b": lambda: Clock(*[2.0] * 3)}
    row = side_by_side(ours, [Run(["a", "b"], failing("gone"))], 1)
    assert row.failures == ["a, b, theirs: gone"]
    assert row.cell("a") == row.cell("b")


def test_ours_may_fail_in_the_middle() -> None:
    row = side_by_side({"a": lambda: Clock(1.0)}, [Run(["a"], lambda: [1.0])], 1)
    assert row.cell("a").split() == ["-", "/", "1", "-×"]
    assert len(row.failures) == 1
