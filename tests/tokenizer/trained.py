"""Small tokenizers, trained where they are needed, with the libraries that publish the large ones."""

from __future__ import annotations

import argparse
import functools
import io
import json
import random
from pathlib import Path

import numpy as np
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as Native

from olivine.tokenizer import Tokenizer, from_folder, from_gguf
from olivine.tokenizer.bpe import merges_by_rank
from olivine.tokenizer.sentencepiece import CONTROL, NORMAL, UNKNOWN, read_model
from tokenizer.samples import CJK, EMOJI, KEY, SCRIPTS, SPACES, WORDS, write_folder

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
SHOWN = ["<think>", "</think>"]

# The published pre-tokenizers, written as the published files write them.
_QWEN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_O200K = _TEKKEN.replace(r"|\p{N}|", r"|\p{N}{1,3}|")
for _word in (rf"{_LOWER}+|", rf"{_LOWER}*|"):
    _O200K = _O200K.replace(_word, f"{_word[:-1]}(?i:'s|'t|'re|'ve|'m|'ll|'d)?|")


def _split(pattern: str):
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


PRE = {
    "qwen2": lambda: _split(_QWEN),
    "llama-bpe": lambda: _split(_LLAMA3),
    "smollm": lambda: pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    ),
    "gpt-2": lambda: pre_tokenizers.ByteLevel(add_prefix_space=False),
    "tekken": lambda: _split(_TEKKEN),
    "gpt-4o": lambda: _split(_O200K),
}


@functools.cache
def corpus() -> list[str]:
    """Prose, code, digits, many scripts and runs of repeated characters."""
    rng = random.Random(0)
    lines = [" ".join(rng.choices(WORDS, k=12)) + rng.choice([".", "!", "?\n", ""]) for _ in range(1500)]
    lines += Path(argparse.__file__).read_text().splitlines(keepends=True)
    lines += ["".join(rng.choices(CJK, k=12)) + SCRIPTS + "".join(rng.choices(EMOJI, k=3)) for _ in range(60)]
    lines += [rng.choice("a=-_#*.0!ha") * rng.randint(2, 60) for _ in range(200)]
    lines += ["".join(rng.choices(["ab", "ba", "a", "lo", "l"], k=20)) for _ in range(200)]
    lines += [f"{rng.randrange(10**9)} {rng.choice(SPACES)}x" for _ in range(200)]
    return lines


@functools.cache
def byte_level(pre: str) -> str:
    """The tokenizer.json of a byte-level BPE in the manner of one family."""
    native = Native(models.BPE(ignore_merges=pre in ("llama-bpe", "tekken")))
    if pre == "qwen2":
        native.normalizer = normalizers.NFC()
    native.pre_tokenizer = PRE[pre]()
    native.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=1200, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    native.train_from_iterator(corpus(), trainer)
    native.add_special_tokens(SPECIAL)
    native.add_tokens(SHOWN)
    if pre in ("llama-bpe", "tekken"):
        bos = native.token_to_id("<|endoftext|>")
        native.post_processor = processors.TemplateProcessing(
            single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", bos)]
        )
    return native.to_str()


def byte_level_data(pre: str) -> dict:
    return json.loads(byte_level(pre))


GEMMA4_SPECIAL = ["<pad>", "<eos>", "<bos>", "<unk>", "<|turn>", "<turn|>"]
GEMMA4_SHOWN = ["<|tool_call>", "<tool_call|>", '<|"|>']


