"""Made-up vocabularies of the published sizes and kinds: loading one costs what the real one costs."""

from __future__ import annotations

import random
import string
from dataclasses import dataclass, field

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
_MADE_UP = string.ascii_lowercase + string.ascii_uppercase

QWEN_SPECIALS = (
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>"),
    *("<|box_start|>", "<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>"),
    *("<|vision_pad|>", "<|image_pad|>", "<|video_pad|>", "<tool_call>", "</tool_call>", "<|fim_prefix|>"),
    *("<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "<tool_response>"),
    *("</tool_response>", "<think>", "</think>"),
)
_QWEN_PADDING = 267  # rows of Qwen's embedding that no token uses


@dataclass
class Vocabulary:
    """A tokenizer as GGUF stores it."""

    model: str  # tokenizer.ggml.model: gpt2, llama or gemma4
    pre: str
    bos: int
    eos: int
    pad: int
    add_bos: bool
    unknown: int | None = None
    tokens: list[str] = field(default_factory=list)
    types: list[int] = field(default_factory=list)
    merges: list[tuple[str, str]] = field(default_factory=list)  # gpt2, gemma4
    scores: list[float] = field(default_factory=list)  # llama

    def add(self, kind: int, *tokens: str) -> None:
        self.tokens += tokens
        self.types += [kind] * len(tokens)


def vocabulary_for(architecture: str, size: int) -> Vocabulary:
    """A vocabulary of `size` tokens, of the kind that the architecture's publisher uses."""
    makers = {"qwen3": _qwen, "qwen3moe": _qwen, "gemma3": _gemma, "gemma4": _gemma4, "llama": _smollm}
    made = makers[architecture](size)
    assert len(made.tokens) == len(made.types) == size == len(set(made.tokens))
    return made


def _qwen(size: int) -> Vocabulary:
    """Bytes, merged words, specials, padding: in this order, as Qwen has them."""
    padding = _QWEN_PADDING if size > 4096 else 16
    first = size - padding - len(QWEN_SPECIALS)  # the first special token
    made = Vocabulary("gpt2", "qwen2", bos=first, eos=first + 2, pad=first, add_bos=False)
    made.add(NORMAL, *_byte_alphabet())
    made.merges = _words(made.tokens, "Ġ", first - 256)
    made.add(NORMAL, *(left + right for left, right in made.merges))
    for token in QWEN_SPECIALS:
        made.add(CONTROL if token.startswith("<|") else USER_DEFINED, token)
    made.add(UNUSED, *(f"[PAD{i}]" for i in range(size - padding, size)))
    return made


def _smollm(size: int) -> Vocabulary:
    """Specials first, then bytes and merged words."""
    made = Vocabulary("gpt2", "smollm", bos=1, eos=2, pad=2, unknown=0, add_bos=False)
    made.add(CONTROL, "<|endoftext|>", "<|im_start|>", "<|im_end|>", *(f"<extra_{i}>" for i in range(14)))
    alphabet = _byte_alphabet()
    made.merges = _words(alphabet, "Ġ", size - len(made.tokens) - 256)
    made.add(NORMAL, *alphabet, *(left + right for left, right in made.merges))
    return made


def _gemma(size: int) -> Vocabulary:
    """Specials, turns, runs of line ends, bytes, pieces by score, single characters, unused tokens."""
    made = Vocabulary("llama", "default", bos=2, eos=1, pad=0, unknown=3, add_bos=True)
    made.add(CONTROL, "<pad>", "<eos>", "<bos>")
    made.add(UNKNOWN, "<unk>")
    made.add(CONTROL, "<mask>", "[multimodal]", *(f"<unused{i}>" for i in range(99)))
    made.add(CONTROL, "<start_of_turn>", "<end_of_turn>")
    made.add(USER_DEFINED, *("\n" * n for n in range(2, 33)), *("\t" * n for n in range(2, 33)))
    made.add(BYTE, *(f"<0x{byte:02X}>" for byte in range(256)))
    characters = ["▁", "\n", *string.ascii_letters, *string.digits, *string.punctuation, *"éèüöäñçß—’“”…"]
    unused = 6242 if size > 65536 else 16
    words = _words(characters, "▁", size - len(made.tokens) - len(characters) - unused)
    made.add(NORMAL, *(left + right for left, right in words), *characters)
    made.add(CONTROL, *(f"<unused{i}>" for i in range(99, 99 + unused)))
    # A piece merges the earlier the higher its score; only the order matters.
    made.scores = [-float(i) if kind == NORMAL else 0.0 for i, kind in enumerate(made.types)]
    return made


def _gemma4(size: int) -> Vocabulary:
    """As Gemma 3's, with other turns, and with merges instead of scores."""
    made = Vocabulary("gemma4", "", bos=2, eos=1, pad=0, unknown=3, add_bos=True)
    named = {46: "<|tool>", 47: "<tool|>", 48: "<|tool_call>", 49: "<tool_call|>", 50: "<|tool_response>"}
    named |= {51: "<tool_response|>", 52: '<|"|>', 98: "<|think|>", 100: "<|channel>", 101: "<channel|>"}
    named |= {0: "<pad>", 1: "<eos>", 2: "<bos>", 4: "<mask>", 105: "<|turn>", 106: "<turn|>"}
    for index in range(107):
        made.add(
            UNKNOWN if index == 3 else CONTROL,
            named.get(index, "<unk>" if index == 3 else f"<unused{index}>"),
        )
    made.add(USER_DEFINED, *("\n" * n for n in range(2, 33)), *("\t" * n for n in range(2, 33)))
    made.add(BYTE, *(f"<0x{byte:02X}>" for byte in range(256)))
    characters = ["▁", "\n", *string.ascii_letters, *string.digits, *string.punctuation, *"éèüöäñçß—’“”…"]
    unused = 6242 if size > 65536 else 16
    made.merges = _words(characters, "▁", size - len(made.tokens) - len(characters) - unused)
    made.add(NORMAL, *(left + right for left, right in made.merges), *characters)
    made.add(CONTROL, *(f"<unused{i}>" for i in range(107, 107 + unused)))
    return made


def _words(alphabet: list[str], space: str, count: int) -> list[tuple[str, str]]:
    """`count` merges of earlier pieces into new ones: made-up words, most of them with a space before."""
    rng = random.Random(0)
    inner = [letter for letter in alphabet if letter in _MADE_UP]  # what may stand in a word's middle
    starts = [*inner, *[space] * len(inner)]
    known = {*alphabet}
    merges: list[tuple[str, str]] = []
    while len(merges) < count:
        left, right = rng.choice(starts), rng.choice(inner)
        word = left + right
        if word in known:
            continue
        known.add(word)
        merges.append((left, right))
        # Only short pieces grow on: words get a published vocabulary's lengths, and few draws are in vain.
        if len(word) <= 5:
            starts.append(word)
        if len(word) <= 3 and not word.startswith(space):
            inner.append(word)
    return merges


def _byte_alphabet() -> list[str]:
    """GPT-2's printable stand-in for each byte, printable bytes first as its vocabulary has them."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    return [*map(chr, printable), *(chr(256 + i) for i in range(256 - len(printable)))]
