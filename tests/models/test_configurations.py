"""Configurations in every spelling that publishers use, and what happens when they do not add up."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import Olmo3Config, Qwen3Config
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from olivine import models
from olivine.errors import ModelError
from olivine.models import exaone4, fields, gemma3, granite, llama, olmo, qwen3, rope
from olivine.models.fields import Fields
from oracles import gguf_twin, published, running


def gemma(**config: Any) -> gemma3.Gemma3Config:
    return gemma3.from_hf(Fields(config))


def test_the_sparse_text_config_of_published_gemma_3_4b() -> None:
    """What the Hub's 4B file says and what it leaves out."""
    c = gemma(
        model_type="gemma3",
        text_config={
            "hidden_size": 2560,
            "intermediate_size": 10240,
            "model_type": "gemma3_text",
            "num_hidden_layers": 34,
            "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
            "sliding_window": 1024,
        },
        vision_config={"hidden_size": 1152},
    )
    assert (c.heads, c.kv_heads, c.head_dim, c.scale, c.eps, c.tied) == (8, 4, 256, 0.0625, 1e-6, True)
    assert [i for i, window in enumerate(c.windows) if window is None] == [5, 11, 17, 23, 29]
    assert set(c.windows) == {1024, None} and c.context == 131072
    assert c.rope.frequencies[0] == 1 / 8 and c.local_rope.frequencies[0] == 1.0
    assert c.rope.frequencies[1] == pytest.approx(1e6 ** (-2 / 256) / 8)
    assert c.local_rope.frequencies[1] == pytest.approx(1e4 ** (-2 / 256))


def test_gemma_3_27b_has_a_scale_of_its_own() -> None:
    published_27b = {
        "head_dim": 128,
        "hidden_size": 5376,
        "intermediate_size": 21504,
        "num_attention_heads": 32,
        "num_hidden_layers": 62,
        "num_key_value_heads": 16,
        "query_pre_attn_scalar": 168,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    }
    hf = gemma(text_config=published_27b)
    meta = {
        "block_count": 62, "embedding_length": 5376, "feed_forward_length": 21504, "context_length": 131072,
        "attention.head_count": 32, "attention.head_count_kv": 16, "attention.key_length": 128,
        "attention.value_length": 128, "attention.layer_norm_rms_epsilon": 1e-6,
        "attention.sliding_window": 1024, "rope.freq_base": 1e6, "rope.scaling.type": "linear",
        "rope.scaling.factor": 8.0,
    }  # fmt: skip
    file = gemma3.from_gguf(Fields({f"gemma3.{k}": v for k, v in meta.items()}, "gemma3."))
    assert hf.scale == pytest.approx(0.0771516750)
    assert file.scale == pytest.approx(hf.scale)
    assert file.rope == hf.rope and file.local_rope == hf.local_rope
    assert file.windows == hf.windows
    said = Fields({f"gemma3.{k}": v for k, v in {**meta, "attention.scale": 0.5}.items()}, "gemma3.")
    assert gemma3.from_gguf(said).scale == 0.5


@pytest.mark.parametrize(
    ("spelling", "globals_at"),
    [
        ({"sliding_window_pattern": 3}, [2, 5]),
        ({"_sliding_window_pattern": 2}, [1, 3, 5]),
        ({"layer_types": ["full_attention"] + ["sliding_attention"] * 6, "sliding_window_pattern": 3}, [0]),
    ],
)
def test_spellings_of_the_sliding_pattern(spelling: dict[str, Any], globals_at: list[int]) -> None:
    c = gemma(num_hidden_layers=7, **spelling)
    assert [i for i, window in enumerate(c.windows) if window is None] == globals_at


def test_unknown_types_of_layers_are_refused() -> None:
    kinds = ["chunked_attention", "full_attention"]
    for kind in ("olmo3", "exaone4", "smollm3", "qwen3"):
        config = {**LLAMA, "model_type": kind, "sliding_window": 4, "layer_types": kinds}
        with pytest.raises(
            ModelError, match=r"layer_types = .* must be a list of sliding_attention and full"
        ):
            models.find(kind, "hf").from_hf(Fields(config))


