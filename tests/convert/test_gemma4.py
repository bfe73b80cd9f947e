"""What is particular about Gemma 4's files, against the published vocabulary, models and conversion."""

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

from olivine.backends.reference.dequantize import dequantize
from olivine.convert import convert
from olivine.convert.translate import translate
from olivine.convert.vocabulary import from_hugging_face
from olivine.errors import ModelError, TokenizerError
from olivine.formats import open_checkpoint
from olivine.tokenizer import from_gguf
from oracles import folders, gguf_twin, published, running
from tokenizer import samples, trained

KEY = samples.KEY
TOKENS = [int(t) for t in np.random.default_rng(7).integers(3, 1200, 48)]
SLIDING, FULL = "sliding_attention", "full_attention"


def logits(path: Path) -> np.ndarray:
    return running.chunked(running.reference(path), TOKENS, [len(TOKENS)])


# ---- the tokenizer


@pytest.mark.exhaustive  # 12 s; those trained for the tests are compared every day
def test_the_published_vocabulary_as_the_published_conversion_writes_it(tmp_path: Path) -> None:
    text = samples.published("gemma4")
    names = {"bos_token": "<bos>", "eos_token": "<eos>", "unk_token": "<unk>", "pad_token": "<pad>"}
    folder = samples.write_folder(
        tmp_path, text, tokenizer_config=names, generation_config={"eos_token_id": [1, 106, 50]}
    )
    found = from_hugging_face(folder, 262144, "gemma4")
    expected = samples.gemma4_metadata(json.loads(text))
    for key in ("model", "tokens", "merges", "bos_token_id", "unknown_token_id", "padding_token_id"):
        assert found[KEY + key] == expected[KEY + key], key
    np.testing.assert_array_equal(found[KEY + "token_type"], expected[KEY + "token_type"])
    assert found[KEY + "scores"].dtype == np.float32
    assert set(found[KEY + "scores"].tolist()) == {-1000.0} and len(found[KEY + "scores"]) == 262144
    assert (found[KEY + "eos_token_id"], found[KEY + "mask_token_id"]) == (1, 4)
    assert found[KEY + "add_bos_token"] is True and found[KEY + "add_space_prefix"] is False
    # Nor does that conversion write these: readers know how to cut, and what ends a turn, by name.
    assert not {KEY + "pre", KEY + "eot_token_id"} & found.keys()
    tokenizer = from_gguf(found)
    assert tokenizer.stop_ids == {1, 106, 50}
    vectors = json.loads(samples.data_file("vectors/gemma4_tokenizer_vectors.json").read_text())
    assert len(vectors) > 40
    for case in vectors:
        assert tokenizer.encode(case["text"], add_special=False) == case["ids"]


def trained_folder(folder: Path, **changes: Any) -> Path:
    """A small tokenizer of Gemma 4's kind with parts of its JSON replaced."""
    return samples.write_folder(
        folder,
        json.dumps({**json.loads(trained.gemma4()), **changes}),
        tokenizer_config={"bos_token": "<bos>"},
    )


def test_bos_is_told_even_where_the_folder_does_not(tmp_path: Path) -> None:
    found = from_hugging_face(trained_folder(tmp_path, post_processor=None), 1500, "gemma4")
    assert found[KEY + "add_bos_token"] is True
    assert from_gguf(found).encode("")[:1] == [2]


def test_added_tokens_that_merging_makes_are_ordinary(tmp_path: Path) -> None:
    data = json.loads(trained.gemma4())
    merged = next(t for m in data["model"]["merges"] if "▁" in (t := "".join(m)) and len(t) > 3)
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False}
    extra = [
        {"id": data["model"]["vocab"][merged], "content": merged, **flags},
        {"id": 1500, "content": "⟦note⟧", **flags},
    ]
    folder = trained_folder(tmp_path, added_tokens=data["added_tokens"] + extra)
    found = from_hugging_face(folder, 1503, "gemma4")
    types = dict(zip(found[KEY + "tokens"], found[KEY + "token_type"].tolist(), strict=True))
    assert (types[merged], types["⟦note⟧"]) == (1, 4)
    assert (types["<bos>"], types["<unk>"], types["<|tool_call>"], types["<0x0A>"]) == (3, 3, 4, 6)
    assert from_gguf(found).encode("a⟦note⟧", add_special=False)[-1] == 1500


# ---- tensors and metadata