@functools.cache
def gemma4() -> str:
    """The tokenizer.json of a BPE in the manner of Gemma: characters with byte fallback, spaces escaped."""
    native = Native(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    native.normalizer = normalizers.Replace(" ", "▁")
    # Training needs words; the published pre-tokenizer splits at spaces that the normalizer has taken away.
    # As in the published vocabulary, no piece has newlines and something else.
    native.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\n+"), "isolated"),
            pre_tokenizers.Split("▁", "merged_with_next"),
        ]
    )
    native.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    first = [*GEMMA4_SPECIAL, *GEMMA4_SHOWN, *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(
        vocab_size=1500, special_tokens=first, show_progress=False, limit_alphabet=150
    )
    native.train_from_iterator(corpus(), trainer)
    bos = native.token_to_id("<bos>")
    native.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", bos)])
    native.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    data = json.loads(native.to_str())
    names = {*GEMMA4_SPECIAL, *GEMMA4_SHOWN}
    data["added_tokens"] = [entry for entry in data["added_tokens"] if entry["content"] in names]
    return json.dumps(data)


def gemma4_metadata() -> dict:
    """GGUF metadata of it: merges, and user-defined tokens for what the output parser must see."""
    data = json.loads(gemma4())
    vocabulary = data["model"]["vocab"]
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    kinds = {**dict.fromkeys(GEMMA4_SPECIAL, 3), **dict.fromkeys(GEMMA4_SHOWN, 4), "<unk>": 2}
    merges = [m if isinstance(m, str) else " ".join(m) for m in data["model"]["merges"]]
    return {
        KEY + "model": "gemma4",
        KEY + "tokens": tokens,
        KEY + "token_type": [6 if t.startswith("<0x") else kinds.get(t, 1) for t in tokens],
        KEY + "merges": merges,
        **{
            f"{KEY}{n}_token_id": vocabulary[t]
            for n, t in (("bos", "<bos>"), ("eos", "<turn|>"), ("unknown", "<unk>"))
        },
    }


USER_DEFINED = ["<tag>", "</tag>", "\n", "\n\n", "▁▁", "▁▁▁▁", "é"]


@functools.cache
def sentencepiece(
    dummy_prefix: bool,
    *,
    rule: str = "identity",
    trim: bool = False,
    bytes_: bool = True,
    symbols: tuple[str, ...] = tuple(USER_DEFINED),
) -> bytes:
    """A SentencePiece BPE model with byte fallback, control and user-defined symbols."""
    import sentencepiece as spm

    out = io.BytesIO()
    spm.SentencePieceTrainer.train(
        sentence_iterator=iter([line.replace("\n", " ") for line in corpus()]),
        model_writer=out,
        model_type="bpe",
        vocab_size=1500,
        byte_fallback=bytes_,
        character_coverage=0.998,
        user_defined_symbols=list(symbols),
        control_symbols=["<ctrl>", "<end_of_turn>"],
        normalization_rule_name=rule,
        add_dummy_prefix=dummy_prefix,
        remove_extra_whitespaces=trim,
        allow_whitespace_only_pieces=True,
        split_by_whitespace=False,
        num_threads=1,
        minloglevel=2,
    )
    return out.getvalue()


def sentencepiece_metadata(proto: bytes, dummy_prefix: bool, symbols: list[str] = USER_DEFINED) -> dict:
    """GGUF metadata of a SentencePiece model, read with the library: user-defined tokens get real spaces."""
    import sentencepiece as spm

    library = spm.SentencePieceProcessor(model_proto=proto)
    tokens, types = [], []
    for i in range(len(library)):
        piece = library.id_to_piece(i)
        kind = 2 if library.is_unknown(i) else 3 if library.is_control(i) else 6 if library.is_byte(i) else 1
        if piece in symbols:
            kind, piece = 4, piece.replace("▁", " ")
        tokens.append(piece)
        types.append(kind)
    return {
        KEY + "model": "llama",
        KEY + "tokens": tokens,
        KEY + "scores": np.array([library.get_score(i) for i in range(len(library))], np.float32),
        KEY + "token_type": types,
        KEY + "bos_token_id": 1,
        KEY + "eos_token_id": 2,
        KEY + "unknown_token_id": 0,
        KEY + "add_space_prefix": dummy_prefix,
    }


# Ways in which a file says that a text begins with a space.
SPACES_IN_FRONT = ("tokenizer.model", "GGUF", "prepend", "first")


def with_a_space_in_front(way: str, folder: Path) -> Tokenizer:
    """One vocabulary with a dummy prefix, read from each form of file. The last two are how Llama 2's and
    Mistral's tokenizer.json say it."""
    proto = sentencepiece(True, symbols=())
    if way == "GGUF":
        metadata = sentencepiece_metadata(proto, True, [])
        del metadata[KEY + "add_space_prefix"]  # the default
        return from_gguf(metadata)
    if way == "tokenizer.model":
        (folder / way).write_bytes(proto)
        return from_folder(folder)
    model = read_model(proto, way)
    escape = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    ranked = sorted(range(len(model.pieces)), key=lambda i: -model.scores[i])
    data = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": i, "content": piece, "special": True, "normalized": False}
            | dict.fromkeys(("single_word", "lstrip", "rstrip"), False)
            for i, piece in enumerate(model.pieces)
            if model.types[i] in (UNKNOWN, CONTROL)
        ],
        "normalizer": {
            "type": "Sequence",
            "normalizers": [{"type": "Prepend", "prepend": "▁"}, escape],
        },
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
                {"type": "Strip", "content": " ", "start": 1, "stop": 0},
            ],
        },
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": "<unk>",
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": True,
            "byte_fallback": True,
            "vocab": {piece: i for i, piece in enumerate(model.pieces)},
            "merges": merges_by_rank([model.pieces[i] for i in ranked if model.types[i] == NORMAL], way),
        },
    }
    if way == "first":
        data["normalizer"] = None
        data["pre_tokenizer"] = {
            "type": "Metaspace",
            "replacement": "▁",
            "prepend_scheme": "first",
            "split": False,
        }
    names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    return from_folder(write_folder(folder, json.dumps(data), tokenizer_config=names))