def test_gguf_sliding_patterns_and_their_absence() -> None:
    meta = {
        "block_count": 7, "embedding_length": 32, "feed_forward_length": 8, "context_length": 99,
        "attention.head_count": 4, "attention.key_length": 8, "attention.layer_norm_rms_epsilon": 1e-6,
    }  # fmt: skip

    def windows(**more: Any) -> list[int]:
        named = {f"gemma3.{k.replace('__', '.')}": v for k, v in {**meta, **more}.items()}
        return [i for i, w in enumerate(gemma3.from_gguf(Fields(named, "gemma3.")).windows) if w is None]

    assert windows() == windows(attention__sliding_window=0) == list(range(7))
    assert windows(attention__sliding_window=16) == [5]
    pattern = np.array([True, False, True, True, True, True, True])
    assert windows(attention__sliding_window=16, attention__sliding_window_pattern=pattern) == [1]
    assert windows(attention__sliding_window=16, attention__sliding_window_pattern=2) == [1, 3, 5]


def test_old_and_new_spellings_of_rope_agree() -> None:
    old = Fields({"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2.0}})
    new = Fields({"rope_parameters": {"rope_type": "linear", "rope_theta": 5e5, "factor": 2.0}})
    assert rope.from_hf(old, 16) == rope.from_hf(new, 16)


@pytest.mark.parametrize(
    "scaling",
    [
        {"rope_type": "longrope", "factor": 2.0},
        {"rope_type": "linear"},
        {"rope_type": "linear", "factor": 0},
        {"rope_type": "linear", "factor": float("nan")},
        {"rope_type": "yarn", "factor": 2.0, "rope_theta": "1e4"},
        {"rope_type": "yarn", "factor": 2.0, "rope_theta": 1},
        {"rope_type": "linear", "factor": 2.0, "partial_rotary_factor": 0.5},
        "linear",
        # What would be no finite float32, or none at all.
        {"rope_type": "default", "rope_theta": 1e-320},
        {"rope_type": "linear", "factor": 1e-40},
        {"rope_type": "yarn", "factor": 1e-320},
        {"rope_type": "yarn", "factor": 2.0, "beta_fast": 1e-320},
    ],
)
def test_rope_that_we_cannot_run_is_refused_by_name(scaling: Any) -> None:
    with pytest.raises(ModelError, match=r"rope|factor|beta"):
        rope.from_hf(Fields({"rope_parameters": scaling, "max_position_embeddings": 64}), 16)


@pytest.mark.parametrize(
    "scaling",
    [
        {"rope_type": "linear", "factor": 2.0},
        {"rope_type": "yarn", "factor": 2.0},
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    ],
)
def test_a_share_of_the_head_beside_scaling_is_refused(scaling: dict[str, Any]) -> None:
    """The published code of these families fails there, wherever the share is told; without scaling it
    passes over it."""
    told = {"max_position_embeddings": 64, "rope_theta": 1e4, "partial_rotary_factor": 0.5}
    for where in ("rope_scaling", "rope_parameters"):
        with pytest.raises(
            ModelError, match=r"partial_rotary_factor = 0\.5, which \w+ scaling does not support"
        ):
            rope.from_hf(Fields({**told, where: scaling}), 16)
    plain = rope.from_hf(Fields({"rope_theta": 1e4}), 16)
    assert rope.from_hf(Fields(told), 16) == plain
    assert rope.from_hf(Fields({**told, "rope_parameters": {"rope_type": "default"}}), 16) == plain


def test_dynamic_scaling_is_none_within_the_context() -> None:
    """Beyond which no plan goes."""
    dynamic = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
    config = Qwen3Config(head_dim=16, max_position_embeddings=64, rope_parameters=dynamic)
    expected, magnitude = ROPE_INIT_FUNCTIONS["dynamic"](config, "cpu", seq_len=64)
    found = rope.from_hf(Fields({"max_position_embeddings": 64, "rope_parameters": dynamic}), 16)
    assert found.frequencies == pytest.approx(expected.tolist(), rel=1e-5) and magnitude == 1.0


def test_two_sections_about_scaling_must_agree() -> None:
    """Files that transformers 5 wrote have rope_parameters; advice of before is to add rope_scaling."""
    plain = {"rope_type": "default", "rope_theta": 1e6}
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
    told = {
        "max_position_embeddings": 256,
        "rope_theta": 1e6,
        "rope_scaling": {**yarn, "rope_type": None, "type": "yarn"},
    }
    for rope_parameters in (plain, {"full_attention": plain, "sliding_attention": plain}):
        with pytest.raises(ModelError, match=r"rope_scaling = .* contradicts rope_parameters: merge them"):
            both = Fields({**told, "rope_parameters": rope_parameters})
            rope.from_hf(both, 16, layer_type="full_attention")
    agreed = rope.from_hf(Fields(told), 16)
    for also in ({**yarn, "rope_theta": 1e6}, yarn):
        assert rope.from_hf(Fields({**told, "rope_parameters": also}), 16) == agreed
    # The layers that slide are not scaled by it.
    sections = {**told, "rope_parameters": {"full_attention": yarn, "sliding_attention": plain}}
    assert rope.local_from_hf(Fields(sections), 16, 1e6) == rope.Rope(16, 1e6)


@pytest.mark.parametrize("kind", ["yarn", "llama3"])
def test_the_original_length_beside_the_section_counts(kind: str) -> None:
    for inside in ({}, {"original_max_position_embeddings": 128}):
        told = {
            "rope_type": kind, "rope_theta": 1e4, "factor": 4.0,
            "low_freq_factor": 1.0, "high_freq_factor": 4.0, **inside,
        }  # fmt: skip
        sizes = {"max_position_embeddings": 512, "original_max_position_embeddings": 16}
        config = Qwen3Config(head_dim=16, rope_parameters=dict(told), **sizes)
        expected, _ = ROPE_INIT_FUNCTIONS[kind](config, "cpu")
        found = rope.from_hf(Fields({**sizes, "rope_parameters": told}), 16)
        assert found.frequencies == pytest.approx(expected.tolist(), rel=1e-5)


def test_frequencies_are_finite_at_every_bound() -> None:
    """In float32, which they are rounded to."""
    least = float(np.nextafter(fields._LEAST, 1))
    for kind in ("default", "linear", "llama3", "proportional", "yarn"):
        theta = float(np.nextafter(1.0, 2)) if kind == "yarn" else least
        told = {
            "rope_type": kind, "rope_theta": theta, "factor": least, "beta_fast": least, "beta_slow": 1e12,
            "low_freq_factor": least, "high_freq_factor": 1e12, "original_max_position_embeddings": 1e12,
        }  # fmt: skip
        found = rope.from_hf(Fields({"rope_parameters": told, "max_position_embeddings": 64}), 16)
        assert np.isfinite(np.array(found.frequencies, np.float32)).all(), kind


def test_truncation_of_yarn_is_read_where_the_published_code_reads_it() -> None:
    """In sections by layer type it passes over the key."""
    yarn = {
        "rope_type": "yarn", "rope_theta": 5e5, "factor": 8.0, "original_max_position_embeddings": 64,
        "truncate": False,
    }  # fmt: skip
    for told, layer_type in ((yarn, None), ({"full_attention": yarn}, "full_attention")):
        config = Olmo3Config(head_dim=16, max_position_embeddings=512, num_attention_heads=4, hidden_size=64)
        config.rope_parameters = told
        expected, _ = ROPE_INIT_FUNCTIONS["yarn"](config, "cpu", layer_type=layer_type)
        given = Fields({"rope_parameters": told, "max_position_embeddings": 512})
        found = rope.from_hf(given, 16, layer_type=layer_type or "")
        assert found.frequencies == pytest.approx(expected.tolist(), rel=1e-5), layer_type


@pytest.mark.parametrize("key", ["head_dim", "sliding_window"])
def test_what_kernels_have_no_room_for_is_refused_by_name(key: str) -> None:
    most = {"head_dim": fields.LONGEST_HEAD, "sliding_window": fields.LONGEST_WINDOW}[key]
    for name in ("gemma3_text", "mistral"):
        config = {**LLAMA, "model_type": name, "rope_theta": 1e4, "head_dim": 16, "sliding_window": 8}
        find = models.find(name, "hf").from_hf
        find(Fields({**config, key: most}))
        with pytest.raises(ModelError, match=rf"{key} = \d+, which must lie in 1\.\.{most}"):
            find(Fields({**config, key: 2 * most}))


LLAMA = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 128,
}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_size": None}, "lacks 'hidden_size'"),
        ({"num_hidden_layers": 0}, "num_hidden_layers = 0"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers"),
        ({"num_hidden_layers": "two"}, "must be one whole number"),
        ({"num_hidden_layers": True}, "must be one whole number"),
        ({"num_attention_heads": 5}, "divide hidden_size where there is no head_dim"),
        ({"num_key_value_heads": 3}, "must divide num_attention_heads"),
        ({"head_dim": 7}, "must be even"),
        ({"rms_norm_eps": 0}, "rms_norm_eps"),
        ({"rms_norm_eps": float("inf")}, "rms_norm_eps"),
        ({"hidden_act": "relu"}, "hidden_act = 'relu', which is not supported; known: silu"),
        ({"model_type": "mistral", "sliding_window": -4}, "sliding_window"),
        ({"tie_word_embeddings": "yes"}, "true or false"),
    ],
)
def test_configurations_that_do_not_add_up(change: dict[str, Any], message: str) -> None:
    assert llama.from_hf(Fields(LLAMA)).head_dim == 8
    with pytest.raises(ModelError, match=message):
        llama.from_hf(Fields({**LLAMA, **change}))


