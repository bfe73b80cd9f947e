"""The memory that a model needs, asked before it is loaded, against what it takes when it is."""

from __future__ import annotations

import gc
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from olivine import cache_fit, loading, memory
from olivine.backends import CompileOptions
from olivine.backends.cpu import native
from olivine.cache_fit import STEPS, STEPS_CPU
from olivine.cluster import Parallel
from olivine.cluster.memory import rank_needs, shares
from olivine.engine.budget import page_counts
from olivine.formats import open_checkpoint
from olivine.llm import LLM
from olivine.loading import LoadOptions, compile_model, model_of, shares_of
from olivine.memory import Need, free_bytes, needed, return_freed
from olivine.perception import CACHE_BYTES
from olivine.server.served import ServedModel
from olivine.towers import Encoder, longest_block, towers_of
from oracles import folders, isas, seeing


@pytest.mark.parametrize(
    "options",
    [
        LoadOptions(device="cpu"),
        LoadOptions(device="cpu", context=100, sequences=3),
        LoadOptions(device="cpu", context=64, sequences=2, kv_type="q8_0"),
        LoadOptions(device="cpu", context=64, sequences=1),
        LoadOptions(device="cpu", context=0, sequences=1),
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


FAR: Any = {"rank_address": "10.0.0.1:29500", "rank_key": "key"}


def test_of_a_divided_model_its_ranks_on_this_machine_count() -> None:
    """They have the KV cache in parts, and the columns of weights that they copied, which no file is
    behind."""
    checkpoint = open_checkpoint("olivine-mini")
    model = model_of(checkpoint)
    whole = needed(checkpoint, LoadOptions(device="cpu"))
    for tensor, pipeline in ((2, 1), (1, 2), (2, 2)):
        ways: Any = {"device": "cpu", "tensor_parallel": tensor, "pipeline_parallel": pipeline}
        ranks = rank_needs(model.plan, model.weights, Parallel(tensor, pipeline))
        need = needed(checkpoint, LoadOptions(**ways))
        assert need.ranks == len(ranks) and need.steps == len(ranks) * STEPS_CPU
        assert need.weights == sum(each.weights for each in ranks)
        assert need.copied == sum(each.copied for each in ranks)
        assert need.least == need.least_cache + need.copied + need.steps
        # A layer of another stage whose cache is read is stored in both.
        assert whole.cache <= need.cache < 1.5 * whole.cache
        far = needed(checkpoint, LoadOptions(**ways, **FAR))
        mine = ranks[Parallel(tensor, pipeline).driver]
        assert (far.ranks, far.weights, far.copied) == (1, mine.weights, mine.copied)
        assert far.cache < 0.8 * whole.cache and far.least_cache < 0.8 * whole.least_cache


def test_a_divided_model_has_the_cache_that_was_asked_for() -> None:
    checkpoint = open_checkpoint("olivine-mini")
    options: Any = {"device": "cpu", "context": 100, "sequences": 3, "tensor_parallel": 2}
    need = needed(checkpoint, LoadOptions(**options))
    with LLM(checkpoint, threads=1, kv_bytes=1 << 40, **options) as llm:
        assert need.cache == llm.cache_bytes
        assert ServedModel("mini", llm).device == "cpu"


def test_a_model_that_fits_only_divided_is_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is its context reduced."""
    checkpoint = open_checkpoint("olivine-mini")
    options = LoadOptions(device="cpu", context=2048, tensor_parallel=2, sequences=1)
    model, divided = model_of(checkpoint, 2048), replace(options, **FAR)
    whole, need = needed(checkpoint, options), needed(checkpoint, divided)
    assert need.least < whole.least
    free = need.least_cache + whole.copied
    monkeypatch.setattr(cache_fit, "STEPS_CPU", 0)
    monkeypatch.setattr(cache_fit, "whole_bytes", lambda: 1 << 40)
    monkeypatch.setattr(cache_fit, "spare_bytes", lambda: free)
    contexts = [
        cache_fit.fitting_context(model, "cpu", 2048, shares=shares_of(model, "cpu", each))[0]
        for each in (options, divided)
    ]
    assert contexts[0] < contexts[1] == 2048


def test_each_gpu_has_the_ranks_that_share_it(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("triton")
    model = model_of(open_checkpoint("olivine-mini"))
    ranks = rank_needs(model.plan, model.weights, Parallel(2, 2))
    for count, wanted in ((1, [[2, 3, 0, 1]]), (2, [[0, 2], [1, 3]]), (8, [[2], [3], [0], [1]])):
        monkeypatch.setattr(torch.cuda, "device_count", lambda count=count: count)
        found = shares(model.plan, model.weights, Parallel(2, 2), 1, "cuda")
        names = [{part.name for part in share.plans} for share in found]
        assert names == [{ranks[number].plan.name for number in each} for each in wanted]
        assert not any(share.copied for share in found)
    whole = needed_on_gpu(monkeypatch)
    divided = needed_on_gpu(monkeypatch, tensor_parallel=2)
    assert divided.least_cache < 0.8 * whole.least_cache and divided.weights < 0.8 * whole.weights


def needed_on_gpu(monkeypatch: pytest.MonkeyPatch, **options: Any) -> Need:
    monkeypatch.setattr(memory, "choose_device", lambda device: ("cuda", ()))
    return needed(open_checkpoint("olivine-mini"), LoadOptions(**options))


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
    (tmp_path / "self" / "task" / "7").mkdir(parents=True)
    (tmp_path / "self" / "task" / "7" / "children").write_text("12 ")
    (tmp_path / "12").mkdir()
    (tmp_path / "12" / "status").write_text("RssAnon:\t     200 kB\n")
    assert free_bytes("cpu", 500 * 1024, tmp_path) == 1_000_000  # a rank touched it


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


# Few layers, and as many patches as Gemma 3's images have.
PATCHES = {
    "vision_config": {
        "hidden_size": 64, "intermediate_size": 4096, "num_hidden_layers": 1, "num_attention_heads": 4,
        "patch_size": 14, "image_size": 896, "vision_use_head": False,
    },
    "mm_tokens_per_image": 256,
}  # fmt: skip


@pytest.fixture(scope="module")
def seeing_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folders.write_multimodal("gemma3", tmp_path_factory.mktemp("patches"), **PATCHES)


def test_towers_count_with_their_weights_and_their_largest_step(seeing_model: Path) -> None:
    checkpoint, options = open_checkpoint(seeing_model), LoadOptions(device="cpu", context=600)
    ((tower,), _) = towers_of(checkpoint, model_of(checkpoint))
    assert tower.most_rows == 4096 and tower.most_tokens == 256
    need = needed(checkpoint, options)
    text = sum(part.nbytes for parts in model_of(checkpoint).weights.values() for part in parts)
    assert need.weights == text + tower.weight_bytes
    assert need.towers == tower.step_bytes and need.kept == CACHE_BYTES
    assert need.least == need.least_cache + tower.step_bytes + STEPS_CPU
    assert need.wanted == need.weights + need.cache + tower.step_bytes + CACHE_BYTES + STEPS_CPU


def test_the_largest_step_of_a_tower_takes_no_more_than_that(seeing_model: Path) -> None:
    checkpoint = open_checkpoint(seeing_model)
    ((tower,), _) = towers_of(checkpoint, model_of(checkpoint))
    part = seeing.Features(np.zeros((4096, 588), np.float32), seeing.cells(64, 64, 4))
    encoder = Encoder(tower, "cpu", threads=1)
    encoder.encode([part])  # what is loaded and kept once for all does not count
    del encoder
    memory.return_freed("cpu")
    before = memory._anonymous(Path("/proc"))
    encoder = Encoder(tower, "cpu", threads=1)
    encoder.encode([part])
    taken = memory._anonymous(Path("/proc")) - before
    # Some values are dropped before the last one is made: of 216 MB, 91 are taken with AVX2 and AVX-512. With
    # AMX most are in bfloat16, packed for the op that reads them: 54.
    least = 0.2 if native.lib().olv_isa().decode() in isas.BFLOAT16 else 0.4
    assert least * tower.step_bytes < taken <= tower.step_bytes + (8 << 20), (taken, tower.step_bytes)


def test_sounds_are_encoded_piece_by_piece(tmp_path: Path) -> None:
    """A row of sound is 16,384 columns wide after the first convolution of Gemma 4 E2B."""
    checkpoint = open_checkpoint(folders.write_multimodal("gemma4-e2b", tmp_path))
    sight, sound = towers_of(checkpoint, model_of(checkpoint))[0]
    assert (sight.step_rows, sound.step_rows) == (10_080, 1120)
    steps: list[int] = []
    encoder = Encoder(sound, "cpu", threads=1)
    encoder.compiled = encoder.compiled._replace(program=Counting(encoder.compiled.program, steps))
    sounds = [np.zeros((rows, 512), np.float32) for rows in (750, 750, 9)]
    found = encoder.encode([seeing.Features(each, np.full((len(each), 2), 4, np.int32)) for each in sounds])
    assert [len(each) for each in found] == [750, 750, 9] and steps == [750, 759]


class Counting:
    """A program that keeps the numbers of rows of its steps."""

    def __init__(self, program: Any, steps: list[int]) -> None:
        self._program, self._steps, self.page_size = program, steps, program.page_size

    def step(self, batch: Any, **how: Any) -> Any:
        self._steps.append(len(batch.tokens))
        return self._program.step(batch, **how)


def test_a_window_has_room_for_a_whole_image(tmp_path: Path) -> None:
    """An image of Gemma 4 is longer than a step of text, and its window must hold it."""
    checkpoint = open_checkpoint(folders.write_multimodal("gemma4-31b", tmp_path))
    options = LoadOptions(device="cpu", context=1024, sequences=2)
    need, model = needed(checkpoint, options), model_of(checkpoint)
    with LLM(checkpoint, threads=1, device="cpu", context=1024, sequences=2, kv_bytes=1 << 40) as llm:
        assert need.cache == llm.cache_bytes
        assert longest_block(llm.towers) == 1120
    assert need.cache > page_counts(model.plan, 32, 2, 1024, 2, 1 << 62, 512)[1]


def test_a_gpu_keeps_room_for_towers(seeing_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The KV cache takes what the weights leave, and towers are loaded with the first image."""
    checkpoint = open_checkpoint(seeing_model)
    model, found = model_of(checkpoint), []
    towers, _ = towers_of(checkpoint, model)
    room = towers[0].weight_bytes + towers[0].step_bytes

    def compiling(plan: Any, weights: Any, options: CompileOptions) -> Any:
        return options.pages(32, 2048, "BF16", lambda: room + (8 << 20))[1]

    monkeypatch.setattr(loading, "backend", lambda device: compiling)
    options = LoadOptions(sequences=4096, context=1024)
    for given in ((), towers):
        found.append(compile_model(model, "cuda", 1024, options, checkpoint, given))
    assert 7 << 20 < found[1] <= 8 << 20 and found[0] > room
