"""Models whose files do not fit together, seen when they are loaded."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import olivine
from olivine.errors import ModelError, RequestError, TokenizerError
from olivine.formats import open_checkpoint
from olivine.loading import DEFAULT_CONTEXT, LoadOptions, model_and_context
from olivine.tokenizer import from_gguf
from oracles import folders, tiny
from tokenizer import samples, trained


def tokens_of(folder: Path) -> int:
    """How many tokens the folder's tokenizer has, whatever its config.json says."""
    data = json.loads((folder / "tokenizer.json").read_text())
    return 1 + max([*data["model"]["vocab"].values(), *(entry["id"] for entry in data["added_tokens"])])


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folders.write("qwen3", tmp_path_factory.mktemp("whole"))


def test_a_tokenizer_larger_than_the_embedding_is_refused_when_loaded(whole: Path, tmp_path: Path) -> None:
    added = len(json.loads((whole / "tokenizer.json").read_text())["added_tokens"])
    folder = folders.write("qwen3", tmp_path, vocab_size=tokens_of(whole) - added - 1)
    with pytest.raises(
        TokenizerError, match=r"not this model's: token \d+ \(.*\) has no row in the embedding of"
    ):
        olivine.load(folder, device="reference", context=64)


def test_added_tokens_beyond_the_embedding_are_refused_when_a_text_has_one(
    whole: Path, tmp_path: Path
) -> None:
    """As Gemma 3 1B has <image_soft_token>, and fine-tuned models their padding."""
    data = json.loads((whole / "tokenizer.json").read_text())
    added = sorted(entry["id"] for entry in data["added_tokens"])
    folder = folders.write("qwen3", tmp_path / "hf", vocab_size=added[0] + 1)
    first, second = (next(e["content"] for e in data["added_tokens"] if e["id"] == i) for i in added[:2])
    with olivine.load(folder, device="reference", context=64) as llm:
        assert llm.generate("Hello", max_tokens=2, temperature=0).tokens
        assert llm.generate(first, max_tokens=1, parse_special=True, ignore_eos=True).tokens
        name = re.escape(repr(second))
        named = rf"must lie in 0\.\.{added[0]}, and one is {added[1]}: {name}, which has no row"
        with pytest.raises(RequestError, match=named):
            llm.generate(second, max_tokens=1, parse_special=True)
        with pytest.raises(RequestError, match=named):
            llm.embed([added[1]])
        with pytest.raises(RequestError, match=rf"one is {max(added) + 1}$"):
            llm.embed([max(added) + 1])
        assert max(llm.tokenizer.stop_ids) < added[0] + 1
        assert any("has no row in the embedding" in warning for warning in llm.warnings)


@pytest.mark.parametrize("more", [-1, 1, 1000])
def test_a_vocab_size_that_contradicts_the_embedding_is_refused(
    whole: Path, tmp_path: Path, more: int
) -> None:
    config = json.loads((whole / "config.json").read_text())
    for path in whole.iterdir():
        if path.name != "config.json":
            (tmp_path / path.name).symlink_to(path)
    rows = config["vocab_size"]
    (tmp_path / "config.json").write_text(json.dumps({**config, "vocab_size": rows + more}))
    with pytest.raises(
        ModelError, match=f"vocab_size = {rows + more}, which contradicts the embedding of {rows} rows"
    ):
        olivine.load(tmp_path, device="reference")
    (tmp_path / "config.json").write_text(json.dumps({k: v for k, v in config.items() if k != "vocab_size"}))
    olivine.load(tmp_path, device="reference", context=64).close()


def test_tokens_of_a_gguf_file_beyond_the_embedding() -> None:
    data = trained.byte_level_data("gpt-2")
    ordinary = len(data["model"]["vocab"])
    bos = data["added_tokens"][0]["id"]
    metadata = samples.byte_level_metadata(data, "gpt-2", padded_to=1300, bos_token_id=bos)
    assert bos >= ordinary
    for rows in (1300, 1205, ordinary):  # padding has no text, and added tokens may lack a row
        from_gguf(metadata).fit(rows)
    with pytest.raises(
        TokenizerError, match=f"token {ordinary - 1} .* has no row in the embedding of {ordinary - 1}"
    ):
        from_gguf(metadata).fit(ordinary - 1)
    begins = {**metadata, f"{samples.KEY}add_bos_token": True}  # then every prompt has it
    with pytest.raises(TokenizerError, match=f"token {bos} .* has no row"):
        from_gguf(begins).fit(ordinary)