def test_llama_has_no_window_whatever_its_file_says() -> None:
    """Its published code does not read the key; Mistral's does, and has a window where it is missing."""
    for kind, window in (("llama", None), ("mistral", 7)):
        c = llama.from_hf(Fields({**LLAMA, "model_type": kind, "sliding_window": 7}))
        assert c.windows == (window, window)


def test_gemma_variants_that_we_cannot_run_are_refused() -> None:
    for change in ({"use_bidirectional_attention": True}, {"attn_logit_softcapping": 50.0}):
        with pytest.raises(ModelError, match=next(iter(change))):
            gemma(**change)


def test_mixture_configurations() -> None:
    base = {**LLAMA, "model_type": "qwen3_moe", "num_experts": 4, "num_experts_per_tok": 2,
            "moe_intermediate_size": 8, "decoder_sparse_step": 1}  # fmt: skip
    assert qwen3.from_hf(Fields({**base, "mlp_only_layers": [1]})).sparse == (True, False)
    with pytest.raises(ModelError, match="num_experts_per_tok"):
        qwen3.from_hf(Fields({**base, "num_experts_per_tok": 5}))
    with pytest.raises(ModelError, match="mlp_only_layers"):
        qwen3.from_hf(Fields({**base, "mlp_only_layers": ["a"]}))