def test_the_text_model_inside_a_multimodal_one(tmp_path: Path) -> None:
    """With towers beside it, and keys that layers without any carry along all the same."""
    source = folders.write("gemma4-e2b", tmp_path / "hf")
    convert(source, tmp_path / "text.gguf", "F32")
    tensors = load_file(source / "model.safetensors")
    nested = {name.replace("model.", "model.language_model.", 1): value for name, value in tensors.items()}
    for tower in ("vision_tower.x", "audio_tower.y", "embed_vision.z", "embed_audio.z"):
        nested[f"model.{tower}.weight"] = torch.zeros(3)
    for spare in ("k_proj", "v_proj", "k_norm"):
        donor = f"model.language_model.layers.3.self_attn.{spare}.weight"
        nested[donor.replace(".3.", ".8.")] = torch.full_like(nested[donor], torch.nan)
    save_file(nested, source / "model.safetensors")
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps({"model_type": "gemma4", "text_config": config}))
    report = convert(source, tmp_path / "nested.gguf", "F32", mmproj="without")
    assert report.warnings == ()
    assert (tmp_path / "nested.gguf").read_bytes() == (tmp_path / "text.gguf").read_bytes()


def test_rotations_other_than_the_usual(tmp_path: Path) -> None:
    parameters = {
        FULL: {"rope_type": "proportional", "rope_theta": 1e5, "partial_rotary_factor": 0.7, "factor": 3.0},
        SLIDING: {"rope_type": "default", "rope_theta": 1e3},
    }
    source = folders.write("gemma4-31b", tmp_path / "hf", rope_parameters=parameters)
    convert(source, tmp_path / "made.gguf", "F32")
    made = open_checkpoint(tmp_path / "made.gguf")
    divisors = dequantize(made.tensors["rope_freqs.weight"])
    np.testing.assert_allclose(divisors, [3.0] * 22 + [1e30] * 10, rtol=1e-6)
    assert made.metadata["gemma4.rope.freq_base"] == pytest.approx(1e5)
    assert made.metadata["gemma4.rope.freq_base_swa"] == pytest.approx(1e3)
    np.testing.assert_allclose(logits(tmp_path / "made.gguf"), logits(source), rtol=0, atol=1e-4)


def test_layers_that_gguf_has_no_words_for(tmp_path: Path) -> None:
    """Full layers of several head sizes: one number has to do for all of them."""
    source = folders.write("gemma4-31b", tmp_path)
    model = running.build(source)
    assert translate(model).architecture == "gemma4"
    blocks = list(model.config.blocks)  # type: ignore[attr-defined]
    blocks[5] = replace(blocks[5], head_dim=128)
    odd = replace(model, config=replace(model.config, blocks=tuple(blocks)))  # type: ignore[type-var]
    with pytest.raises(ModelError, match=r"no way to say this model's blocks\[5\]\.head_dim \(128\)"):
        translate(odd)


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("kind", ["Q8_0", "Q4_K_M"])
def test_experts_of_a_gguf_file_stay_fused_or_split(fused: bool, kind: str, tmp_path: Path) -> None:
    case = published.case("gemma4-26b-a4b")
    wide = {"hidden_size": 256, "intermediate_size": 256, "moe_intermediate_size": 256, "vocab_size": 1300}
    more = {"hidden_size_per_layer_input": 64, "vocab_size_per_layer_input": 1300, "num_hidden_layers": 4}
    more |= {"head_dim": 64, "global_head_dim": 128}
    model = replace(case, options={**case.options, **wide, **more}).make()
    source = gguf_twin.write_gguf(model, tmp_path / "f32.gguf", fused=fused)
    convert(source, tmp_path / "made.gguf", kind)
    before, after = open_checkpoint(source).tensors, open_checkpoint(tmp_path / "made.gguf").tensors
    assert {name: tensor.shape for name, tensor in after.items()} == {n: t.shape for n, t in before.items()}
    experts = ("ffn_gate_up_exps", "ffn_down_exps") if fused else ("ffn_gate_exps", "ffn_up_exps")
    for stem in experts:
        tensor = after[f"blk.3.{stem}.weight"]
        assert tensor.dtype.is_quantized and len(tensor.shape) == 3
    table = after["per_layer_token_embd.weight"]
    assert table.dtype.name == {"Q8_0": "Q8_0", "Q4_K_M": "Q6_K"}[kind]
    assert after["per_layer_model_proj.weight"].dtype.name == "F32"
    for name, tensor in after.items():
        values = dequantize(before[name]).astype(np.float64)
        off = dequantize(tensor) - values
        bound = {"F32": 0.0, "Q8_0": 0.008, "Q6_K": 0.03, "Q4_K": 0.1, "Q5_0": 0.06}[tensor.dtype.name]
        assert np.sqrt((off**2).mean()) <= bound * np.sqrt((values**2).mean()), name
    ours, original = logits(tmp_path / "made.gguf"), logits(source)
    error = np.median(np.sqrt(((ours - original) ** 2).mean(axis=1))) / original.std()
    assert 0 < error < {"Q8_0": 0.05, "Q4_K_M": 0.6}[kind]


