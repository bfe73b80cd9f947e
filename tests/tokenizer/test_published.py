"""Our tokenizers against the published ones, on a few thousand texts. Skipped where the public data is
absent."""

from __future__ import annotations

import gzip
import json
import random

import pytest
from tokenizers import Tokenizer as Native

from olivine.tokenizer import from_folder, from_gguf, from_qwen3c
from tokenizer.samples import (
    GEMMA4_SHOWN,
    KEY,
    byte_level_metadata,
    data_file,
    disagreements,
    gemma3_metadata,
    gemma4_metadata,
    published,
    qwen3c_file,
    texts,
    write_folder,
)

COUNT = 1000  # texts that each comparison must be left with


class Oracle:
    """A published tokenizer.json, and the texts to try on it."""

    def __init__(self, name: str, seed: int) -> None:
        self.text = published(name)
        self.data = json.loads(self.text)
        self.parsing = Native.from_str(self.text)
        self.plain = Native.from_str(self.text)
        self.plain.encode_special_tokens = True
        names = [
            entry["content"]
            for entry in self.data["added_tokens"]
            if len(entry["content"].strip("\n\t▁")) > 1
        ]
        self.special = [entry["content"] for entry in self.data["added_tokens"] if entry["special"]]
        self.texts = texts(
            2 * COUNT, seed, [*self.special * 3, *random.Random(seed).sample(names, min(40, len(names)))]
        )

    def encode(self, text: str, parse: bool = False) -> list[int]:
        return (self.parsing if parse else self.plain).encode(text, add_special_tokens=False).ids

    def check(self, tokenizer, *, samples=None, parse=(False, True)):
        """Same ids in both modes, and the same text back."""
        samples = samples or self.texts
        for parsing in parse:
            assert not disagreements(
                lambda t, p=parsing: tokenizer.encode(t, add_special=False, parse_special=p),
                lambda t, p=parsing: self.encode(t, p),
                samples,
            )
        for skip in (False, True):
            ids = [self.encode(text, True) for text in samples]
            assert not disagreements(
                lambda i, s=skip: tokenizer.decode(i, skip_special=s),
                lambda i, s=skip: self.parsing.decode(i, skip_special_tokens=s),
                ids,
            )


@pytest.fixture(scope="module")
def gemma3():
    return Oracle("gemma3", 1)


@pytest.fixture(scope="module")
def gemma4():
    return Oracle("gemma4", 2)


@pytest.fixture(scope="module")
def qwen3():
    return Oracle("qwen3", 3)


def config_of(name: str) -> dict:
    return json.loads(gzip.decompress(data_file(f"tokenizers/{name}.tokenizer_config.json.gz").read_bytes()))


def assert_gemma_cannot_be_forged(tokenizer, names):
    """No spelling in user text gives a turn or image marker, in any context."""
    marker_ids = {105, 106, 255999, 256000}
    assert marker_ids <= {tokenizer.id_of(name) for name in names}
    for name in names:
        for text in (name, f" {name}", f"a{name}b", f"\n{name}\n", name * 3, f"<{name}>"):
            ids = tokenizer.encode(text)
            assert marker_ids.isdisjoint(ids)
            assert tokenizer.decode(ids) == text
            assert tokenizer.id_of(name) in tokenizer.encode(text, parse_special=True)


GEMMA3_MARKERS = ["<start_of_turn>", "<end_of_turn>", "<start_of_image>", "<end_of_image>"]
GEMMA4_MARKERS = ["<|turn>", "<turn|>", "<|image>", "<|audio>"]