def test_unknown_architectures_list_the_known_ones() -> None:
    for naming in ("gguf", "hf"):
        known = sorted(name for each in models.ARCHITECTURES.values() for name in getattr(each, naming))
        assert {"llama", "qwen3", "granite"} < set(known)
        with pytest.raises(ModelError, match=f"'mamba' is not supported; known: {', '.join(known)}$"):
            models.build("mamba", naming, {}, {})


def test_every_model_file_is_in_the_table_and_every_name_in_it_has_a_file() -> None:
    folder = Path(models.__file__).parent
    files = {path.stem for path in folder.glob("*.py") if "\nARCHITECTURE = " in path.read_text()}
    assert set(models.ARCHITECTURES) == files
    for module, kinds in models.ARCHITECTURES.items():
        for naming in ("hf", "gguf"):
            for kind in getattr(kinds, naming):
                assert models.find(kind, naming).forward.__module__.startswith(f"olivine.models.{module}")


def test_exaone_4_without_layer_types() -> None:
    base = {**LLAMA, "model_type": "exaone4", "num_hidden_layers": 6, "sliding_window": 16}
    assert exaone4.from_hf(Fields(base)).windows == (16, 16, 16, None, 16, 16)
    assert exaone4.from_hf(Fields({**base, "sliding_window_pattern": 3})).windows[2] is None
    with pytest.raises(ModelError, match="sliding_window_pattern"):
        exaone4.from_hf(Fields({**base, "sliding_window_pattern": "LLLG"}))
    everywhere = exaone4.from_hf(Fields({**base, "sliding_window": None, "sliding_window_pattern": None}))
    assert everywhere.window is None and everywhere.windows == (None,) * 6
    keys = {f"exaone4.{key}": value for key, value in exaone4.to_gguf(everywhere).keys.items()}
    with pytest.raises(ModelError, match="nextn_predict_layers"):
        exaone4.from_gguf(Fields({**keys, "exaone4.nextn_predict_layers": 1}, "exaone4."))


