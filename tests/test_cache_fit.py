"""A context that does not fit into memory is reduced, and said so."""

from __future__ import annotations

import pytest

import olivine
from olivine import cache_fit
from olivine.cache_fit import STEPS_CPU, cache_size, fitting_context
from olivine.loading import model_of
from olivine.models import Model


@pytest.fixture(scope="module")
def mini() -> Model:
    return model_of(olivine.open_checkpoint("olivine-mini"))  # made for 2,048 tokens


def with_memory(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(cache_fit, "spare_bytes", lambda: STEPS_CPU + count)
    monkeypatch.setattr(cache_fit, "whole_bytes", lambda: 1 << 40)


def test_what_fits_stays(mini: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    with_memory(monkeypatch, cache_size(mini, 2048))
    assert fitting_context(mini, "cpu", 2048) == (2048, [])


def test_what_does_not_fit_becomes_a_power_of_two_that_does(
    mini: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_memory(monkeypatch, cache_size(mini, 2048) - 1)
    context, (told,) = fitting_context(mini, "cpu", 2048)
    assert context == 1024 and "the context is 1024 tokens (a KV cache of type q8_0 takes half)" in told
    assert told.startswith("a context of 2048 tokens takes 0.0 GB of KV cache, and 0.0 GB of memory is free")
    assert fitting_context(mini, "cpu", 2048, "q8_0") == (2048, []), "half of it fits"


def test_beyond_memory_no_context_is_longer_than_the_model_s_own(
    mini: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_memory(monkeypatch, cache_size(mini, 5000))
    assert fitting_context(mini, "cpu", (1 << 63) - 1)[0] == 2048
    assert fitting_context(mini, "cpu", 3000) == (3000, []), "what fits is the user's choice"


def test_where_nothing_fits_or_nothing_is_known_the_context_stays(
    mini: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_memory(monkeypatch, 1000)
    assert fitting_context(mini, "cpu", 2048) == (2048, [])
    monkeypatch.setattr(cache_fit, "whole_bytes", lambda: 1 << 62)
    assert fitting_context(mini, "cpu", 1 << 40) == (1 << 40, [])


def test_a_loaded_model_says_so(mini: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    with_memory(monkeypatch, cache_size(mini, 1024))
    with olivine.load("olivine-mini", context=2048, device="cpu", threads=1, sequences=1) as llm:
        assert llm.context == 1024
        assert any("the context is 1024 tokens" in warning for warning in llm.warnings)
    with olivine.load(
        "olivine-mini", context=2048, device="cpu", threads=1, sequences=1, kv_bytes=1e9
    ) as llm:
        assert llm.context == 2048, "the user gave a budget"
