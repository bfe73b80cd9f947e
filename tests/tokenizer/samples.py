"""What the tokenizer tests share: sample texts, public data, and files made from a tokenizer.json."""

from __future__ import annotations

import gzip
import json
import math
import random
import struct
from pathlib import Path

import numpy as np
import pytest

from olivine.tokenizer.bpe import byte_level_bytes

DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data"
KEY = "tokenizer.ggml."

WORDS = [
    "the",
    "of",
    "and",
    "to",
    "in",
    "is",
    "that",
    "it",
    "was",
    "for",
    "with",
    "as",
    "his",
    "on",
    "be",
    "at",
    "by",
    "had",
    "not",
    "are",
    "but",
    "from",
    "have",
    "they",
    "which",
    "one",
    "you",
    "were",
    "all",
    "her",
    "she",
    "there",
    "would",
    "their",
    "we",
    "him",
    "been",
    "has",
    "when",
    "who",
    "will",
    "no",
    "more",
    "if",
    "out",
    "so",
    "up",
    "said",
    "what",
    "its",
    "about",
    "than",
    "into",
    "them",
    "can",
    "only",
    "other",
    "time",
    "new",
    "some",
    "could",
    "these",
    "two",
    "may",
    "first",
    "then",
    "do",
    "any",
    "like",
    "my",
    "now",
    "over",
    "such",
    "our",
    "man",
    "me",
    "even",
    "most",
    "made",
    "after",
    "also",
    "did",
    "many",
    "off",
    "before",
    "must",
    "well",
    "back",
    "through",
    "years",
    "much",
    "where",
    "your",
    "way",
    "down",
    "should",
    "because",
    "long",
    "each",
    "just",
    "state",
    "people",
    "those",
    "too",
    "mister",
    "little",
    "good",
    "world",
    "make",
    "very",
    "year",
    "still",
    "see",
    "own",
    "work",
    "men",
    "day",
    "get",
    "here",
    "old",
    "between",
    "both",
    "life",
    "being",
    "under",
    "three",
    "never",
    "know",
    "same",
    "last",
    "another",
    "while",
    "us",
    "might",
    "great",
    "go",
    "come",
    "since",
    "against",
    "right",
    "came",
    "take",
    "token",
    "tokenizer",
    "tokens",
    "merging",
    "merges",
    "unhappy",
    "unhappiness",
    "happily",
    "HELLO",
    "World",
    "iPhone",
    "naïve",
    "café",
    "über",
    "Straße",
    "don't",
    "I'm",
    "we'll",
    "they've",
    "it's",
    "you're",
    "he'd",
    "DON'T",
    "I'M",
]
CJK = "漢字仮名交じり文の例です中文分词测试한국어토큰나누기日本語"
SCRIPTS = "нещо на Български កាន់តែពិសេស العربية עברית हिन्दी ไทยภาษา ქართული Ελληνικά Tiếng Việt"
EMOJI = ["🚀", "😶‍🌫️", "👨‍👩‍👧‍👦", "🇩🇪", "👍🏽", "🦙", "✅", "❤️", "🏴󠁧󠁢󠁥󠁮󠁧󠁿"]
CODE = [
    "def f(x):\n    return x ** 2\n",
    "for (int i = 0; i < n; ++i) {\n\t\ta[i] += b[i];\n}\n",
    '{"name": "x", "arguments": {"a": [1, 2.50, null]}}',
    "<table><tr><td>1</td></tr></table>",
    "https://example.org/a?b=c&d=%20#e",
    "\\frac{1}{2} $x_i^2$ \r\n\r\n#include <stdio.h>",
]
SPACES = [
    " ",
    "  ",
    "   ",
    " " * 7,
    " " * 40,
    "\n",
    "\n\n",
    "\n" * 35,
    "\t",
    "\t\t\t",
    "\r\n",
    " \n ",
    "\u00a0",
    "\u3000",
    "\u2028",
]
MARKS = ["e\u0301", "A\u030a", "\u0301", "o\u0308\u0323", "ﬁ", "Å", "\u1100\u1161\u11a8", "ẛ̣", "が"]
CONTROLS = ["\x00", "\x01", "\x1c", "\x7f", "\x85", "\u200b", "\ufeff", "\ufffd", "\u202e", "\x0b", "\x0c"]