def test_every_missing_and_misshapen_tensor_is_listed(tmp_path: Path) -> None:
    published.save(published.case("llama-tied").make(), tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["model.layers.1.self_attn.k_proj.weight"], tensors["model.norm.weight"]
    tensors["model.layers.2.mlp.up_proj.weight"] = tensors["model.layers.2.mlp.down_proj.weight"].clone()
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ModelError) as error:
        running.build(tmp_path)
    text = str(error.value)
    assert "blk.1.attn_k.weight [24, 45] is missing" in text
    assert "output_norm.weight [45] is missing" in text
    assert (
        "blk.2.ffn_up.weight (model.layers.2.mlp.up_proj.weight) is [45, 52] and should be [52, 45]" in text
    )


def test_a_tied_matrix_may_have_the_name_of_the_head(tmp_path: Path) -> None:
    published.save(published.case("qwen3-tied").make(), tmp_path)
    before = running.build(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["lm_head.weight"] = tensors.pop("model.embed_tokens.weight")
    save_file(tensors, tmp_path / "model.safetensors")
    after = running.build(tmp_path)
    assert after.plan == before.plan
    assert [part.name for part in after.weights["token_embd.weight"]] == ["lm_head.weight"]


@pytest.mark.parametrize("name", ["qwen3-tied", "llama-tied", "gemma3-mqa-small-window"])
def test_models_whose_tokens_see_later_ones_are_refused(name: str, tmp_path: Path) -> None:
    """Embedding models say so by a key that the published code of every family reads."""
    published.save(published.case(name).make(), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "is_causal": True}))
    running.build(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({**config, "is_causal": False}))
    with pytest.raises(ModelError, match="is_causal = False, which makes this an embedding model"):
        running.build(tmp_path)


