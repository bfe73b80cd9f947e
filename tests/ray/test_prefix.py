"""Prefixes of prompts: what is shared, what is learned, and which replica is preferred."""

from __future__ import annotations

import json
from typing import Any

import pytest

from olivine.ray.prefix import BLOCK, MOST_BLOCKS, PrefixIndex, preferred, prefixes_of

SYSTEM = {"role": "system", "content": "You are a careful assistant. " * 20}


def hashes(**body: Any) -> tuple[bytes, ...]:
    return prefixes_of(json.dumps(body).encode())


def shared(one: tuple[bytes, ...], other: tuple[bytes, ...]) -> int:
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), len(one))


def test_a_longer_conversation_begins_as_the_shorter() -> None:
    first = [SYSTEM, {"role": "user", "content": "Why is the sky blue? " * 10}]
    longer = [*first, {"role": "assistant", "content": "Light. " * 40}, {"role": "user", "content": "More"}]
    one, two = hashes(messages=first), hashes(messages=longer, temperature=0.3, max_tokens=9)
    assert len(two) > len(one) >= 5
    assert two[: len(one)] == one


@pytest.mark.parametrize(
    "bodies",
    [
        [{"prompt": "x" * 100 + " a" * 200}, {"prompt": "x" * 100 + " b" * 200}],
        [{"system": "a b " * 100, "messages": []}, {"system": "a c " * 100, "messages": []}],
        [{"instructions": "a b " * 100, "input": "q"}, {"instructions": "d b " * 100, "input": "q"}],
        [{"model": "one", "prompt": "a b " * 100}, {"model": "two", "prompt": "a b " * 100}],
        [{"prompt": list(range(300))}, {"prompt": list(range(1, 300))}],
    ],
)
def test_other_prompts_have_other_hashes(bodies: list[dict[str, Any]]) -> None:
    one, two = (hashes(**body) for body in bodies)
    assert one and two and one[-1] != two[-1]


def test_media_are_told_apart_by_their_digest() -> None:
    def asked(picture: str) -> tuple[bytes, ...]:
        image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{picture}"}}
        return hashes(messages=[{"role": "user", "content": [image, {"type": "text", "text": "a b " * 90}]}])

    one, two = asked("A" * 100_000), asked("A" * 99_999 + "B")
    assert len(one) < 10  # the picture itself is not in it
    assert shared(one, two) == 0


@pytest.mark.parametrize(
    "body", [b"", b"no json", b"[1]", b'"x"', b"--form\r\n", b"[" * 600_000, b"\xff\xfe"]
)
def test_what_is_no_prompt_has_no_prefix(body: bytes) -> None:
    assert prefixes_of(body) == ()


def test_long_prompts_have_a_bounded_number() -> None:
    assert len(hashes(prompt="word " * BLOCK * MOST_BLOCKS)) == MOST_BLOCKS


def test_an_index_knows_who_was_sent_what() -> None:
    index: PrefixIndex[str] = PrefixIndex()
    index.learn([b"1", b"2", b"3"], "a")
    index.learn([b"1", b"2", b"4"], "b")
    assert index.depths([b"1", b"2", b"3", b"5"]) == {"a": 3, "b": 2}
    assert index.depths([b"9", b"2"]) == {}
    index.keep({"b"})
    assert index.depths([b"1", b"2", b"3"]) == {"b": 2}


def test_an_index_forgets_the_ends_of_what_is_oldest() -> None:
    index: PrefixIndex[str] = PrefixIndex(most=4)
    index.learn([b"1", b"2", b"3"], "a")
    index.learn([b"7", b"8"], "a")
    assert len(index) == 4
    assert index.depths([b"1", b"2", b"3"]) == {"a": 2}


@pytest.mark.parametrize(
    "depths, loads, wanted",
    [
        ({}, {"a": 0, "b": 0}, None),
        ({"a": 2}, {"a": 0, "b": 0}, "a"),
        ({"a": 2, "b": 3}, {"a": 0, "b": 1}, "b"),
        ({"a": 3, "b": 3}, {"a": 2, "b": 1}, "b"),
        ({"a": 2}, {"a": 3, "b": 0}, "a"),  # within the bound
        ({"a": 2}, {"a": 8, "b": 0}, None),  # too busy: the others learn it
        ({"a": 2}, {"a": 100, "b": 90}, "a"),
        ({"a": 2}, {"a": 140, "b": 80}, None),
        ({"gone": 9}, {"a": 0, "b": 0}, None),
    ],
)
def test_the_replica_with_most_of_a_prompt_is_preferred_unless_it_is_too_busy(
    depths: dict[str, int], loads: dict[str, float], wanted: str | None
) -> None:
    assert preferred(depths, loads) == wanted
