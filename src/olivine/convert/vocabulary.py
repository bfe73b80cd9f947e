"""The tokenizer of a Hugging Face folder as GGUF's `tokenizer.ggml.*` metadata.

What has been written is read back and must cut texts as the original does, so a tokenizer that GGUF cannot
hold is refused rather than bent.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer as Native

from olivine.errors import TokenizerError
from olivine.tokenizer import Tokenizer, from_folder, from_gguf
from olivine.tokenizer.bpe import BYTE_PIECES, SPACE, bpe_model, library_errors
from olivine.tokenizer.gguf import BYTE, CONTROL, KEY, NORMAL, UNKNOWN, UNUSED, USER_DEFINED
from olivine.tokenizer.names import END_NAMES, END_OF_TURN, GUARDED_BUT_SHOWN
from olivine.tokenizer.patterns import PRE_TOKENIZERS
from olivine.tokenizer.sentencepiece import read_model
from olivine.tokenizer.settings import Settings

_NO_SCORE = -1000.0  # of tokens that do not merge by score, as in published files
# Gemma 4's markers that are shown to output parsers. Those of prompts stay hidden.
_SHOWN = GUARDED_BUT_SHOWN - {"<|tool>", "<tool|>", "<|think|>"}

# A text on which pre-tokenizers differ: contractions, digits, spaces, line ends, scripts, marks, emoji.
PROBE = (
    "Hello, world! I'M sure they've 12345 apples; don't WE'LL see 3.14 or ½?\n\n  def f(x):\n\treturn x**2"
    "\r\n  two  spaces   three  1234567\t\ttabs\n \n  naïve café über Straße 漢字かな 한국어 العربية "
    "हिन्दी e\u0301 🚀👨\u200d👩\u200d👧❤️ <table></table> $a_1^2$ \u00a0\u3000 x²³ ١٢٣ …“quoted”—'s 'S 'll'LL "
    + "ha" * 20
    + "=" * 30
    + " " * 33
)


def from_hugging_face(folder: Path, rows: int, kind: str = "") -> dict[str, Any]:
    """The metadata for a model whose embedding has `rows` rows, each of which needs a token.

    `kind` is `tokenizer.ggml.model` where a family has its own.
    """
    tokenizer = from_folder(folder)
    settings = Settings.read(folder)
    if (folder / "tokenizer.json").is_file():
        found = _from_json(folder, tokenizer, rows, kind)
    else:
        found = _from_model(folder)
    _place_added(found, tokenizer, settings, rows)
    metadata = {**_named(tokenizer, rows), **_fitted(found, rows)}
    ordinary = np.flatnonzero(metadata[f"{KEY}token_type"] == NORMAL)
    # Readers add BOS to Gemma 4's texts regardless of its files.
    begins = found.keys["model"] != "gemma4"
    refuse_other_tokens(tokenizer, from_gguf(metadata), ordinary, "GGUF", add_special=begins)
    return metadata


class _Vocabulary:
    """Tokens, types and scores by id, and the keys for merging them."""

    def __init__(self, size: int, keys: dict[str, Any]) -> None:
        self.tokens: list[str | None] = [None] * size
        self.types = [NORMAL] * size
        self.scores = [0.0] * size
        self.added: dict[int, str] = {}
        self.merged: frozenset[str] = frozenset()  # added tokens that merging also produces from plain text
        self.keys = keys

    @property
    def is_sentencepiece(self) -> bool:
        return self.keys["model"] != "gpt2"


def _from_json(folder: Path, tokenizer: Tokenizer, rows: int, kind: str) -> _Vocabulary:
    """tokenizer.json, which `from_folder` has read and found good."""
    where = str(folder / "tokenizer.json")
    data = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    model = data["model"]
    vocabulary: dict[str, int] = model["vocab"]
    if (last := max(vocabulary.values(), default=-1)) >= rows:
        raise _other_model(last + 1, rows)
    found = _Vocabulary(last + 1, {})
    for token, i in vocabulary.items():
        found.tokens[i] = token
    found.added = {entry["id"]: entry["content"] for entry in data.get("added_tokens") or []}
    merges = _merges(model)
    if tokenizer.kind == "byte-level BPE":
        with library_errors(where):
            # Without its vocabulary, which takes the library a second to read.
            empty = {**data, "model": {"type": "BPE", "vocab": {}, "merges": []}, "added_tokens": []}
            native = Native.from_str(json.dumps({**empty, "post_processor": None}))
            name = _pre_name(native, model, frozenset(found.added.values()), where)
        found.keys = {"model": "gpt2", "pre": name}
        found.keys["merges"] = [" ".join(pair) for pair in merges]
        return found
    for token, i in vocabulary.items():
        found.types[i] = BYTE if token in _BYTES else NORMAL
    # Merged pieces in the order of their first merge, then pieces that are never merged.
    order = dict.fromkeys(left + right for left, right in merges)
    if kind == "gemma4":
        found.keys = {"model": "gemma4", "add_space_prefix": False, "add_bos_token": True}
        found.keys["merges"] = [" ".join(pair) for pair in merges]
        if (mask := tokenizer.special_tokens.get("<mask>")) is not None:
            found.keys["mask_token_id"] = mask
        found.scores = [_NO_SCORE] * len(found.scores)
        found.merged = frozenset(order)
    else:
        prefix = tokenizer.encode("x", add_special=False) != _without_prefix(tokenizer)
        found.keys = {"model": "llama", "pre": "default", "add_space_prefix": prefix}
        ranks = {piece: -float(rank) for rank, piece in enumerate(order)}
        for token, i in vocabulary.items():
            found.scores[i] = ranks.get(token, -float(len(ranks)))
    return found


_BYTES = frozenset(BYTE_PIECES)


def _without_prefix(tokenizer: Tokenizer) -> list[int]:
    """The encoding of "x" without a space before the text."""
    x = tokenizer.id_of("x")
    return [] if x is None else [x]


def _from_model(folder: Path) -> _Vocabulary:
    """tokenizer.model, which `from_folder` has read and found good."""
    path = folder / "tokenizer.model"
    model = read_model(path.read_bytes(), str(path))
    keys = {"model": "llama", "pre": "default", "add_space_prefix": model.add_dummy_prefix}
    found = _Vocabulary(len(model.pieces), keys)
    found.tokens, found.types, found.scores = [*model.pieces], [*model.types], [*model.scores]
    found.added = {i: model.pieces[i] for i, kind in enumerate(model.types) if kind == USER_DEFINED}
    return found


def _place_added(found: _Vocabulary, tokenizer: Tokenizer, settings: Settings, rows: int) -> None:
    """Added tokens at their ids, hidden or shown as the tokenizer that was read treats them."""
    added = found.added | {i: token.content for i, token in settings.added.items()}
    special = {i: text for text, i in tokenizer.special_tokens.items()}
    for i, text in {**added, **special}.items():
        if i >= rows:
            continue
        if i >= len(found.tokens):
            extra = i + 1 - len(found.tokens)
            found.tokens += [None] * extra
            found.types += [NORMAL] * extra
            found.scores += [0.0] * extra
        hidden = i in special and text not in _SHOWN
        if found.types[i] == BYTE or (text in found.merged and i not in special):
            continue
        found.types[i] = CONTROL if hidden else USER_DEFINED
        # SentencePiece escapes spaces after these have been found, so they have real ones.
        shown = found.is_sentencepiece and not hidden
        found.tokens[i] = text.replace(SPACE, " ") if shown else text
        found.scores[i] = _NO_SCORE
    unknown = tokenizer.unk_id
    if found.keys["model"] == "llama" and unknown is not None and unknown < len(found.types):
        found.types[unknown] = UNKNOWN


def _fitted(found: _Vocabulary, rows: int) -> dict[str, Any]:
    """One entry per row of the embedding: tokens without a row are dropped, rows without a token unused."""
    if any(kind == NORMAL for kind in found.types[rows:]):
        raise _other_model(len(found.tokens), rows)
    tokens, types, scores = found.tokens[:rows], found.types[:rows], found.scores[:rows]
    missing = rows - len(tokens)
    tokens += [None] * missing
    types += [UNUSED] * missing
    scores += [_NO_SCORE] * missing
    taken = {token for token in tokens if token is not None}
    named: list[str] = []
    for i, token in enumerate(tokens):
        if token is None:
            types[i] = UNUSED
            token = f"[PAD{i}]"
            while token in taken:
                token += "_"
        named.append(token)
    arrays: dict[str, Any] = {"tokens": named, "token_type": np.array(types, np.int32)}
    if found.is_sentencepiece:
        arrays["scores"] = np.array(scores, np.float32)
    return {KEY + name: value for name, value in {**found.keys, **arrays}.items()}


def _other_model(tokens: int, rows: int) -> TokenizerError:
    return TokenizerError(
        f"the tokenizer has {tokens} tokens and the embedding {rows} rows: they are not of the same model"
    )


def _named(tokenizer: Tokenizer, rows: int) -> dict[str, Any]:
    """The ids of BOS and similar tokens, and whether they are added to a text."""
    ids = {
        "bos": tokenizer.bos_id,
        "eos": tokenizer.eos_id,
        "padding": tokenizer.pad_id,
        "unknown": tokenizer.unk_id,
    }
    # Readers know most tokens that end replies by name; for others there are two keys: end of turn, and of
    # message. The second is not given to another token where the vocabulary has one of that name.
    names = END_NAMES - {END_OF_TURN}
    known = {tokenizer.eos_id, *(i for text, i in tokenizer.special_tokens.items() if text in names)}
    keys = ("eot",) if "<|eom_id|>" in tokenizer.special_tokens else ("eot", "eom")
    ids |= zip(keys, sorted(tokenizer.stop_ids - known), strict=False)
    found: dict[str, Any] = {
        f"{KEY}{name}_token_id": i for name, i in ids.items() if i is not None and i < rows
    }
    around = tokenizer.encode("")
    begins = tokenizer.bos_id is not None and around[:1] == [tokenizer.bos_id]
    after = around[1:] if begins else around  # if one token is both, it counts once
    found[f"{KEY}add_bos_token"] = begins
    found[f"{KEY}add_eos_token"] = tokenizer.eos_id is not None and after[-1:] == [tokenizer.eos_id]
    return found


def lost_ends(stop_ids: Collection[int], made: Tokenizer, why: str) -> tuple[str, ...]:
    """A warning of tokens that end a reply, but not for readers of the result. `why`: "GGUF has no key"."""
    lost = [str(i) for i in sorted(stop_ids) if i < made.vocab_size and i not in made.stop_ids]
    if not lost:
        return ()
    if len(lost) == 1:
        return (f"token {lost[0]} also ends a reply, and {why} for it",)
    return (f"tokens {', '.join(lost)} also end a reply, and {why} for them",)


def more_spaces(folder: Path, metadata: Mapping[str, Any]) -> tuple[str, ...]:
    """A warning where readers of this metadata put more spaces in front of texts than the original does."""
    if not metadata.get(f"{KEY}add_space_prefix") or not from_folder(folder).begins_once:
        return ()
    return (
        "the original puts a space in front of a prompt that begins without one; GGUF has no word for that, "
        "and its readers put one in front of every prompt, and behind each special token",
    )


def _pre_name(native: Any, model: dict[str, Any], added: Collection[str], where: str) -> str:
    """The name of this file's pre-tokenizer."""
    cut = _pieces(native.pre_tokenizer)
    names = [name for name, pre in PRE_TOKENIZERS.items() if pre.byte_level and _pieces_of(name) == cut]
    if not names:
        raise TokenizerError(f"{where}: pre_tokenizer: GGUF readers know no name for this way to cut text")
    composes = native.normalizer is not None and native.normalizer.normalize_str("e\u0301") == "\u00e9"
    whole = bool(model.get("ignore_merges"))
    names.sort(key=lambda name: PRE_TOKENIZERS[name].nfc != composes)
    alike = [name for name in names if PRE_TOKENIZERS[name].ignore_merges == whole]
    if alike:
        return alike[0]
    if not _all_are_merged(model, added, where):
        raise TokenizerError(
            f"{where}: ignore_merges: GGUF readers know this way to cut text ({names[0]}) only with it "
            f"{'off' if whole else 'on'}, and this vocabulary has tokens that no merges make"
        )
    return names[0]  # if merges produce every token, ignore_merges changes nothing