def test_an_untied_model_without_a_head_is_not_tied_in_silence(tmp_path: Path) -> None:
    published.save(published.case("qwen3-tied").make(), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": False}))
    with pytest.raises(ModelError, match=r"output\.weight .* is missing"):
        running.build(tmp_path)


def test_a_head_of_other_rows_than_the_embedding_is_refused(tmp_path: Path) -> None:
    """Its tokens would be read from beyond the embedding."""
    published.save(published.case("qwen3-untied-mha").make(), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    del config["vocab_size"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    tensors = load_file(tmp_path / "model.safetensors")
    head = tensors["lm_head.weight"]
    tensors["lm_head.weight"] = head.repeat(2, 1).clone()
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match=f"head has {2 * len(head)} rows and its embedding {len(head)}"):
        running.build(tmp_path)


def test_tensors_that_nobody_uses_are_a_warning(tmp_path: Path) -> None:
    published.save(published.case("qwen3-tied").make(), tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = tensors["model.norm.weight"].clone()
    save_file(tensors, tmp_path / "model.safetensors")
    assert running.build(tmp_path).warnings == ()
    tensors["model.layers.0.mystery.weight"] = tensors["model.norm.weight"].clone()
    tensors["model.layers.9.mlp.up_proj.weight"] = tensors["model.norm.weight"].clone()
    save_file(tensors, tmp_path / "model.safetensors")
    (warning,) = running.build(tmp_path).warnings
    assert warning.startswith("2 tensors are not part of this architecture")
    assert "mystery" in warning and "layers.9" in warning


@pytest.mark.parametrize("name", ["llama-biases", "llama-tied", "qwen3-bias", "qwen2", "mistral-window"])
def test_biases_are_those_that_config_json_asks_for(name: str, tmp_path: Path) -> None:
    """Not those that happen to be in the file: the published code leaves the others out."""
    published.save(published.case(name).make(), tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    found = {key for key in tensors if key.endswith(".bias")}
    rows = {key: len(tensors[key]) for key in tensors if "_proj.weight" in key}
    further = {key.replace("weight", "bias"): torch.ones(size) for key, size in rows.items()}
    save_file({**further, **tensors}, tmp_path / "model.safetensors")
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "attention_bias": False, "mlp_bias": False}))
    found = found if name == "qwen2" else set()
    model = running.build(tmp_path)
    assert sum(weight.name.endswith(".bias") for weight in model.plan.weights) == len(found)
    (warning,) = model.warnings
    assert warning.startswith(f"{len(rows) - len(found)} tensors are not part of this architecture")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    tokens = list(range(9))
    ours = running.chunked(running.reference(tmp_path), tokens, [9])
    np.testing.assert_allclose(ours, published.logits_of(theirs, tokens), rtol=0, atol=1e-4)


def test_a_bias_that_config_json_asks_for_must_be_there(tmp_path: Path) -> None:
    published.save(published.case("llama-tied").make(), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "attention_bias": True}))
    with pytest.raises(ModelError, match=r"blk\.0\.attn_q\.bias \[\d+\] is missing"):
        running.build(tmp_path)


def test_a_quantized_norm_is_refused(tmp_path: Path) -> None:
    import gguf

    def encode(name: str, values: np.ndarray) -> tuple[np.ndarray, Any]:
        if name == "output_norm.weight":
            return gguf.quants.quantize(
                values, gguf.GGMLQuantizationType.Q8_0
            ), gguf.GGMLQuantizationType.Q8_0
        return values, None

    model = published._qwen("wide", hidden_size=64).make()
    path = gguf_twin.write_gguf(model, tmp_path / "model.gguf", encode)
    with pytest.raises(ModelError, match=r"output_norm\.weight is Q8_0 and should be F32, F16 or BF16"):
        running.build(path)


def test_experts_with_a_gap_are_refused(tmp_path: Path) -> None:
    published.save(published.case("qwen3moe-normalized").make(), tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["model.layers.0.mlp.experts.3.up_proj.weight"]
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match=r"blk\.0\.ffn_up_exps\.weight: expert 3 is missing"):
        running.build(tmp_path)


def test_two_tensors_of_one_name_are_refused(tmp_path: Path) -> None:
    published.save(published.case("qwen3-tied").make(), tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["language_model.model.norm.weight"] = tensors["model.norm.weight"].clone()
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match=r"are both output_norm\.weight"):
        running.build(tmp_path)


def test_the_magnitude_of_yarn_in_gguf_is_the_one_that_llama_cpps_converter_writes() -> None:
    """config.json's `attention_factor` itself; files of before have 1, which says nothing."""
    told = {"rope.scaling.type": "yarn", "rope.scaling.factor": 8.0}
    told["rope.scaling.original_context_length"] = 64

    def magnitude(**more: float) -> float:
        named = {f"olmo2.{key}": value for key, value in {**told, **more}.items()}
        return rope.from_gguf(Fields(named, "olmo2."), 16).rotation.magnitude

    usual = 0.1 * np.log(8.0) + 1
    assert magnitude() == magnitude(**{"rope.scaling.yarn_attn_factor": 1.0}) == pytest.approx(usual)
    assert magnitude(**{"rope.scaling.yarn_attn_factor": 1.3}) == 1.3


