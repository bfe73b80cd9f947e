"""What only Gemma 4 has: its configurations, tensors that may be missing, and what must not be touched."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from olivine.backends.cpu import CpuProgram
from olivine.backends.reference import ReferenceProgram
from olivine.dtypes import DTYPES
from olivine.errors import ModelError
from olivine.formats import open_checkpoint
from olivine.models.fields import Fields
from olivine.models.gemma4 import ARCHITECTURE
from olivine.models.gemma4_config import Gemma4Config, from_gguf, from_hf
from olivine.plan import ops
from olivine.tensor import Tensor
from oracles import gguf_twin, published, running
from oracles.blocks import random_blocks

TOKENS = [int(t) for t in np.random.default_rng(7).integers(0, published.VOCABULARY, 23)]
SLIDING, FULL = "sliding_attention", "full_attention"


def logits(path: Path) -> np.ndarray:
    return running.chunked(running.reference(path), TOKENS, [9])


def close(ours: np.ndarray, theirs: np.ndarray) -> None:
    assert theirs.std() > 0.3
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-4)


# ---- configurations

E2B = {
    "model_type": "gemma4_text",
    "hidden_size": 1536,
    "intermediate_size": 6144,
    "num_hidden_layers": 35,
    "num_attention_heads": 8,
    "num_key_value_heads": 1,
    "head_dim": 256,
    "global_head_dim": 512,
    "layer_types": [*[SLIDING] * 4, FULL] * 7,
    "sliding_window": 512,
    "hidden_size_per_layer_input": 256,
    "num_kv_shared_layers": 20,
    "use_double_wide_mlp": True,
    "final_logit_softcapping": 30.0,
    "max_position_embeddings": 131072,
}
E2B_GGUF = {
    "block_count": 35,
    "context_length": 131072,
    "embedding_length": 1536,
    "feed_forward_length": np.array([6144] * 15 + [12288] * 20, np.int32),
    "attention.head_count": 8,
    "attention.head_count_kv": 1,
    "attention.key_length": 512,
    "attention.value_length": 512,
    "attention.key_length_swa": 256,
    "attention.value_length_swa": 256,
    "attention.layer_norm_rms_epsilon": 1e-6,
    "attention.sliding_window": 512,
    "attention.sliding_window_pattern": np.array([*[True] * 4, False] * 7),
    "attention.shared_kv_layers": 20,
    "embedding_length_per_layer_input": 256,
    "rope.freq_base": 1e6,
    "rope.freq_base_swa": 1e4,
    "rope.dimension_count": 512,
    "rope.dimension_count_swa": 256,
    "final_logit_softcapping": 30.0,
}


def hf(**change: Any) -> Gemma4Config:
    return from_hf(Fields({**E2B, **change}))


def file(**change: Any) -> Gemma4Config:
    named = {f"gemma4.{k.replace('__', '.')}": v for k, v in {**E2B_GGUF, **change}.items()}
    return from_gguf(Fields(named, "gemma4."))


def test_e2b_from_both_formats() -> None:
    c = hf()
    assert c.layers == 35 and c.experts is None and c.per_layer == 256 and c.softcap == 30.0 and c.tied
    assert [layer.donor for layer in c.blocks[:15]] == [None] * 15
    assert {layer.donor for layer in c.blocks[15:]} == {13, 14}
    assert {(layer.window, layer.donor) for layer in c.blocks[15:]} == {(512, 13), (None, 14)}
    assert [layer.hidden for layer in c.blocks] == [6144] * 15 + [12288] * 20
    assert {(layer.window, layer.head_dim) for layer in c.blocks} == {(512, 256), (None, 512)}
    full, sliding = c.blocks[4].rope, c.blocks[0].rope
    assert full.frequencies[63] == pytest.approx(1e6 ** (-126 / 512))
    assert len(full.frequencies) == 256 and set(full.frequencies[64:]) == {0.0}
    assert sliding.frequencies[127] == pytest.approx(1e4 ** (-254 / 256))
    told = file()
    blocks = tuple(replace(layer, keys_are_values=False) for layer in told.blocks)
    assert replace(told, blocks=blocks, divided_rope=None) == c


def test_the_newer_spelling_says_the_same_by_layer() -> None:
    change = {"attention_k_eq_v": True, "num_global_key_value_heads": 4, "num_key_value_heads": 2}
    old = hf(**change)
    assert {layer.kv_heads for layer in old.blocks if layer.window is None} == {4}
    own = {f"{i:02d}": {"head_dim": 512, "num_key_value_heads": 4} for i in range(4, 35, 5)}
    assert (
        hf(**{**change, "global_head_dim": 8, "num_global_key_value_heads": 1}, per_layer_config=own) == old
    )
    assert hf(per_layer_config={str(i): {"head_dim": 512} for i in range(4, 35, 5)}) == hf()


def test_what_config_json_leaves_out_or_overrides() -> None:
    # KV heads of full layers are their own only where keys are values.
    assert {layer.kv_heads for layer in hf(num_global_key_value_heads=2).blocks} == {1}
    sparse = from_hf(Fields({"text_config": {"model_type": "gemma4_text"}, "model_type": "gemma4"}))
    assert (sparse.layers, sparse.width, sparse.heads, sparse.per_layer) == (30, 2304, 8, 256)
    assert [i for i, layer in enumerate(sparse.blocks) if layer.window is None] == [5, 11, 17, 23, 29]
    assert hf(hidden_size_per_layer_input=None).per_layer == hf(hidden_size_per_layer_input=0).per_layer == 0
    assert from_hf(Fields({"model_type": "gemma4_unified", "text_config": {}})).per_layer == 0
    # The last layer is full whatever its type says.
    assert hf(layer_types=[FULL, *[SLIDING] * 34], num_kv_shared_layers=0).blocks[-1].window is None


def test_the_models_with_per_layer_embeddings_have_the_small_ones_template() -> None:
    assert ARCHITECTURE.template_variables(hf()) == {"small": True}
    assert ARCHITECTURE.template_variables(hf(hidden_size_per_layer_input=0)) == {"small": False}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_kv_shared_layers": 35}, "num_kv_shared_layers"),
        ({"num_kv_shared_layers": -1}, "num_kv_shared_layers"),
        ({"num_kv_shared_layers": 31}, "leaves no full_attention layer with keys for layer 4"),
        ({"per_layer_config": {"35": {}}}, r"per_layer_config .* must name layers of 0\.\.34"),
        ({"per_layer_config": {"-1": {}}}, "must name layers"),
        ({"per_layer_config": {"٣": {}}}, "must name layers"),
        ({"per_layer_config": {"9" * 400: {}}}, "must name layers"),
        ({"per_layer_config": {"4": 512}}, "must be an object"),
        ({"per_layer_config": [512]}, "must be an object"),
        ({"per_layer_config": {"4": {"head_dim": 0}}}, "head_dim = 0"),
        ({"per_layer_config": {"4": {"head_dim": 511}}}, "layer 4 has heads of 511, which must be even"),
        (
            {"per_layer_config": {"4": {"num_key_value_heads": 3}}},
            "layer 4 has 3 KV heads, which must divide 8",
        ),
        ({"per_layer_config": {"34": {"head_dim": 512}}}, "layer 34 has other heads than layer 14"),
        ({"layer_types": [SLIDING] * 34}, "a list of 35 entries"),
        ({"layer_types": ["linear_attention"] * 35}, "sliding_attention and full_attention"),
        ({"layer_types": [[]] * 35}, "sliding_attention and full_attention"),
        ({"use_bidirectional_attention": "all"}, "use_bidirectional_attention = 'all'"),
        ({"hidden_activation": "relu"}, "hidden_activation"),
        ({"enable_moe_block": True}, "lacks 'num_experts'"),
        ({"enable_moe_block": True, "num_experts": 4, "top_k_experts": 5}, "top_k_experts"),
        ({"hidden_size_per_layer_input": -1}, "hidden_size_per_layer_input"),
        ({"rope_parameters": {FULL: {"rope_type": "proportional", "partial_rotary_factor": 2}}}, "partial"),
    ],
)
def test_configurations_that_do_not_add_up(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        hf(**change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"attention__shared_kv_layers": 35}, "shared_kv_layers"),
        ({"attention__sliding_window_pattern": None}, "sliding_window_pattern"),
        ({"attention__sliding_window_pattern": np.array([True] * 3)}, "a list of 35 entries"),
        ({"attention__head_count_kv": np.array([1] * 34 + [0], np.int32)}, "head_count_kv"),
        ({"attention__head_count_kv": np.array([1] * 34 + [3], np.int32)}, "layer 34 has 3 KV heads"),
        ({"feed_forward_length": np.array([6144] * 34, np.int32)}, "a list of 35 entries"),
        ({"feed_forward_length": "wide"}, "must be one whole number"),
        ({"attention__value_length": 256}, "value_length"),
        ({"attention__key_length_swa": None}, "lacks 'gemma4.attention.key_length_swa'"),
        ({"rope__dimension_count": 128}, "dimension_count"),
        ({"expert_count": 4, "expert_used_count": 5}, "expert_used_count"),
    ],
)
def test_metadata_that_does_not_add_up(change: dict[str, Any], message: str) -> None:
    change = {key.replace("__", "."): value for key, value in change.items()}
    with pytest.raises(ModelError, match=message):
        file(**change)


# ---- files


def test_the_text_model_inside_a_multimodal_one(tmp_path: Path) -> None:
    """With the towers beside it, and the keys that layers without any carry along all the same."""
    model = published.case("gemma4-e2b").make()
    published.save(model, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    nested = {name.replace("model.", "model.language_model.", 1): value for name, value in tensors.items()}
    for tower in ("vision_tower.x", "audio_tower.y", "embed_vision.z", "embed_audio.z"):
        nested[f"model.{tower}.weight"] = torch.zeros(3)
    for spare in ("k_proj", "v_proj", "k_norm"):
        donor = f"model.language_model.layers.5.self_attn.{spare}.weight"
        nested[donor.replace(".5.", ".8.")] = torch.full_like(nested[donor], torch.nan)
    save_file(nested, tmp_path / "model.safetensors")
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gemma4", "text_config": config}))
    assert running.build(tmp_path).warnings == ()
    close(logits(tmp_path), published.logits_of(model, TOKENS))


@pytest.mark.parametrize("name", ["gemma4-26b-a4b", "gemma4-everything"])
def test_experts_fused_and_split_are_the_same(name: str, tmp_path: Path) -> None:
    model = published.case(name).make()
    fused = gguf_twin.write_gguf(model, tmp_path / "fused.gguf")
    split = gguf_twin.write_gguf(model, tmp_path / "split.gguf", fused=False)
    assert "blk.0.ffn_gate_up_exps.weight" in open_checkpoint(fused).tensors
    assert "blk.0.ffn_up_exps.weight" in open_checkpoint(split).tensors
    close(logits(split), published.logits_of(model, TOKENS))
    np.testing.assert_array_equal(logits(fused), logits(split))


@pytest.mark.parametrize("fused", [True, False])
def test_a_single_expert_may_lack_its_axis(
    fused: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ggml counts no axis of 1 at the end, which is the first here."""
    case = published.case("gemma4-26b-a4b")
    model = replace(case, options={**case.options, "num_experts": 1, "top_k_experts": 1}).make()
    tensors = gguf_twin.gguf_tensors(model, fused=fused)
    alone = {name: value[0] if name.endswith("_exps.weight") else value for name, value in tensors.items()}
    assert any(len(alone[name].shape) < len(tensors[name].shape) for name in tensors)
    monkeypatch.setattr(gguf_twin, "gguf_tensors", lambda model, fused: alone)
    close(logits(gguf_twin.write_gguf(model, tmp_path / "a.gguf")), published.logits_of(model, TOKENS))


