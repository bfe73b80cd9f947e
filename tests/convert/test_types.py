"""Mixtures: which tensor gets which type, against llama.cpp's own choices."""

from __future__ import annotations

from pathlib import Path

import pytest

from olivine.convert import convert
from olivine.convert.types import KINDS, Mixture, kind_of
from olivine.dtypes import F32
from olivine.errors import RequestError
from olivine.formats import open_checkpoint
from oracles import folders, llama_cpp


def types(kind: str, stem: str, width: int = 256, layers: int = 17, **more) -> list[str]:
    given = {"architecture": "qwen3", "has_output": True, **more}
    mixture = Mixture(kind_of(kind), layers=layers, **given)
    return [mixture.type_of(f"blk.{i}.{stem}.weight", (8, width)).name for i in range(layers)]


def top(kind: str, name: str, width: int = 256, has_output: bool = True) -> str:
    mixture = Mixture(kind_of(kind), "qwen3", 4, has_output)
    return mixture.type_of(name, (8, width)).name


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
        assert top(kind, "token_embd.weight", has_output=False) == "Q6_K"
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
    mixture = Mixture(kind_of("Q4_K_M"), "qwen3", 4, True)
    assert mixture.type_of("blk.0.attn_norm.weight", (256,)) == F32
    assert mixture.type_of("blk.0.attn_q.bias", (256,)) == F32
    assert mixture.type_of("blk.0.ffn_gate_inp.weight", (8, 256)) == F32


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
