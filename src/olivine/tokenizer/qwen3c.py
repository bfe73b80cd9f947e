"""The `.tokenizer` file that qwen3.c's exporter writes beside a checkpoint.

u32 longest token, u32 BOS id, u32 EOS id, then one record a token until the end of the file: f32 score, u32
length, raw bytes. The score is -ln(rank + 1) for the result of a merge and -1e6 for bytes and added tokens.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from functools import partial
from os import PathLike
from pathlib import Path

from tokenizers import AddedToken

from olivine.errors import TokenizerError
from olivine.tokenizer.bpe import (
    assemble,
    bpe_model,
    byte_level_bytes,
    library_errors,
    merges_by_rank,
    to_alphabet,
)
from olivine.tokenizer.encoding import ids_of
from olivine.tokenizer.patterns import PRE_TOKENIZERS
from olivine.tokenizer.tokenizer import Tokenizer

_NOT_A_MERGE = -1e6
_LARGEST_FILE = 256 << 20
# Qwen's published files do not flag these as special, though they are spelled like the ones that are.
_ORDINARY = frozenset(
    {"<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>"}
)


def from_qwen3c(path: str | PathLike[str], vocab_size: int) -> Tokenizer:
    """The tokenizer of a qwen3.c checkpoint. `vocab_size` is the checkpoint's: rows beyond the file are
    padding."""
    path = Path(path)
    try:
        if path.stat().st_size > _LARGEST_FILE:
            raise TokenizerError(f"{path}: larger than any tokenizer")
        data = path.read_bytes()
    except OSError as error:
        raise TokenizerError(f"{path}: {error.strerror or error}") from error
    return from_bytes(data, vocab_size, str(path))


def from_bytes(data: bytes, vocab_size: int, path: str) -> Tokenizer:
    """The same of the file's content; `path` is named in errors."""
    if len(data) < 12:
        raise TokenizerError(f"{path}: header: the file has {len(data)} bytes")
    longest, bos, eos = struct.unpack_from("<III", data)
    tokens, scores = _records(data, longest, vocab_size, path)
    for name, token_id in (("BOS id", bos), ("EOS id", eos)):
        if token_id >= len(tokens):
            raise TokenizerError(f"{path}: {name}: {token_id} is outside the {len(tokens)} tokens")

    pieces: list[str] = []
    vocabulary: dict[str, int] = {}
    literal: dict[int, str] = {}
    warnings: list[str] = []
    ranked: list[str] = []
    for token_id, (token, score) in enumerate(zip(tokens, scores, strict=True)):
        piece = to_alphabet(token)
        if len(token) > 1 and not score > _NOT_A_MERGE:
            try:
                piece = token.decode()
            except UnicodeDecodeError as error:
                raise TokenizerError(f"{path}: token {token_id}: an added token that is not text") from error
            literal[token_id] = piece
        pieces.append(piece)
        if not piece:
            continue
        if piece in vocabulary:
            warnings.append(f"{path}: token {token_id} repeats token {vocabulary[piece]}")
            continue
        vocabulary[piece] = token_id
        if token_id not in literal:
            ranked.append(piece)

    # tiktoken's rule, which Qwen's merge list follows: the pair that makes the lowest id is merged first.
    model = bpe_model(vocabulary, merges_by_rank(ranked, path), path)
    special = [
        i for i, t in literal.items() if t.startswith("<|") and t.endswith("|>") and t not in _ORDINARY
    ]
    pre = PRE_TOKENIZERS["qwen2"]
    with library_errors(path):
        added = [
            AddedToken(text, special=i in special, normalized=False)
            for i, text in literal.items()
            if vocabulary[text] == i
        ]
        parsed, plain = (
            assemble(
                model, added, normalizer=pre.normalizer(), pre_tokenizer=pre.pre_tokenizer(), parse=parse
            )
            for parse in (True, False)
        )
    return Tokenizer(
        kind="byte-level BPE",
        vocab_size=vocab_size,
        plain=partial(ids_of, plain),
        parsed=partial(ids_of, parsed),
        piece_of=lambda i: pieces[i] if i < len(pieces) else None,
        id_of=vocabulary.get,
        bytes_of_piece=byte_level_bytes,
        literal=literal,
        special=special,
        bos_id=bos,
        eos_id=eos,
        pad_id=_pad(vocabulary, literal),
        stop_ids=[eos],
        warnings=warnings,
    )


def _pad(vocabulary: Mapping[str, int], literal: Mapping[int, str]) -> int | None:
    """Qwen pads with <|endoftext|>."""
    token_id = vocabulary.get("<|endoftext|>")
    return token_id if token_id in literal else None


def _records(data: bytes, longest: int, vocab_size: int, where: str) -> tuple[list[bytes], list[float]]:
    """The tokens and their scores, every length checked before it is used."""
    tokens: list[bytes] = []
    scores: list[float] = []
    offset, end = 12, len(data)
    record = struct.Struct("<fI")
    while offset < end:
        number = len(tokens)
        if number == vocab_size:
            raise TokenizerError(f"{where}: more tokens than the checkpoint's {vocab_size}")
        if end - offset < record.size:
            raise TokenizerError(f"{where}: token {number}: cut short")
        score, length = record.unpack_from(data, offset)
        offset += record.size
        if length > longest or length > end - offset:
            raise TokenizerError(
                f"{where}: token {number}: {length} bytes of {longest} allowed, {end - offset} left"
            )
        tokens.append(data[offset : offset + length])
        scores.append(score)
        offset += length
    if not tokens:
        raise TokenizerError(f"{where}: no tokens")
    return tokens, scores
