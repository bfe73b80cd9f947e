"""Configurations of an application: what they are read from, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from olivine.errors import OlivineError, RequestError
from olivine.ray.config import Config, Replicas, cores_per_rank


@pytest.mark.parametrize("given, wanted", [(2, (2, 2)), ("3", (3, 3)), ("1-4", (1, 4)), ("2-2", (2, 2))])
def test_replicas_are_a_number_or_two(given: Any, wanted: tuple[int, int]) -> None:
    assert Replicas.of(given) == wanted


@pytest.mark.parametrize("given", [0, -1, "", "4-1", "0-3", "many", True, None, 10**6, "1-2-3", 1.5])
def test_other_replicas_are_refused(given: Any) -> None:
    with pytest.raises(RequestError, match="replicas must be"):
        Replicas.of(given)


def test_options_of_the_server_and_of_the_model_are_told_apart() -> None:
    found = Config.of(
        {
            "model": "m",
            "replicas": "1-3",
            "threads": 4,
            "api_keys": ["k"],
            "cors": ["http://x"],
            "max_body": 9,
        }
    )
    assert (found.load.threads, found.settings.api_keys, found.settings.cors) == (4, ("k",), ("http://x",))
    assert found.settings.max_body == 9 and found.settings.may_pull is False
    assert Config.of({"model": "m", "tensor_parallel": 2, "pipeline_parallel": 3}).ranks == 6


def test_texts_of_a_command_line_become_what_they_mean() -> None:
    texts = {"model": "7", "replicas": "2", "threads": "4", "cors": "http://x", "max_timeout": "2.5"}
    found = Config.of({**texts, "reproducible": "true"})
    assert (found.model, found.load.threads, found.settings.cors) == ("7", 4, ("http://x",))
    assert (found.settings.max_timeout, found.load.reproducible) == (2.5, True)


@pytest.mark.parametrize(
    "given, told",
    [
        ({}, "model must be"),
        ({"model": "m", "idle_unload": 5.0}, "stays loaded"),
        ({"model": "m", "max_connections": 5}, "proxies"),
        ({"model": "m", "pull": True}, "one model"),
        ({"model": "m", "rank_address": "a:1", "rank_key": "k"}, "processes of one machine"),
        ({"model": "m", "threads": 0}, "threads"),
    ],
)
def test_what_replicas_cannot_have_is_refused(given: dict[str, Any], told: str) -> None:
    with pytest.raises(OlivineError, match=told):
        Config.of(given)


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(TypeError, match=r"no option 'replica'; known: .*replicas"):
        Config.of({"model": "m", "replica": 2})


@pytest.mark.parametrize(
    "nodes, replicas, ranks, wanted",
    [
        ([2], 2, 1, 1),
        ([16], 2, 1, 8),
        ([16], 3, 1, 5),
        ([8, 8], 2, 2, 4),
        ([8, 4], 2, 1, 4),
        ([8, 4], 3, 1, 4),
        ([2], 5, 1, 1),
        ([], 1, 1, 1),
        ([64], 1, 4, 16),
    ],
)
def test_cores_are_shared_so_that_all_replicas_find_room(
    nodes: list[float], replicas: int, ranks: int, wanted: int
) -> None:
    assert cores_per_rank(nodes, replicas, ranks) == wanted