def test_what_is_not_quantized_of_a_bfloat16_model(tmp_path: Path) -> None:
    source = folders.write("gemma4-e2b", tmp_path / "hf", dtype="bfloat16")
    convert(source, tmp_path / "made.gguf", "Q4_K_M")
    made = open_checkpoint(tmp_path / "made.gguf").tensors
    kept = {name: tensor.dtype.name for name, tensor in made.items() if not tensor.dtype.is_quantized}
    assert kept.pop("per_layer_model_proj.weight") == "BF16"
    assert set(kept.values()) == {"F32"}
    assert all("norm" in name or "scale" in name or name == "rope_freqs.weight" for name in kept)


def test_tokens_that_must_not_be_written(tmp_path: Path) -> None:
    source = folders.write("gemma4-12b", tmp_path / "hf")
    told = json.loads((source / "generation_config.json").read_text())
    (source / "generation_config.json").write_text(json.dumps({**told, "suppress_tokens": [7, 1400]}))
    convert(source, tmp_path / "made.gguf", "Q8_0")
    field = gguf.GGUFReader(tmp_path / "made.gguf").fields[KEY + "suppress_tokens"]
    assert field.types == [gguf.GGUFValueType.ARRAY, gguf.GGUFValueType.INT32]
    assert field.contents() == [7, 1400]
    for wrong in ([-1], [1503], [True], ["x"], [1e9]):
        (source / "generation_config.json").write_text(json.dumps({"suppress_tokens": wrong}))
        with pytest.raises(TokenizerError, match="suppress_tokens: must be token ids below 1503"):
            convert(source, tmp_path / "again.gguf", "Q8_0")


# ---- what other readers make of it


def test_warnings_of_what_llama_cpp_reads_otherwise(tmp_path: Path) -> None:
    def warnings(family: str, **more: Any) -> tuple[str, ...]:
        name = f"{family}{len(list(tmp_path.iterdir()))}"
        folder = folders.write(family, tmp_path / name, hidden_size=64, intermediate_size=64, **more)
        return convert(folder, tmp_path / "made.gguf", "F16", force=True).warnings

    for family in ("gemma3", "gemma4-e2b", "gemma4-31b", "gemma4-26b-a4b", "gemma4-12b"):
        assert warnings(family) == ()
    (scale,) = warnings("gemma3", query_pre_attn_scalar=32)
    assert "written as gemma3.attention.scale: llama.cpp may ignore" in scale
    kinds = [FULL if i % 4 == 0 else SLIDING for i in range(7)]
    (pattern,) = warnings("gemma3", layer_types=kinds)
    assert "written as gemma3.attention.sliding_window_pattern: llama.cpp may ignore" in pattern
    (both,) = warnings("gemma3", layer_types=kinds, query_pre_attn_scalar=32)
    assert "gemma3.attention.sliding_window_pattern and gemma3.attention.scale" in both
    (shared,) = warnings("gemma4-e2b", num_kv_shared_layers=4)  # the last that has keys slides
    assert "llama.cpp aborts unless the last two layers that have keys" in shared
    layers = 15
    full = {"layer_types": [FULL] * layers, "num_hidden_layers": layers}
    for count in (0, 1):
        (unwindowed,) = warnings("gemma4-e2b", num_kv_shared_layers=count, **full)
        assert "no layer has a sliding window: llama.cpp aborts" in unwindowed
    kinds = {"layer_types": [SLIDING, FULL, FULL, SLIDING, FULL], "num_hidden_layers": 5}
    (two_full,) = warnings("gemma4-e2b", num_kv_shared_layers=2, **kinds)
    assert "llama.cpp aborts unless the last two layers that have keys" in two_full
    kinds = {"layer_types": [FULL, FULL], "num_hidden_layers": 2}
    assert warnings("gemma4-e2b", num_kv_shared_layers=1, **kinds)
    assert (
        warnings("gemma4-e2b", num_kv_shared_layers=0, layer_types=[SLIDING, FULL], num_hidden_layers=2) == ()
    )
    source = folders.write("gemma4-e2b", tmp_path / "short")
    tensors = load_file(source / "model.safetensors")
    tensors["model.embed_tokens_per_layer.weight"] = tensors["model.embed_tokens_per_layer.weight"][
        :1400
    ].clone()
    save_file(tensors, source / "model.safetensors")
    (rows,) = convert(source, tmp_path / "made.gguf", "F16", force=True).warnings
    assert "have 1400 rows, and the embedding 1503: llama.cpp refuses" in rows
