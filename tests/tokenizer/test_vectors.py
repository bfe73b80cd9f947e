"""llama.cpp's tokenizer vectors."""

from __future__ import annotations

import json

import pytest

from olivine.tokenizer import Tokenizer, from_gguf
from tokenizer.samples import KEY, byte_level_metadata, data_file, gemma4_metadata, published

gguf = pytest.importorskip("gguf")


def metadata_of(path) -> dict:
    """The tokenizer keys of a GGUF file, read with the format's own library."""
    reader = gguf.GGUFReader(path)
    return {name: field.contents() for name, field in reader.fields.items() if name.startswith(KEY)}


def vectors(name: str) -> list[tuple[str, list[int]]]:
    texts = data_file(f"vectors/{name}.inp").read_bytes().decode().split("\n__ggml_vocab_test__\n")
    ids = [
        [int(i) for i in line.split()] for line in data_file(f"vectors/{name}.out").read_text().split("\n")
    ]
    assert len(texts) - 1 <= len(ids)
    return list(zip(texts[:-1], ids, strict=False))


def check(tokenizer: Tokenizer, cases: list[tuple[str, list[int]]]) -> None:
    assert len(cases) > 40
    wrong = [(t, tokenizer.encode(t, add_special=False), i) for t, i in cases]
    assert [case for case in wrong if case[1] != case[2]] == []


@pytest.mark.parametrize("name", ["gpt-2", "llama-spm"])
def test_vectors_with_their_own_vocabulary(name):
    metadata = metadata_of(data_file(f"vectors/{name}.vocab.gguf"))
    tokenizer = from_gguf(metadata)
    check(tokenizer, vectors(name))
    for text, ids in vectors(name):
        assert tokenizer.decode(ids) == text


def test_qwen2_vectors_with_the_qwen3_vocabulary():
    data = json.loads(published("qwen3"))
    tokenizer = from_gguf(byte_level_metadata(data, "qwen2", add_bos_token=False))
    check(tokenizer, vectors("qwen2"))


def test_gemma4_vectors():
    cases = json.loads(data_file("vectors/gemma4_tokenizer_vectors.json").read_text())
    tokenizer = from_gguf(gemma4_metadata(json.loads(published("gemma4"))))
    check(tokenizer, [(case["text"], case["ids"]) for case in cases])