def _plane_characters(rng: random.Random) -> str:
    """Characters of every plane, most of which no vocabulary has. The SentencePiece space is left out."""
    out = []
    for _ in range(rng.randint(1, 6)):
        code = rng.choice(
            (rng.randrange(0x80, 0x800), rng.randrange(0x800, 0xD800), rng.randrange(0xE000, 0x10000),
             rng.randrange(0x10000, 0x20000), rng.randrange(0x20000, 0x110000))
        )  # fmt: skip
        out.append(chr(code) if code != 0x2581 else "x")
    return "".join(out)


def texts(count: int, seed: int, spelled: list[str] = ()) -> list[str]:  # type: ignore[assignment]
    """Many kinds of text. `spelled` are token names to write into some of them, whole and mutilated."""
    rng = random.Random(seed)
    pieces = [
        lambda: " ".join(rng.choices(WORDS, k=rng.randint(1, 8))),
        lambda: rng.choice(WORDS),
        lambda: rng.choice(SPACES) * rng.randint(1, 3),
        lambda: rng.choice(EMOJI) * rng.randint(1, 3),
        lambda: rng.choice(CONTROLS) * rng.randint(1, 2),
        lambda: rng.choice("aeon ") + "".join(rng.choices(MARKS, k=rng.randint(1, 4))),
        lambda: str(rng.randrange(10 ** rng.randint(1, 12))),
        lambda: f"{rng.uniform(-1e3, 1e3):,.3f} ½ ² Ⅷ ٣ {rng.randrange(99)}%",
        lambda: rng.choice(CODE),
        lambda: "".join(rng.choices(CJK, k=rng.randint(1, 12))),
        lambda: rng.choice(SCRIPTS.split()) + rng.choice(["", " ", ", "]),
        lambda: _plane_characters(rng),
        lambda: rng.choice("a=-_#*.0!ha") * rng.randint(2, 70),
        lambda: "".join(rng.choices(["ab", "ba", "a", "lo", "l"], k=rng.randint(2, 30))),
        lambda: rng.choice(["'s", "'S", "'ll", "'LL", "'T", "’s", "''re"]),
    ]
    if spelled:
        pieces += [
            lambda: rng.choice(spelled),
            lambda: rng.choice(spelled) + rng.choice([" ", "x", "\n", ""]) + rng.choice(spelled),
            lambda: rng.choice(spelled)[: rng.randint(1, 6)] + rng.choice(spelled),
        ]
    made = ["", " ", "  ", "a", "\n", *EMOJI, *MARKS, *CODE, *spelled]
    while len(made) < count:
        glue = rng.choice(["", "", " "])
        made.append(glue.join(rng.choice(pieces)() for _ in range(rng.randint(1, 5))))
    return made


def data_file(name: str) -> Path:
    """A file of public test data, or a skip."""
    path = DATA / name
    if not path.exists():
        pytest.skip(f"public test data is absent: {name}")
    return path


def published(name: str) -> str:
    """A published tokenizer.json, or a skip."""
    return gzip.decompress(data_file(f"tokenizers/{name}.tokenizer.json.gz").read_bytes()).decode()


def disagreements(ours, theirs, samples):
    """Samples on which two functions differ, with both results, for a readable failure."""
    return [(s, a, b) for s in samples if (a := ours(s)) != (b := theirs(s))][:5]


def _tokens(data: dict) -> list[str]:
    """All tokens of a tokenizer.json by id."""
    by_id = {i: token for token, i in data["model"]["vocab"].items()}
    by_id |= {entry["id"]: entry["content"] for entry in data["added_tokens"]}
    return [by_id[i] for i in range(len(by_id))]


def _merges(data: dict) -> list[str]:
    return [m if isinstance(m, str) else " ".join(m) for m in data["model"]["merges"]]