@functools.cache
def _pieces_of(name: str) -> list[str]:
    return _pieces(PRE_TOKENIZERS[name].pre_tokenizer())


def _pieces(pre_tokenizer: Any) -> list[str]:
    """The probe text, split by a pre-tokenizer."""
    return [] if pre_tokenizer is None else [piece for piece, _ in pre_tokenizer.pre_tokenize_str(PROBE)]


def _all_are_merged(model: dict[str, Any], added: Collection[str], where: str) -> bool:
    """Whether merging the bytes of each token gives that token."""
    vocabulary: dict[str, int] = model["vocab"]
    bpe = bpe_model(vocabulary, _merges(model), where)
    with library_errors(where):
        return all(len(bpe.tokenize(piece)) == 1 for piece in vocabulary if piece not in added)


def _merges(model: dict[str, Any]) -> list[tuple[str, str]]:
    """Left and right of each merge; older files have one string."""
    parted = (merge.split(" ", 1) if isinstance(merge, str) else merge for merge in model["merges"])
    return [(left, right) for left, right in parted]


def refuse_other_tokens(
    original: Tokenizer,
    made: Tokenizer,
    ordinary: npt.NDArray[np.int64],
    format: str,
    *,
    add_special: bool = True,
) -> None:
    """Raises if the result encodes the probe, or samples of ordinary tokens, differently."""
    tour = original.decode(ordinary[:: max(1, len(ordinary) // 4096)].tolist()).replace("\ufffd", "")
    tour = tour.lstrip(" ")  # `more_spaces` is about those in front
    for text in (PROBE, tour[:20_000], "x", ""):
        expected, found = (t.encode(text, add_special=add_special) for t in (original, made))
        if expected != found:
            pairs = enumerate(zip(expected, found, strict=False))
            at = next((i for i, (a, b) in pairs if a != b), min(len(expected), len(found)))
            near = original.decode(expected[max(0, at - 3) : at + 3])
            raise TokenizerError(
                f"the tokenizer does not fit {format}: near {near!r} it gives {expected[at : at + 4]}, "
                f"and by {format}'s rules {found[at : at + 4]}"
            )
