"""The memory that a model needs, asked before it is loaded, against what it takes when it is."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from olivine import memory
from olivine.formats import open_checkpoint
from olivine.llm import LLM
from olivine.loading import LoadOptions
from olivine.memory import STEPS, STEPS_CPU, Need, free_bytes, needed, return_freed


@pytest.mark.parametrize(
    "options",
    [
        LoadOptions(device="cpu"),
        LoadOptions(device="cpu", context=100, sequences=3),
        LoadOptions(device="cpu", context=64, sequences=2, kv_type="q8_0"),
        LoadOptions(device="cpu", context=64, sequences=1),
    ],
)
def test_what_is_asked_for_is_what_a_loaded_model_has(options: LoadOptions) -> None:
    checkpoint = open_checkpoint("olivine-mini")
    need = needed(checkpoint, options)
    given = {name: value for name, value in vars(options).items() if name not in ("threads", "kv_bytes")}
    with LLM(checkpoint, threads=1, kv_bytes=1 << 40, **given) as llm:
        assert need.cache == llm.cache_bytes
        assert need.device == "cpu"
    with LLM(checkpoint, threads=1, kv_bytes=need.least_cache, **given) as llm:
        assert llm.cache_bytes == need.least_cache
    assert 0 < need.weights <= checkpoint.file_bytes


def test_a_limit_of_the_cache_counts() -> None:
    checkpoint = open_checkpoint("olivine-mini")
    whole = needed(checkpoint, LoadOptions(device="cpu"))
    half = needed(checkpoint, LoadOptions(device="cpu", kv_bytes=whole.cache // 2))
    assert half.cache == whole.cache // 2
    assert needed(checkpoint, LoadOptions(device="cpu", kv_bytes=1)).cache == whole.least_cache


def test_weights_must_fit_on_a_gpu_and_only_should_on_the_cpu() -> None:
    assert Need("cpu", weights=1000, cache=80, least_cache=10).least == 10 + STEPS_CPU
    assert Need("cpu", weights=1000, cache=80, least_cache=10).wanted == 1080 + STEPS_CPU
    assert Need("cuda", weights=1000, cache=80, least_cache=10).least == 1010 + STEPS["cuda"]


def test_memory_that_was_promised_and_is_not_touched_yet_is_not_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "spare_bytes", lambda: 1_000_000)
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "status").write_text("VmRSS: 900 kB\nRssAnon:\t     300 kB\n")
    assert free_bytes("cpu", 0, tmp_path) == 1_000_000
    assert free_bytes("cpu", 300 * 1024, tmp_path) == 1_000_000  # touched: the system knows
    assert free_bytes("cpu", 500 * 1024, tmp_path) == 1_000_000 - 200 * 1024
    assert free_bytes("cpu", 1 << 30, tmp_path) == 0
    assert free_bytes("cpu", 1000, tmp_path / "nowhere") == 999_000


def test_memory_of_a_gpu_is_what_its_driver_says(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    emptied: list[None] = []
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (5000, 9000))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: emptied.append(None))
    assert free_bytes("cuda", promised=4000) == 5000  # what is promised there is taken already
    return_freed("cuda")
    return_freed("cpu")
    gc.unfreeze()
    assert emptied == [None]