def write_without(model: Any, path: Path, monkeypatch: pytest.MonkeyPatch, *missing: str) -> Path:
    tensors = gguf_twin.gguf_tensors(model)
    kept = {name: values for name, values in tensors.items() if not name.endswith(missing)}
    assert len(kept) < len(tensors)
    monkeypatch.setattr(gguf_twin, "gguf_tensors", lambda model, fused: kept)
    return gguf_twin.write_gguf(model, path)


def test_tensors_that_a_gguf_file_may_lack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Divisors for a quarter of the pairs, and a scalar of 1 for each layer, go without saying."""
    model = published.case("gemma4-e4b").make()
    with torch.no_grad():
        for layer in model.model.layers:
            layer.layer_scalar.fill_(1.0)
    path = write_without(model, tmp_path / "m.gguf", monkeypatch, "rope_freqs.weight", "output_scale.weight")
    close(logits(path), published.logits_of(model, TOKENS))


def test_tensors_that_a_gguf_file_may_not_lack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = published.case("gemma4-31b").make()
    path = write_without(model, tmp_path / "m.gguf", monkeypatch, "blk.0.attn_v.weight", "5.attn_k.weight")
    with pytest.raises(ModelError) as error:
        running.build(path)
    assert "blk.0.attn_v.weight" in str(error.value) and "blk.5.attn_k.weight" in str(error.value)
    assert "blk.5.attn_v.weight" not in str(error.value)  # there the keys are the values


def test_a_share_of_rotated_pairs_other_than_a_quarter(tmp_path: Path) -> None:
    parameters = {
        FULL: {"rope_type": "proportional", "rope_theta": 1e5, "partial_rotary_factor": 0.7, "factor": 1.0},
        SLIDING: {"rope_type": "default", "rope_theta": 1e3},
    }
    model = published._gemma4("rotated", rope_parameters=parameters).make()
    theirs = published.logits_of(model, TOKENS)
    close(logits(published.save(model, tmp_path / "hf")), theirs)
    close(logits(gguf_twin.write_gguf(model, tmp_path / "m.gguf")), theirs)


# ---- what is remembered, and what is touched


@pytest.mark.parametrize(("name", "owners"), [("gemma4-e2b", 6), ("gemma4-e4b", 7), ("gemma4-31b", 7)])
def test_layers_that_share_keys_own_no_cache(name: str, owners: int, tmp_path: Path) -> None:
    plan = running.build(published.save(published.case(name).make(), tmp_path)).plan
    stores = [op.cache for op in plan.ops if isinstance(op, ops.StoreKV)]
    reads = [op.cache for op in plan.ops if isinstance(op, ops.Attention)]
    layers = published.case(name).options["num_hidden_layers"]
    assert len(plan.caches) == len(stores) == len(set(stores)) == owners
    assert len(reads) == layers and set(reads) == set(stores)
    assert sum(len(group.caches) for group in plan.groups) == owners


def program_on(backend: str, model: Any) -> ReferenceProgram | CpuProgram:
    counts = [8] * len(model.plan.groups)
    if backend == "reference":
        return ReferenceProgram(model.plan, model.weights, page_counts=counts, page_size=32)
    return CpuProgram(model.plan, model.weights, page_counts=counts, threads=2, cache_type="F32")


both = pytest.mark.parametrize("backend", ["reference", "cpu"])


@both
def test_an_injected_embedding_has_the_per_layer_row_of_token_0(backend: str, tmp_path: Path) -> None:
    model = published.case("gemma4-e2b").make()
    program = program_on(backend, running.build(published.save(model, tmp_path)))
    places = np.array([2, 3, 7], np.int32)
    vectors = np.random.default_rng(0).standard_normal((3, 36)).astype(np.float32)
    with torch.no_grad():
        ids = torch.tensor([TOKENS])
        embeddings = model.model.embed_tokens(ids)
        embeddings[0, places] = torch.from_numpy(vectors)
        ids[0, places] = 0
        per_layer = model.model.get_per_layer_inputs(ids)
        theirs = model(inputs_embeds=embeddings, per_layer_inputs=per_layer).logits[0].numpy()
    session = running.Session(program, 1, len(TOKENS))
    batch = session.batch([(0, TOKENS, True)])
    batch = replace(batch, embedding_rows=places, embeddings=vectors)
    close(program.step(batch).logits, theirs)


@both
def test_a_row_touches_the_experts_that_it_uses_and_no_others(backend: str, tmp_path: Path) -> None:
    """Of each layer's experts as many as a row uses change the result when they are spoiled."""
    model = running.build(published.save(published.case("gemma4-26b-a4b").make(), tmp_path))

    def result(weights: dict[str, tuple[Tensor, ...]]) -> np.ndarray:
        program = program_on(backend, replace(model, weights=weights))
        return running.chunked(program, TOKENS[:1], [1], generated=True)

    healthy = result(model.weights)
    for layer in (0, 6):
        name = f"blk.{layer}.ffn_down_exps.weight"
        (tensor,) = model.weights[name]
        used = 0
        for expert in range(7):
            spoiled = tensor.data.view(np.float32).reshape(tensor.shape).copy()
            spoiled[expert] = np.nan
            changed = replace(tensor, data=spoiled.reshape(-1).view(np.uint8))
            used += not np.array_equal(result({**model.weights, name: (changed,)}), healthy)
        assert used == 3