def byte_level_metadata(data: dict, pre: str, *, padded_to: int = 0, **more) -> dict:
    """GGUF metadata as llama.cpp's converter writes it for a byte-level tokenizer.json."""
    tokens = _tokens(data)
    types = [1] * len(tokens)
    for entry in data["added_tokens"]:
        looks_special = entry["content"].startswith("<|") and entry["content"].endswith("|>")
        types[entry["id"]] = 3 if entry["special"] or looks_special else 4
    while len(tokens) < padded_to:
        tokens.append(f"[PAD{len(tokens)}]")
        types.append(5)
    return {
        KEY + "model": "gpt2",
        KEY + "pre": pre,
        KEY + "tokens": tokens,
        KEY + "token_type": np.array(types, np.int32),
        KEY + "merges": _merges(data),
        **{KEY + name: value for name, value in more.items()},
    }


def gemma3_metadata(data: dict) -> dict:
    """GGUF metadata as llama.cpp's converter writes it for Gemma 3: scores, user-defined tokens with real
    spaces."""
    tokens = _tokens({**data, "added_tokens": []})
    types = np.ones(len(tokens), np.int32)
    scores = -np.arange(len(tokens), dtype=np.float32) + 494
    types[238:494] = 6
    for entry in data["added_tokens"]:
        i, text = entry["id"], entry["content"]
        if i >= len(tokens):
            continue
        control = entry["special"] or text == "<mask>" or text.startswith("<unused")
        types[i] = 3 if control else 4
        tokens[i] = text if control else text.replace("▁", " ")
        scores[i] = -1000
    assert np.bincount(types).tolist() == [0, 255474, 0, 6251, 163, 0, 256]
    ids = {"bos": 2, "eos": 1, "unknown": 3, "padding": 0}
    return {
        KEY + "model": "llama",
        KEY + "pre": "default",
        KEY + "tokens": tokens,
        KEY + "scores": scores,
        KEY + "token_type": types,
        KEY + "add_bos_token": True,
        KEY + "add_space_prefix": False,
        **{f"{KEY}{name}_token_id": i for name, i in ids.items()},
    }


GEMMA4_SHOWN = [
    "<|channel>",
    "<channel|>",
    "<|tool_call>",
    "<tool_call|>",
    "<|tool_response>",
    "<tool_response|>",
    '<|"|>',
]


def gemma4_metadata(data: dict) -> dict:
    """GGUF metadata as llama.cpp's converter writes it for Gemma 4: merges instead of scores."""
    tokens = _tokens(data)
    types = np.ones(len(tokens), np.int32)
    types[238:494] = 6
    for entry in data["added_tokens"]:
        types[entry["id"]] = 4 if entry["content"] in GEMMA4_SHOWN else 3
    return {
        KEY + "model": "gemma4",
        KEY + "tokens": tokens,
        KEY + "token_type": types,
        KEY + "merges": _merges(data),
        KEY + "bos_token_id": 2,
        KEY + "eos_token_id": 106,
        KEY + "unknown_token_id": 3,
        KEY + "padding_token_id": 0,
        KEY + "add_bos_token": True,
    }


def qwen3c_file(data: dict, bos: int, eos: int) -> bytes:
    """A qwen3.c `.tokenizer` file of a byte-level tokenizer.json."""
    added = {entry["id"] for entry in data["added_tokens"]}
    ranks = {"".join(m.split(" ", 1)): rank for rank, m in reversed(list(enumerate(_merges(data))))}
    records, longest = [], 0
    for i, token in enumerate(_tokens(data)):
        raw = token.encode() if i in added else byte_level_bytes(token)
        score = -math.log(ranks[token] + 1) if token in ranks and i not in added else -1e6
        longest = max(longest, len(raw))
        records.append(struct.pack("<fI", score, len(raw)) + raw)
    return struct.pack("<III", longest, bos, eos) + b"".join(records)


def write_folder(folder: Path, tokenizer_json: str, **files: dict) -> Path:
    """A Hugging Face folder: tokenizer.json and other JSON files by their stem."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(tokenizer_json, encoding="utf-8")
    for stem, content in files.items():
        (folder / f"{stem}.json").write_text(json.dumps(content))
    return folder
