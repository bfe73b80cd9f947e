"""Mixtures: which tensor gets which type, against llama.cpp's own choices."""

from __future__ import annotations

from pathlib import Path

import pytest

from olivine.convert import convert
from olivine.convert.types import KINDS, Mixture, kind_of
from olivine.dtypes import BF16, F16, F32
from olivine.errors import RequestError
from olivine.formats import open_checkpoint
from oracles import folders, llama_cpp


def mixture(
    kind: str, layers: int = 17, *, stems: tuple[str, ...] = ("attn_v",), head: bool = True, **more
) -> Mixture:
    names = {f"blk.{i}.{stem}.weight" for i in range(layers) for stem in stems}
    if head:
        names.add("output.weight")
    return Mixture(kind_of(kind), more.pop("architecture", "qwen3"), layers, names, **more)


def types(kind: str, stem: str, width: int = 256, layers: int = 17, **more) -> list[str]:
    chosen = mixture(kind, layers, **more)
    return [chosen.type_of(f"blk.{i}.{stem}.weight", (8, width), F32).name for i in range(layers)]


def top(kind: str, name: str, width: int = 256, head: bool = True) -> str:
    return mixture(kind, 4, head=head).type_of(name, (8, width), F32).name


def test_the_middle_mixtures_give_more_bits_to_some_layers() -> None:
    # Of 17 layers: the first two, the last three, and every third between. As llama.cpp chose them.
    more = {0, 1, 4, 7, 10, 13, 14, 15, 16}
    for kind, usual in (("Q4_K_M", "Q4_K"), ("Q5_K_M", "Q5_K")):
        for stem in ("attn_v", "ffn_down", "ffn_down_exps"):
            assert types(kind, stem) == ["Q6_K" if i in more else usual for i in range(17)]
        for stem in ("attn_q", "attn_k", "attn_output", "ffn_up", "ffn_gate", "ffn_up_exps"):
            assert set(types(kind, stem)) == {usual}


def test_the_small_mixtures() -> None:
    assert types("Q4_K_S", "attn_v") == ["Q5_K"] * 4 + ["Q4_K"] * 13
    assert types("Q4_K_S", "ffn_down") == ["Q5_K"] * 2 + ["Q4_K"] * 15
    assert set(types("Q5_K_S", "ffn_down") + types("Q5_K_S", "attn_v")) == {"Q5_K"}
    assert set(types("Q4_K_S", "attn_v", layers=80, architecture="llama")) == {"Q5_K"}


def test_the_head_gets_six_bits() -> None:
    for kind in ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K_S", "Q4_K_M", "Q6_K"):
        assert top(kind, "output.weight") == "Q6_K"
        assert top(kind, "token_embd.weight", head=False) == "Q6_K"
        assert top(kind, "token_embd.weight") == kind_of(kind).dtype.name
        assert top(kind, "output.weight", width=96) == "Q8_0"
    assert top("Q8_0", "output.weight") == "Q8_0"
    assert top("BF16", "output.weight") == "BF16"


def test_rows_that_are_no_whole_blocks() -> None:
    assert set(types("Q4_K_M", "attn_q", width=96)) == {"Q5_0"}
    assert set(types("Q5_K_S", "attn_q", width=96)) == {"Q5_1"}
    assert set(types("Q6_K", "attn_q", width=96)) == {"Q8_0"}
    assert set(types("Q8_0", "attn_q", width=40)) == {"F16"}


def test_what_is_not_quantized() -> None:
    chosen = mixture("Q4_K_M")
    for stored in (F32, BF16):
        assert chosen.type_of("blk.0.attn_norm.weight", (256,), stored) == stored
        assert chosen.type_of("blk.0.attn_q.bias", (256,), stored) == stored
        assert chosen.type_of("blk.0.ffn_gate_inp.weight", (8, 256), stored) == stored
        assert chosen.type_of("per_layer_model_proj.weight", (8, 256), stored) == stored
        assert chosen.from_published("blk.0.ffn_gate_inp.weight", (8, 256), stored) == F32
        # As a first file without quantization would have it.
        assert chosen.from_published("per_layer_model_proj.weight", (8, 256), stored) == stored
    assert mixture("F16").from_published("per_layer_model_proj.weight", (8, 256), BF16) == F16


