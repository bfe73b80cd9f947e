"""The random models of benches/: every kind opens, runs, tokenizes, and has numbers of a sane size."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest

import olivine
from olivine.backends import Batch
from olivine.formats import Tensor
from olivine.llm import LLM
from oracles import sampled
from synthetic import KINDS, SHAPES, write_gguf, write_qwen3c
from synthetic.types import type_of
from synthetic.vocabulary import vocabulary_for

TINY = [name for name in SHAPES if name.startswith("tiny")]
TEXT = "Hello wörld, 42 times!\n\nGrüße 🙂"


def logits(llm: LLM) -> np.ndarray:
    """Those after each of 20 tokens of one sequence."""
    rows = np.arange(20, dtype=np.int32)
    table = np.arange(-(-llm.context // llm.program.page_size), dtype=np.int32)[None]
    tables = (table,) * len(llm.program.plan.groups)
    return llm.program.step(Batch(rows * 37 % 1000, rows * 0, rows, rows, tables)).logits


@pytest.mark.parametrize(
    ("shape", "kind"),
    [
        pytest.param(shape, kind, marks=() if (i + j) % len(TINY) == 0 else pytest.mark.exhaustive)
        for i, shape in enumerate(TINY)
        for j, kind in enumerate(KINDS)
    ],
)
def test_every_kind_runs_and_its_logits_are_sane(shape: str, kind: str, tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "model.gguf", SHAPES[shape], kind)
    with olivine.load(path, device="reference", context=32) as llm:
        assert not llm.warnings
        values = logits(llm)
        assert np.isfinite(values).all()
        assert 0.5 < values.std() < 2
        assert len(set(values.argmax(axis=1).tolist())) > 5


@pytest.mark.parametrize("shape", TINY)
def test_the_vocabulary_encodes_any_text_and_gives_it_back(shape: str, tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "model.gguf", SHAPES[shape], "Q4_0")
    tokenizer = olivine.load(path, device="reference", context=32).tokenizer
    tokens = tokenizer.encode(TEXT, add_special=False)
    assert tokenizer.decode(tokens) == TEXT
    assert tokenizer.vocab_size == SHAPES[shape].vocabulary


@pytest.mark.parametrize("name", sampled.every(3, (name for name in SHAPES if not name.startswith("tiny"))))
def test_published_vocabularies_have_their_size_and_their_special_tokens(name: str) -> None:
    shape = SHAPES[name]
    made = vocabulary_for(shape.architecture, shape.vocabulary)
    assert len(made.tokens) == shape.vocabulary
    special = {"qwen3": {151643: "<|endoftext|>", 151645: "<|im_end|>", 151668: "</think>"}}
    special["qwen3moe"] = special["qwen3"]
    special["gemma3"] = {0: "<pad>", 1: "<eos>", 2: "<bos>", 105: "<start_of_turn>", 106: "<end_of_turn>"}
    special["gemma4"] = {1: "<eos>", 2: "<bos>", 50: "<|tool_response>", 105: "<|turn>", 106: "<turn|>"}
    special["llama"] = {1: "<|im_start|>", 2: "<|im_end|>"}
    for index, token in special[shape.architecture].items():
        assert made.tokens[index] == token


@pytest.mark.parametrize("kind", [kind for kind in KINDS if not kind.endswith("_M")])
def test_weights_have_mean_zero_and_variance_one_over_inputs(kind: str, tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "model.gguf", SHAPES["tiny-qwen3"], kind, pure=True)
    tensors = olivine.open_checkpoint(path).tensors
    for name in ("token_embd.weight", "blk.1.ffn_up.weight", "blk.2.ffn_down.weight"):
        assert tensors[name].dtype.name == kind
        values = decoded(tensors[name])
        sigma = values.shape[1] ** -0.5
        assert abs(values.mean()) < 0.02 * sigma
        assert abs(values.std() / sigma - 1) < 0.05
        # No two rows answer each other: they are as good as orthogonal.
        products = values[:64] @ values[:64].T
        assert np.abs(products - np.diag(np.diag(products))).max() < 0.5


def decoded(tensor: Tensor) -> np.ndarray:
    kind = gguf.GGMLQuantizationType[tensor.dtype.name]
    return gguf.quants.dequantize(tensor.data.reshape(tensor.shape[0], -1), kind).reshape(tensor.shape)


def types_of(shape: str, kind: str, stem: str) -> Counter[str]:
    s = SHAPES[shape]
    return Counter(
        type_of(name, size, kind, s.layers, pure=False).name for name, size in s.tensors() if stem in name
    )


def test_mixtures_follow_llama_cpp() -> None:
    assert types_of("qwen3-0.6b", "Q4_K_M", "attn_v") == {"Q4_K": 14, "Q6_K": 14}
    assert types_of("qwen3-0.6b", "Q4_K_M", "ffn_down") == {"Q4_K": 14, "Q6_K": 14}
    assert types_of("qwen3-0.6b", "Q4_K_M", "ffn_up") == {"Q4_K": 28}
    assert types_of("qwen3-0.6b", "Q5_K_M", "attn_v") == {"Q5_K": 14, "Q6_K": 14}
    assert types_of("qwen3-0.6b", "Q4_0", "ffn_down") == {"Q4_0": 28}
    assert types_of("qwen3-30b-a3b", "Q4_K_M", "ffn_down_exps") == {"Q4_K": 24, "Q6_K": 24}
    # The head is the embedding.
    assert types_of("qwen3-0.6b", "Q4_0", "token_embd") == {"Q6_K": 1}
    assert types_of("qwen3-0.6b", "Q8_0", "token_embd") == {"Q8_0": 1}
    assert types_of("qwen3-0.6b", "BF16", "token_embd") == {"BF16": 1}


def test_mixtures_of_gemma_4_follow_llama_cpp() -> None:
    assert types_of("gemma4-e2b", "Q4_K_M", "per_layer_token_embd") == {"Q6_K": 1}
    assert types_of("gemma4-e2b", "Q8_0", "per_layer_token_embd") == {"Q8_0": 1}
    assert types_of("gemma4-e2b", "Q4_K_M", "per_layer_model_proj") == {"BF16": 1}
    assert types_of("gemma4-26b-a4b", "Q4_K_M", "ffn_gate_inp") == {"F32": 60}
    assert types_of("gemma4-26b-a4b", "Q4_K_M", "ffn_gate_up_exps") == {"Q4_K": 30}
    # Rows of 704 are no whole blocks of 256.
    assert types_of("gemma4-26b-a4b", "Q4_K_M", "ffn_down_exps.weight") == {"Q5_0": 16, "Q8_0": 14}


def test_rows_that_are_no_whole_blocks_fall_back() -> None:
    assert types_of("gemma3-1b", "Q4_K_M", "token_embd") == {"Q8_0": 1}
    assert types_of("gemma3-1b", "Q4_K_M", "attn_q.") == {"Q5_0": 26}
    assert types_of("gemma3-1b", "Q4_K_M", "attn_v") == {"Q5_0": 13, "Q8_0": 13}
    assert types_of("gemma3-1b", "Q4_K_M", "ffn_down") == {"Q4_K": 13, "Q6_K": 13}
    assert type_of("x.weight", (4, 48), "Q8_0", 1, pure=True).name == "F16"


def test_a_fallback_file_runs(tmp_path: Path) -> None:
    odd = replace(SHAPES["tiny-gemma3"], width=96, hidden=288)
    path = write_gguf(tmp_path / "model.gguf", odd, "Q4_K_M")
    types = {tensor.dtype.name for tensor in olivine.open_checkpoint(path).tensors.values()}
    assert types == {"F32", "Q5_0", "Q8_0", "Q4_K"}  # attn_output has 256 inputs
    assert np.isfinite(logits(olivine.load(path, device="reference", context=32))).all()


def test_the_seed_decides_every_byte(tmp_path: Path) -> None:
    a, b, c = (
        write_gguf(tmp_path / f"{i}.gguf", SHAPES["tiny-qwen3"], "Q4_K_M", seed=seed).read_bytes()
        for i, seed in enumerate((1, 1, 2))
    )
    assert a == b and a != c


def test_qwen3c_runs_and_cuts_text_as_the_gguf_does(tmp_path: Path) -> None:
    shape = SHAPES["tiny-qwen3"]
    with (
        olivine.load(write_qwen3c(tmp_path / "m.bin", shape), device="reference", context=32) as ours,
        olivine.load(write_gguf(tmp_path / "m.gguf", shape, "F16"), device="reference", context=32) as twin,
    ):
        values = logits(ours)
        assert np.isfinite(values).all() and 0.5 < values.std() < 2
        for text in (TEXT, "<|im_start|>user"):
            assert ours.tokenizer.encode(text, parse_special=True) == twin.tokenizer.encode(
                text, parse_special=True
            )
