"""Strings in text that arrives in pieces."""

from __future__ import annotations

import itertools

import pytest

from olivine.matching import StopStrings, partial_match


@pytest.mark.parametrize(
    ("text", "wanted", "size"),
    [
        ("", ["abc"], 0),
        ("x", [], 0),
        ("xa", ["abc"], 1),
        ("xab", ["abc"], 2),
        ("xabc", ["abc"], 0),  # whole strings are not partial
        ("abab", ["ababx", "bx"], 4),  # the longest of all
        ("aab", ["aabaac", "ab!"], 3),
        ("<tool", ["<tool_call>", "<think>"], 5),
    ],
)
def test_the_longest_end_that_may_become_a_string(text: str, wanted: list[str], size: int) -> None:
    assert partial_match(text, wanted) == size


def test_every_partial_match_is_found() -> None:
    wanted = ["aba", "bb", "abba"]
    for letters in itertools.product("ab", repeat=5):
        text = "".join(letters)
        ends = [n for s in wanted for n in range(1, len(s)) if text.endswith(s[:n])]
        assert partial_match(text, wanted) == max(ends, default=0)


def test_held_text_comes_once_it_is_decided() -> None:
    stops = StopStrings(["stop", ""])
    assert not stops.add("a st") and stops.take() == "a "
    assert not stops.add("ill sto") and stops.take() == "still "
    assert stops.found is None
    assert stops.add("p, and more") and stops.take(final=True) == ""
    assert stops.found == "stop"
    assert not StopStrings([]).add("anything")
