"""Every backend has the same entry, behind a dict of devices."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from olivine.backends import BACKENDS, Compiled, CompileOptions, backend
from olivine.formats import open_checkpoint
from olivine.loading import DEVICES, LoadOptions, compile_model, model_of
from oracles import tiny


def test_every_device_has_a_backend_with_an_entry() -> None:
    assert ("auto", *BACKENDS) == DEVICES
    for device, name in BACKENDS.items():
        assert name == f"olivine.backends.{device}"
        if device != "cuda" or (importlib.util.find_spec("torch") and importlib.util.find_spec("triton")):
            assert callable(backend(device))


@pytest.mark.parametrize(("device", "default"), [("cpu", "BF16"), ("reference", "F32")])
def test_a_backend_sizes_its_cache_and_names_itself(device: str, default: str, tmp_path: Path) -> None:
    model = model_of(open_checkpoint(tiny.write("tiny-qwen3", "Q8_0", tmp_path)))
    asked: list[Any] = []

    def pages(page_size: int, chunk: int, cache_type: str, spare: Any = None) -> tuple[list[int], int]:
        asked.append((page_size, cache_type))
        return [4] * len(model.plan.groups), 1234

    compiled = backend(device)(model.plan, model.weights, CompileOptions(pages, threads=1))
    assert isinstance(compiled, Compiled) and compiled.reads_files
    assert asked == [(compiled.program.page_size, default)]
    assert (compiled.cache_bytes, compiled.cache_type) == (1234, default)
    assert compiled.program.page_counts == (4,) * len(model.plan.groups)
    assert compiled.device.startswith(device)


def test_the_gpu_has_a_copy_of_the_weights_and_gives_the_cache_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("triton")
    from olivine.backends import cuda

    model = model_of(open_checkpoint(tiny.write("tiny-qwen3", "Q8_0", tmp_path)))
    made: list[dict[str, Any]] = []
    monkeypatch.setattr(cuda, "CudaProgram", lambda plan, weights, **options: made.append(options))
    monkeypatch.setattr(cuda, "spare_bytes", lambda plan, weights: 1 << 28)
    monkeypatch.setattr(cuda, "device_name", lambda: "a GPU")
    (each,) = {group.bytes_per_token(2) * cuda.PAGE_SIZE for group in model.plan.groups}
    for budget, most in ((None, 1 << 28), (1 << 24, 1 << 24)):
        options = LoadOptions(sequences=4096, kv_bytes=budget, progress=print)
        compiled = compile_model(model, "cuda", 1024, options)
        assert (compiled.device, compiled.cache_type, compiled.reads_files) == ("cuda a GPU", "BF16", False)
        assert 0.9 * most < compiled.cache_bytes <= most
        assert made[-1]["cache_type"] == "BF16" and made[-1]["progress"] is print
        assert sum(made[-1]["page_counts"]) * each == compiled.cache_bytes


def test_a_budget_of_the_user_goes_before_what_a_backend_finds(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(tiny.write("tiny-qwen3", "Q8_0", tmp_path))
    model = model_of(checkpoint)
    sizes = [
        compile_model(model, "cpu", 64, LoadOptions(threads=1, sequences=4, kv_bytes=budget), checkpoint)
        for budget in (1 << 30, None)
    ]
    assert sizes[0].cache_bytes == sizes[1].cache_bytes > 0
    (pages,) = {group.bytes_per_token(2) * 32 for group in model.plan.groups}
    small = compile_model(model, "cpu", 64, LoadOptions(threads=1, sequences=4, kv_bytes=pages * 5))
    assert small.cache_bytes < sizes[0].cache_bytes