def test_rows_of_a_gguf_file_behind_the_last_token_are_padding(tmp_path: Path) -> None:
    """As those of a folder, whose config.json says how many there are: a model may draw them."""
    checkpoint = open_checkpoint(tiny.write("tiny-qwen3", "Q8_0", tmp_path))
    metadata, key = dict(checkpoint.metadata), samples.KEY
    rows = len(metadata[f"{key}tokens"])
    for name in ("tokens", "token_type"):
        metadata[key + name] = metadata[key + name][: rows - 20]
    kept = set(metadata[f"{key}tokens"])
    metadata[f"{key}merges"] = [each for each in metadata[f"{key}merges"] if each.replace(" ", "") in kept]
    with olivine.LLM(replace(checkpoint, metadata=metadata), device="cpu", threads=1, context=64) as llm:
        assert (llm.vocabulary, llm.tokenizer.vocab_size) == (rows, rows)
        assert any(f"{rows} rows for {rows - 20} tokens" in warning for warning in llm.warnings)
        drawn = llm.generate("Hi", max_tokens=3, logit_bias={rows - 5: 1000.0}, logprobs=2)
        assert (drawn.tokens, drawn.text) == ([rows - 5] * 3, "")
        assert drawn.logprobs is not None and drawn.logprobs[0].text == ""
        assert llm.chat("Hi", max_tokens=3, logit_bias={rows - 1: 1000.0}).content == ""
        told = llm.generate("Hi", max_tokens=3, logprobs=rows, temperature=0).logprobs
        assert told is not None and len(told[0].top) == rows
        choice = llm.grammar({"type": "choice", "choices": ["yes"]})
        assert llm.generate([rows - 1], constraint=choice, logit_bias={rows - 5: 1000.0}).text == "yes"


def test_a_context_of_0_is_the_models_own(tmp_path: Path) -> None:
    """Of Phi-4 mini the rotary embedding depends on it, too."""
    folder = folders.write("phi4-mini", tmp_path, max_position_embeddings=5000)
    checkpoint = open_checkpoint(folder)
    model, context = model_and_context(checkpoint, LoadOptions(context=0))
    same, _ = model_and_context(checkpoint, LoadOptions(context=5000))
    assert context == model.context == same.context == 5000
    assert str(model.plan) == str(same.plan)
    assert model_and_context(checkpoint, LoadOptions())[1] == DEFAULT_CONTEXT
    with olivine.load(folder, device="reference", context=0) as llm:
        assert llm.context == 5000


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"context": -1}, r"context must be 0 \(the model's own\) or more, and is -1"),
        ({"kv_type": "foo"}, "there is no kv_type 'foo'; known: auto, bf16, f32, q8_0"),
        ({"device": "tpu"}, "there is no device 'tpu'; known: auto, cpu"),
        ({"threads": 0}, "threads must lie in"),
        ({"sequences": 5000}, "sequences must lie in"),
        ({"nodes": 2}, "nodes need a rank_address"),
        ({"rank_address": "x:1"}, "rank_address needs a rank_key"),
    ],
)
def test_an_option_that_cannot_be_is_not_blamed_on_the_model(options: Any, message: str) -> None:
    with pytest.raises(RequestError, match=message) as caught:
        olivine.load("olivine-mini", **options)
    assert caught.value.code == "invalid_value" and caught.value.param in message


def test_types_of_the_cache_are_known_in_any_case() -> None:
    assert LoadOptions(kv_type="Q8_0") == LoadOptions(kv_type="q8_0")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"threads": "2"}, "threads must be an integer, 1 or more, and is '2'"),
        ({"sequences": 1.5}, "sequences must be an integer"),
        ({"context": True}, "context must be an integer"),
        ({"kv_bytes": "1 GB"}, "kv_bytes must be a number, 0 or more, in bytes"),
        ({"kv_type": 3}, "kv_type must be a string"),
        ({"speculate": "no"}, "speculate must be True or False"),
    ],
)
def test_options_of_a_wrong_type_are_refused_by_name(options: Any, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        olivine.load("olivine-mini", **options)
    numbers: Any = {"kv_bytes": 2e9, "threads": np.int64(2)}
    assert LoadOptions.of(numbers) == LoadOptions(kv_bytes=2 * 10**9, threads=2)
