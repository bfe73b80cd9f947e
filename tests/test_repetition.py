"""Loops in a text are noticed, and nothing else is taken for one."""

from __future__ import annotations

import random

import pytest

from olivine.repetition import EVERY, LONGEST_PERIOD, REPEATS, SPAN, Repetition, period


def noise(count: int, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(1000), k=count)


def ends_at(tokens: list[int]) -> int | None:
    """After how many tokens a loop is noticed."""
    watch = Repetition()
    return next((count for count, token in enumerate(tokens, 1) if watch.feed(token)), None)


@pytest.mark.parametrize("length", [1, 2, 7, 40, 100, LONGEST_PERIOD])
def test_a_passage_over_and_over_again_is_noticed_after_its_fifth_time(length: int) -> None:
    before, passage = noise(500), noise(length, 1)
    due = 500 + max(SPAN, REPEATS * length)
    found = ends_at(before + passage * 2000)
    assert found is not None and due <= found < due + EVERY


@pytest.mark.parametrize(
    "tokens",
    [
        noise(5000),
        noise(300) + [7] * (SPAN - 40) + noise(300, 1),  # a ruler
        noise(100) + noise(50, 1) * (REPEATS - 1) + noise(500, 2),  # a refrain
        [token for row in range(400) for token in (1, 2, 3, 1000 + row, 4)],  # a numbered list
        list(range(2000)),
    ],
)
def test_what_is_no_loop_goes_on(tokens: list[int]) -> None:
    assert ends_at(tokens) is None


def test_the_period_is_the_shortest_one() -> None:
    assert period([1, 2, 3] * 200) == 3
    assert period([1] * SPAN) == 1
    assert period([1] * (SPAN - 1)) is None


def test_a_loop_longer_than_the_longest_period_is_not_looked_for() -> None:
    assert ends_at(noise(LONGEST_PERIOD + 1) * 10) is None
