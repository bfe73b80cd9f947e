"""Malformed sources: an error that says where, nothing written, little memory used."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from olivine.convert import convert
from olivine.convert.convert import _sampling
from olivine.errors import CheckpointError, ModelError, OlivineError, TokenizerError
from olivine.formats import open_checkpoint
from olivine.loading import DEFAULT_SAMPLING, published_sampling, tokenizer_of
from oracles import folders
from tokenizer import samples, trained

KEY = samples.KEY


def refused(source: Path, folder: Path, kind: str, error: type[OlivineError], match: str) -> None:
    with pytest.raises(error, match=match):
        convert(source, folder / "made.out", kind)
    assert not list(folder.glob("made*"))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return folders.write("qwen3", tmp_path / "hf")


# ---- safetensors


@pytest.mark.parametrize("kind", ["F16", "Q8_0", "Q4_K_M", "qwen3.c"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
def test_values_that_are_no_numbers(
    kind: str, dtype: torch.dtype, value: float, source: Path, tmp_path: Path
) -> None:
    tensors = {name: tensor.to(dtype) for name, tensor in load_file(source / "model.safetensors").items()}
    tensors["model.layers.2.mlp.up_proj.weight"][17, 33] = value
    save_file(tensors, source / "model.safetensors")
    match = r"model\.layers\.2\.mlp\.up_proj\.weight .*holds a value that is not a number"
    refused(source, tmp_path, kind, ModelError, match)


def test_values_too_large_for_the_type(source: Path, tmp_path: Path) -> None:
    tensors = load_file(source / "model.safetensors")
    tensors["model.embed_tokens.weight"][5, 5] = 1e6
    save_file(tensors, source / "model.safetensors")
    refused(source, tmp_path, "F16", ModelError, "embed_tokens.weight cannot become F16: .* beyond the reach")
    convert(source, tmp_path / "made.gguf", "BF16")


def edit_header(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    data = path.read_bytes()
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + length])
    change(header)
    made = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(made)) + made + data[8 + length :])


@pytest.mark.parametrize(
    ("shape", "offsets"),
    [
        ([0, 256], [0, 0]),
        ([1 << 62, 1 << 62], None),
        ([10**39, 256], None),
        ([-1, 256], None),
        ([1.5, 256], None),
        ([512, 256], [0, 1 << 63]),
        ([], None),
    ],
)
def test_shapes_that_cannot_be(
    shape: list[Any], offsets: list[int] | None, source: Path, tmp_path: Path
) -> None:
    def change(header: dict[str, Any]) -> None:
        entry = header["model.layers.0.mlp.up_proj.weight"]
        entry["shape"] = shape
        entry["data_offsets"] = offsets or entry["data_offsets"]

    edit_header(source / "model.safetensors", change)
    refused(source, tmp_path, "Q8_0", CheckpointError, r"layers\.0\.mlp\.up_proj")


def test_shapes_that_do_not_fit_the_configuration(source: Path, tmp_path: Path) -> None:
    def change(header: dict[str, Any]) -> None:
        header["model.layers.0.mlp.up_proj.weight"]["shape"].reverse()

    edit_header(source / "model.safetensors", change)
    refused(source, tmp_path, "Q8_0", ModelError, r"blk\.0\.ffn_up\.weight .* should be \[512, 256\]")


# ---- tokenizers


def edit_json(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    data = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    change(data)
    path.write_text(json.dumps(data), encoding="utf-8")


@pytest.mark.parametrize("family", ["qwen3", "gemma4-31b"])
@pytest.mark.parametrize(
    ("far", "complaint"),
    [(4_000_000_000, "4000000000 is not a token id"), (9_000_000, "they are not of the same model")],
)
def test_token_ids_far_beyond_the_embedding(family: str, far: int, complaint: str, tmp_path: Path) -> None:
    """A vocabulary of two thousand entries must not become a list of four billion."""
    source = folders.write(family, tmp_path / "hf")
    edit_json(source / "tokenizer.json", lambda data: data["model"]["vocab"].update({"far away": far}))
    refused(source, tmp_path, "Q8_0", TokenizerError, complaint)


def test_added_tokens_without_a_row_are_left_out(source: Path, tmp_path: Path) -> None:
    far = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    entry = {"id": 4_000_000_000, "content": "<|far|>", **far}
    edit_json(source / "tokenizer.json", lambda data: data["added_tokens"].append(entry))
    convert(source, tmp_path / "made.gguf", "Q8_0")
    tokens = open_checkpoint(tmp_path / "made.gguf").metadata[KEY + "tokens"]
    assert "<|far|>" not in tokens and "<|im_end|>" in tokens


def test_an_unknown_token_that_has_no_entry(tmp_path: Path) -> None:
    source = folders.write("llama2", tmp_path / "hf")
    rows = json.loads((source / "config.json").read_text())["vocab_size"]
    (source / "tokenizer.model").unlink()
    (source / "tokenizer.json").write_text(trained.gemma4(), encoding="utf-8")
    edit_json(source / "tokenizer_config.json", lambda data: data.update({"bos_token": "<bos>"}))
    edit_json(source / "config.json", lambda data: data.update({"unk_token_id": rows - 1}))
    convert(source, tmp_path / "made.gguf", "Q8_0")
    assert tokenizer_of(open_checkpoint(tmp_path / "made.gguf")).vocab_size == rows


@pytest.mark.parametrize(
    "nonsense",
    [{"temperature": 1e300}, {"top_k": 1e400}, {"top_k": -1}, {"top_p": "much"}, {"min_p": float("nan")}],
)
def test_sampling_that_makes_no_sense_is_left_out(
    nonsense: dict[str, Any], source: Path, tmp_path: Path
) -> None:
    assert _sampling(open_checkpoint(source))
    edit_json(source / "generation_config.json", lambda data: data.update(nonsense))
    convert(source, tmp_path / "made.gguf", "Q8_0")
    made = open_checkpoint(tmp_path / "made.gguf")
    assert not any(key.startswith("general.sampling.") for key in made.metadata)
    assert published_sampling(made) == DEFAULT_SAMPLING


# ---- GGUF


def rewritten(source: Path, path: Path, **changes: Any) -> Path:
    """A GGUF file with other tokenizer keys: None takes one away."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(path, reader.fields["general.architecture"].contents())
    for key, field in reader.fields.items():
        short = key.removeprefix(KEY)
        if key.startswith("GGUF.") or key == "general.architecture" or short in changes:
            continue
        kind, value = field.types[0], field.contents()
        writer.add_key_value(key, value, kind, field.types[-1] if len(field.types) > 1 else None)
    for short, value in changes.items():
        if isinstance(value, list):
            writer.add_array(KEY + short, value)
        elif value is not None:
            kind = gguf.GGUFValueType.STRING if isinstance(value, str) else gguf.GGUFValueType.UINT32
            writer.add_key_value(KEY + short, value, kind)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"tokens": None}, "tokens: missing or empty"),
        ({"token_type": None}, "token_type is missing"),
        ({"token_type": [1, 1]}, "token_type: 2 entries for"),
        ({"merges": ["nospace"]}, "merges: entry 0 has no space"),
        ({"merges": ["a b", "q zz9zz and"]}, "merges: entry . is not made of tokens"),
        ({"merges": "a b"}, "merges: a list of strings wanted"),
        ({"bos_token_id": 1 << 31}, "bos_token_id: 2147483648 is outside the vocabulary"),
        ({"eos_token_id": "two"}, "eos_token_id: int wanted"),
        ({"bos_token_id": 0xFFFFFFFF}, "lacks one"),
        ({"eos_token_id": None}, "lacks one"),
        ({"pre": "no such thing"}, "pre: unknown pre-tokenizer"),
    ],
)
def test_a_gguf_vocabulary_that_is_broken(
    changes: dict[str, Any], match: str, source: Path, tmp_path: Path
) -> None:
    convert(source, tmp_path / "f32.gguf", "F32")
    broken = rewritten(tmp_path / "f32.gguf", tmp_path / "broken.gguf", **changes)
    refused(broken, tmp_path, "qwen3.c", TokenizerError, match)
    # To another type of GGUF it is none of our business.
    convert(broken, tmp_path / "again.gguf", "Q8_0")


def test_tokens_that_are_no_text(source: Path, tmp_path: Path) -> None:
    convert(source, tmp_path / "f32.gguf", "F32")
    tokens = open_checkpoint(tmp_path / "f32.gguf").metadata[KEY + "tokens"]
    raw = [token.encode() for token in tokens]
    raw[-1] = b"\xff\xfe\x00"
    broken = rewritten(tmp_path / "f32.gguf", tmp_path / "broken.gguf", tokens=raw)
    convert(broken, tmp_path / "again.gguf", "Q8_0")
    again = open_checkpoint(tmp_path / "again.gguf").metadata[KEY + "tokens"]
    assert again[-1].encode("utf-8", "surrogateescape") == raw[-1]
    convert(broken, tmp_path / "made.bin", "qwen3.c")
    assert tokenizer_of(open_checkpoint(tmp_path / "made.bin")).encode("x") == tokenizer_of(
        open_checkpoint(source)
    ).encode("x")


def test_a_gguf_file_of_something_else(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "a.gguf", "bert")
    writer.add_tensor("v.blk.0.ffn_up.weight", np.ones((4, 64), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    refused(tmp_path / "a.gguf", tmp_path, "Q8_0", ModelError, r"lacks 'bert\.block_count'")