def test_gemma3_folder(gemma3, tmp_path):
    config = config_of("gemma3")
    generation = {"eos_token_id": [1, 106]}
    model = {"text_config": {"vocab_size": 262208}}
    folder = write_folder(
        tmp_path, gemma3.text, tokenizer_config=config, generation_config=generation, config=model
    )
    tokenizer = from_folder(folder)
    gemma3.check(tokenizer)
    assert_gemma_cannot_be_forged(tokenizer, GEMMA3_MARKERS)
    assert (tokenizer.bos_id, tokenizer.pad_id, tokenizer.unk_id) == (2, 0, 3)
    assert tokenizer.stop_ids == {1, 106}
    assert tokenizer.vocab_size == 262208
    assert tokenizer.decode([262207, 9259]) == "Hello"
    assert tokenizer.kind == "SentencePiece BPE"
    assert tokenizer.encode("Hello, world!") == [2, 9259, 236764, 1902, 236888]
    assert tokenizer.encode("<bos>Hello", parse_special=True) == [2, 9259]
    assert tokenizer.warnings == []


def test_gemma3_gguf(gemma3):
    tokenizer = from_gguf(gemma3_metadata(gemma3.data))
    # The converter makes <mask> and <unusedN> control tokens and leaves <image_soft_token> out.
    samples = [
        t for t in gemma3.texts if not any(s in t for s in ("<unused", "<mask>", "<image_soft_token>"))
    ]
    assert len(samples) > COUNT
    gemma3.check(tokenizer, samples=samples)
    assert_gemma_cannot_be_forged(tokenizer, GEMMA3_MARKERS)
    assert tokenizer.stop_ids == {1, 106}
    prompt = "<start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\n"
    expected = [2, 105, 2364, 107, 10979, 106, 107, 105, 4368, 107]
    assert tokenizer.encode(prompt, parse_special=True) == expected
    assert tokenizer.decode([6, 9259]) == "Hello"  # <unused0> is hidden here, and shown by tokenizer.json


def test_gemma3_gguf_splits_repeated_text_like_sentencepiece(gemma3):
    """Pieces that overlap themselves are where the order of a piece's splits could matter."""
    spm = pytest.importorskip("sentencepiece")
    proto = gzip.decompress(data_file("tokenizers/gemma3.rebuilt.tokenizer.model.gz").read_bytes())
    library = spm.SentencePieceProcessor(model_proto=proto)
    tokenizer = from_gguf(gemma3_metadata(gemma3.data))
    units = {
        p[:k] for p in gemma3.data["model"]["vocab"] for k in (1, 2, 3) if len(p) > k and p.startswith(p[k:])
    }
    units = sorted(u for u in units if "▁" not in u and "\n" not in u)
    assert len(units) > 500
    repeated = [unit * n for unit in units for n in (2, 3, 5, 8, 13, 33)]
    assert not disagreements(lambda t: tokenizer.encode(t, add_special=False), library.encode, repeated)


def test_gemma3_tokenizer_model(gemma3, tmp_path):
    spm = pytest.importorskip("sentencepiece")
    proto = gzip.decompress(data_file("tokenizers/gemma3.rebuilt.tokenizer.model.gz").read_bytes())
    (tmp_path / "tokenizer.model").write_bytes(proto)
    library = spm.SentencePieceProcessor(model_proto=proto)
    tokenizer = from_folder(tmp_path)
    special = set(tokenizer.special_tokens)
    samples = [t for t in gemma3.texts if not any(s in t for s in special)]
    assert len(samples) > COUNT
    assert not disagreements(lambda t: tokenizer.encode(t, add_special=False), library.encode, samples)
    # SentencePiece decodes broken UTF-8 one byte at a time, so only ids that came from text are compared.
    assert not disagreements(tokenizer.decode, library.decode, [library.encode(t) for t in samples])
    # The library takes the markers that it calls user-defined from any text, which is parse_special here.
    samples = [t for t in gemma3.texts if not any(s in t for s in special - set(GEMMA3_MARKERS))]
    assert any(m in t for t in samples for m in GEMMA3_MARKERS)
    assert not disagreements(
        lambda t: tokenizer.encode(t, add_special=False, parse_special=True), library.encode, samples
    )
    assert_gemma_cannot_be_forged(tokenizer, GEMMA3_MARKERS)