# The CPU backend expands these by one function; its tests of kernels have them all.
EXPANDED = ("NVFP4", "IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "TQ1_0", "TQ2_0")


@pytest.mark.parametrize(
    "dtype",
    [
        pytest.param(each, marks=pytest.mark.exhaustive if each in EXPANDED and each != "IQ3_S" else ())
        for each in DTYPES
    ],
)
def test_per_layer_embeddings_of_every_storage_type(dtype: str, tmp_path: Path) -> None:
    """Rows are decoded as they lie: both backends give what the published code gives for the same numbers."""
    case = published._gemma4("typed", num_hidden_layers=8, hidden_size_per_layer_input=32)
    model = case.make()
    kind = gguf.GGMLQuantizationType[dtype]
    rng = np.random.default_rng(0)

    def encode(name: str, values: np.ndarray) -> tuple[np.ndarray, gguf.GGMLQuantizationType | None]:
        if name != "per_layer_token_embd.weight":
            return values, None
        raw = random_blocks(dtype, values.shape, rng, scale=0.5)
        decoded = np.ascontiguousarray(gguf.quants.dequantize(raw, kind))
        model.model.embed_tokens_per_layer.weight.data.copy_(torch.from_numpy(decoded))
        return raw, kind

    path = gguf_twin.write_gguf(model, tmp_path / "model.gguf", encode)
    theirs = published.logits_of(model, TOKENS)
    for backend in ("reference", "cpu"):
        ours = running.chunked(program_on(backend, running.build(path)), TOKENS, [1], generated=True)
        close(ours, theirs)


@both
def test_only_the_rows_of_its_tokens_are_read_of_the_big_table(backend: str, tmp_path: Path) -> None:
    """The file is mapped, and the system tells how much of the map was ever looked at."""
    smaps = Path("/proc/self/smaps")
    if not smaps.exists():
        pytest.skip("no /proc here")
    rows = 1 << 15
    case = published._gemma4(
        "large",
        vocab_size=rows,
        vocab_size_per_layer_input=rows,
        num_hidden_layers=8,
        hidden_size_per_layer_input=64,
    )
    model = case.make()
    path = gguf_twin.write_gguf(model, tmp_path / "model.gguf")
    table = open_checkpoint(path).tensors["per_layer_token_embd.weight"].nbytes
    program = program_on(backend, running.build(path))
    session = running.Session(program, 1, 8)
    program.step(session.batch([(0, [5, rows // 2, rows - 1], True)]), logits=False)
    resident = 0
    lines = iter(smaps.read_text().splitlines())
    for line in lines:
        if line.endswith(str(path)):
            resident += next(int(rest.split()[1]) for rest in lines if rest.startswith("Rss:")) * 1024
    assert table == rows * 8 * 64 * 4
    assert 0 < resident < table / 4