def test_yarn_in_gguf_with_a_base_whose_logarithm_is_zero_is_refused_by_name() -> None:
    told = {"type": "yarn", "factor": 8.0, "original_context_length": 64}
    named = {f"olmo2.rope.scaling.{key}": value for key, value in told.items()}
    with pytest.raises(ModelError, match=r"olmo2\.rope\.freq_base = 1\.0, which must be above 1"):
        rope.from_gguf(Fields({**named, "olmo2.rope.freq_base": 1.0}, "olmo2."), 16)


GRANITE4: dict[str, Any] = {
    **LLAMA, "model_type": "granitemoehybrid", "layer_types": ["attention"] * 2, "num_local_experts": 0,
    "shared_intermediate_size": 40, "position_embedding_type": "rope",
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_local_experts": 4}, "only the dense sizes of Granite 4 run"),
        ({"num_local_experts": None}, "only the dense sizes of Granite 4 run"),
        ({"layer_types": ["mamba", "attention"]}, "must be attention throughout"),
        ({"layer_types": None}, "must be attention throughout"),
        ({"layer_types": ["attention"]}, "a list of 2 entries"),
    ],
)
def test_hybrids_and_mixtures_of_granite_are_refused(change: dict[str, Any], message: str) -> None:
    assert granite.from_hf(Fields(GRANITE4)).hidden == 40
    with pytest.raises(ModelError, match=message):
        granite.from_hf(Fields({**GRANITE4, **change}))


def test_the_published_spelling_of_olmo_3() -> None:
    """YaRN stands in `rope_scaling` there, and is for full layers alone."""
    published_7b = {
        **LLAMA, "model_type": "olmo3", "num_hidden_layers": 5, "rope_theta": 5e5, "sliding_window": 16,
        "rope_scaling": {
            "rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64, "beta_fast": 32,
            "beta_slow": 1, "attention_factor": 1.2079441541679836,
        },
    }  # fmt: skip
    c = olmo.from_hf(Fields(published_7b))
    assert c.windows == (16, 16, 16, None, 16)
    assert c.rope.rotation.magnitude == pytest.approx(1.2079441541679836)
    assert c.local_rope == rope.Rope(8, 5e5)
    keys = {f"olmo2.{key}": value for key, value in olmo.to_gguf(c).keys.items()}
    assert olmo.from_gguf(Fields(keys, "olmo2.")) == replace(c, tied=True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rope_theta": 1e4}, "must have a section sliding_attention"),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}, "a section full_attention"),
        ({"sliding_window": None}, "leaves the layers that slide without a window"),
        ({"sliding_window": None, "layer_types": ["sliding_attention"] * 5}, "without a window"),
    ],
)
def test_what_the_published_code_of_olmo_3_reads_otherwise_is_refused(
    change: dict[str, Any], message: str
) -> None:
    usual = {**LLAMA, "model_type": "olmo3", "num_hidden_layers": 5}
    assert olmo.from_hf(Fields(usual)).windows == (4096, 4096, 4096, None, 4096)
    with pytest.raises(ModelError, match=message):
        olmo.from_hf(Fields({**usual, **change}))
    full = {**usual, "layer_types": ["full_attention"] * 5, "rope_theta": 1e4, "sliding_window": None}
    assert olmo.from_hf(Fields(full)).rope == rope.Rope(8, 1e4)


def test_a_tensor_of_two_weights_must_have_rows_for_both(tmp_path: Path) -> None:
    published.save(published.case("granite4").make(), tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    name = "model.layers.1.shared_mlp.input_linear.weight"
    tensors[name] = tensors[name][:-1].clone()
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match=r"input_linear\.weight is \[87, 40\], which ffn_gate and ffn_up"):
        running.build(tmp_path)
