"""Fill-in-the-middle: prompts for the text between a prefix and a suffix, in the notation of the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from olivine.tokenizer.tokenizer import Tokenizer

# What stands before the prefix, before the suffix, and before the middle, which the model writes.
_NOTATIONS = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen2.5-Coder, CodeGemma
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder, Granite
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),  # DeepSeek-Coder
    ("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),  # GLM
)
# What models write behind the middle, beside their stop tokens: padding, or the next file.
_AFTER = ("<|fim_pad|>", "<fim_pad>", "<|file_sep|>", "<|file_separator|>", "<|repo_name|>", "<|endoftext|>")


@dataclass(frozen=True)
class Infill:
    """A prompt for the text between two others, and tokens that end it beside the model's own."""

    tokens: list[int]
    stop: Sequence[int]


def infill(tokenizer: Tokenizer, prefix: str, suffix: str) -> Infill | None:
    """The prompt for what stands between prefix and suffix; None if the vocabulary has no tokens for that."""
    for notation in _NOTATIONS:
        marks = _ids(tokenizer, notation)
        if len(marks) == len(notation):
            break
    else:
        return None
    before, after = (tokenizer.encode_after(text) for text in (prefix, suffix))
    return Infill(
        [*tokenizer.encode_rendered(""), marks[0], *before, marks[1], *after, marks[2]],
        [*marks, *_ids(tokenizer, _AFTER)],
    )


def _ids(tokenizer: Tokenizer, names: Sequence[str]) -> list[int]:
    """The ids of those that are tokens of their own, and not ordinary pieces of text."""
    found = [(name, tokenizer.id_of(name)) for name in names]
    return [i for name, i in found if i is not None and tokenizer.token_bytes(i) == name.encode()]