@pytest.mark.parametrize(
    "name",
    [
        "position_embd.weight",
        "token_types.weight",
        "altup_proj.weight",
        "blk.0.altup_correct_coef.weight",
        "blk.0.laurel_l.weight",
        "blk.0.ssm_conv1d.weight",
        "blk.0.ssm_conv1d_q.weight",
        "blk.0.shortconv.conv.weight",
        "enc.blk.0.attn_rel_b.weight",
        "blk.0.time_mix_first.weight",
        "blk.0.time_mix_w1.weight",
        "blk.0.time_mix_decay_w2.weight",
        "blk.0.time_mix_lerp_fused.weight",
    ],
)
def test_what_llama_cpp_never_quantizes(name: str) -> None:
    for kind in ("Q8_0", "F16", "Q4_K_M"):
        assert mixture(kind).type_of(name, (64, 256), F32) == F32


@pytest.mark.parametrize("stem", ["time_mix_key", "time_mix_output", "shortconv.in_proj", "ssm_in"])
def test_what_is_like_it_is_quantized(stem: str) -> None:
    assert mixture("Q8_0").type_of(f"blk.0.{stem}.weight", (64, 256), F32).name == "Q8_0"


def test_only_layers_with_values_count() -> None:
    """Gemma 4: every sixth layer takes its keys for values, and the last have neither."""
    names = {f"blk.{i}.attn_v.weight" for i in range(18) if (i + 1) % 6}
    chosen = Mixture(kind_of("Q4_K_M"), "gemma4", 24, names)
    found = [i for i in range(18) if f"blk.{i}.attn_v.weight" in names
             and chosen.type_of(f"blk.{i}.attn_v.weight", (8, 256), F32).name == "Q6_K"]  # fmt: skip
    # Of 15: the first, the last two, and every third between.
    with_values = sorted(int(name.split(".")[1]) for name in names)
    assert found == [with_values[place] for place in (0, 3, 6, 9, 12, 13, 14)]


def test_names() -> None:
    assert kind_of("q4_k").name == "Q4_K_M"
    with pytest.raises(RequestError, match="known: F32, F16"):
        kind_of("Q2_K")


@pytest.mark.parametrize(
    ("family", "more"),
    [
        ("qwen3-untied", {"num_hidden_layers": 17}),
        ("gemma3", {"num_hidden_layers": 24}),
        ("qwen3moe", {"num_hidden_layers": 9}),
        ("qwen3moe", {"num_hidden_layers": 9, "num_experts": 8}),
        ("gemma4-e2b", {"num_hidden_layers": 24, "num_kv_shared_layers": 12, "layer_types": None}),
        ("gemma4-e2b", {"tie_word_embeddings": False}),
        ("gemma4-31b", {"num_hidden_layers": 18}),
        ("gemma4-26b-a4b", {"num_hidden_layers": 12, "moe_intermediate_size": 96}),
        (
            "llama",
            {"hidden_size": 288, "head_dim": 32, "num_attention_heads": 9, "num_key_value_heads": 3},
        ),
    ],
)
def test_llama_cpp_chooses_the_same_types(family: str, more: dict, tmp_path: Path) -> None:
    llama_cpp.need()
    source = tmp_path / "f32.gguf"
    convert(folders.write(family, tmp_path / "hf", **more), source, "F32")
    for kind in KINDS.values():
        convert(source, tmp_path / "ours.gguf", kind.name, force=True)
        llama_cpp.quantize(source, tmp_path / "theirs.gguf", kind.file_type)
        ours, theirs = (
            {
                name: tensor.dtype.name
                for name, tensor in open_checkpoint(tmp_path / f"{who}.gguf").tensors.items()
            }
            for who in ("ours", "theirs")
        )
        assert ours == theirs, kind.name