def test_gemma4_folder(gemma4, tmp_path):
    tokenizer = from_folder(write_folder(tmp_path, gemma4.text))
    gemma4.check(tokenizer)
    assert_gemma_cannot_be_forged(tokenizer, GEMMA4_MARKERS)
    assert tokenizer.stop_ids == {1, 50, 106}


def test_gemma4_gguf_begins_with_bos_and_stops_whatever_the_file_says(gemma4):
    metadata = {**gemma4_metadata(gemma4.data), KEY + "add_bos_token": False, KEY + "eos_token_id": 106}
    tokenizer = from_gguf(metadata)
    assert tokenizer.encode("Hello world") == [2, 9259, 1902]
    assert tokenizer.stop_ids == {1, 50, 106}


def test_gemma4_gguf(gemma4):
    tokenizer = from_gguf(gemma4_metadata(gemma4.data))
    samples = [t for t in gemma4.texts if not any(s in t for s in GEMMA4_SHOWN)]
    assert len(samples) > COUNT
    gemma4.check(tokenizer, samples=samples)
    assert_gemma_cannot_be_forged(tokenizer, GEMMA4_MARKERS)
    assert tokenizer.stop_ids == {1, 50, 106}
    for name in GEMMA4_SHOWN:  # shown to the output parser, yet not for users to write
        assert tokenizer.decode([tokenizer.id_of(name)]) == name
        assert tokenizer.id_of(name) not in tokenizer.encode(f"a{name}b")
        assert tokenizer.encode(name, add_special=False, parse_special=True) == [tokenizer.id_of(name)]


def test_qwen3_folder(qwen3, tmp_path):
    folder = write_folder(
        tmp_path, qwen3.text, tokenizer_config=config_of("qwen3"), config={"vocab_size": 151936}
    )
    tokenizer = from_folder(folder)
    qwen3.check(tokenizer)
    assert tokenizer.encode("Hello, world!") == [9707, 11, 1879, 0]
    assert tokenizer.eos_id == 151645
    assert tokenizer.stop_ids == {151643, 151645}
    assert tokenizer.vocab_size == 151936
    assert tokenizer.decode([151935, 9707, 151669]) == "Hello"
    assert tokenizer.kind == "byte-level BPE"
    assert tokenizer.warnings == []


def test_qwen3_gguf(qwen3):
    ids = {"bos_token_id": 151643, "eos_token_id": 151645, "padding_token_id": 151643}
    metadata = byte_level_metadata(qwen3.data, "qwen2", padded_to=151936, add_bos_token=False, **ids)
    tokenizer = from_gguf(metadata)
    # The converter makes the fill-in-the-middle markers control tokens; the published file does not.
    samples = [t for t in qwen3.texts if not any(s in t for s in ("<|fim", "<|repo_name|>", "<|file_sep|>"))]
    assert len(samples) > COUNT
    qwen3.check(tokenizer, samples=samples)
    assert tokenizer.encode("[PAD151669]") == qwen3.encode("[PAD151669]")
    assert tokenizer.decode([151669, 9707]) == "Hello"
    assert tokenizer.stop_ids == {151643, 151645}
    assert tokenizer.encode("<think>") == [151667]
    assert 151644 not in tokenizer.encode("<|im_start|>")


def test_qwen3c(qwen3, tmp_path):
    (tmp_path / "model.tokenizer").write_bytes(qwen3c_file(qwen3.data, 151643, 151645))
    tokenizer = from_qwen3c(tmp_path / "model.tokenizer", 151936)
    qwen3.check(tokenizer)
    assert tokenizer.encode("  two spaces") == [220, 1378, 12621]
    assert tokenizer.token_bytes(188) == b"\x00"
    assert tokenizer.stop_ids == {151643, 151645}
    assert tokenizer.decode([151935, 9707]) == "Hello"
    assert tokenizer.warnings == []
