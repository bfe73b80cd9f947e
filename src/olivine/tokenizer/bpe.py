"""Shared by all sources: the byte alphabet, merges from scores, and building the library's objects."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import AddedToken, models
from tokenizers import Tokenizer as Native

from olivine.errors import TokenizerError, printable

SPACE = "▁"  # U+2581, SentencePiece's space
BYTE_PIECES = [f"<0x{byte:02X}>" for byte in range(256)]  # what characters without a piece fall back to

# No published piece comes near this length. Longer ones are kept as tokens but never built by merging, so
# that a hostile vocabulary cannot make the search for splits quadratic.
LONGEST_MERGED_PIECE = 512


@contextmanager
def no_collection() -> Iterator[None]:
    """Disables garbage collection, which hundreds of thousands of new tuples would trigger in vain."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@contextmanager
def library_errors(where: str) -> Iterator[None]:
    """Turns every failure of the native library, panics included, into a TokenizerError."""
    try:
        yield
    except (TokenizerError, KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError):
        raise
    except BaseException as error:  # a Rust panic arrives as a BaseException
        raise TokenizerError(f"{where}: {printable(str(error), 300)}") from error


def _byte_alphabet() -> list[str]:
    """GPT-2's printable stand-in for each byte: itself where printable, else U+0100 and up in order."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    alphabet, extra = [], 256
    for byte in range(256):
        if byte in printable:
            alphabet.append(chr(byte))
        else:
            alphabet.append(chr(extra))
            extra += 1
    return alphabet


BYTE_TO_CHAR = _byte_alphabet()
CHAR_TO_BYTE = {char: byte for byte, char in enumerate(BYTE_TO_CHAR)}
_LATIN1_TO_ALPHABET = dict(enumerate(BYTE_TO_CHAR))


def to_alphabet(data: bytes) -> str:
    """Raw bytes in the byte alphabet."""
    return data.decode("latin-1").translate(_LATIN1_TO_ALPHABET)


def utf8(text: str) -> bytes:
    """UTF-8; bytes that were not valid in the file come back as they were."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()


def byte_level_bytes(piece: str) -> bytes:
    """The bytes of a byte-level piece. One that is not in the alphabet stands for its own text."""
    try:
        return bytes([CHAR_TO_BYTE[char] for char in piece])
    except KeyError:
        return utf8(piece)


def sentencepiece_bytes(piece: str) -> bytes:
    """The bytes of a SentencePiece piece: `<0xXX>` is a byte, ▁ is a space."""
    if len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):
        try:
            return bytes([int(piece[3:5], 16)])
        except ValueError:
            pass
    return utf8(piece.replace(SPACE, " "))


def merges_by_rank(pieces: Sequence[str], where: str) -> list[tuple[str, str]]:
    """The merge list of a vocabulary that is merged by concatenation: distinct pieces, the best first.

    SentencePiece and tiktoken join two neighbors when their concatenation is a piece, the best such piece
    first. A merge list says the same when it has every split of every piece into two pieces, in the order of
    the pieces.
    """
    # Worst piece first, as splits come back from last to first: of one piece, the split with the longest left
    # half then comes first. Repeated text ("aaaa", "abab") reaches that one when joined from the left.
    words = [piece for piece in reversed(pieces) if len(piece) <= LONGEST_MERGED_PIECE]
    try:
        splits = _splits(words)
    except UnicodeEncodeError as error:
        raise TokenizerError(f"{where}: a piece is not valid Unicode") from error
    if splits is None:
        raise TokenizerError(f"{where}: pieces made to collide")
    place = words.__getitem__
    return list(zip(map(place, splits[0]), map(place, splits[1]), strict=True))


def _splits(words: list[str]) -> tuple[list[int], list[int]] | None:
    """Indices (left, right) of word pairs that concatenate to a word, found by hash; from last to first.

    Looking up two slices for each of Gemma's 1.8 million splits takes Python more than a second. Polynomial
    hashes modulo 2⁶⁴ of all halves take NumPy a tenth of that. None if two words have the same hash, which
    happens only in a file made for it: otherwise a half that is a word always finds itself. In such a file a
    half may also have the hash of another word: the library refuses that merge unless it makes a word too.
    """
    base, mixer, bits = 0x9E3779B97F4A7C15, np.uint64(0xD6E8FEB86659FD93), 22
    codes = np.frombuffer("".join(words).encode("utf-32-le"), np.uint32).astype(np.uint64) + np.uint64(1)
    lengths = np.fromiter(map(len, words), np.int64, len(words))
    stops = np.cumsum(lengths)
    starts = stops - lengths
    sums = np.zeros(len(codes) + 1, np.uint64)  # of code·baseⁱ before each place
    np.cumsum(codes * np.cumprod(np.full(len(codes), base, np.uint64)), out=sums[1:])
    inverses = np.cumprod(np.full(len(codes) + 1, pow(base, -1, 1 << 64), np.uint64))  # base⁻ⁱ

    def hashes(start: npt.NDArray[np.int64], stop: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
        mixed: npt.NDArray[np.uint64] = (sums[stop] - sums[start]) * inverses[start] * mixer
        return mixed

    own = hashes(starts, stops)
    order = np.argsort(own)
    ordered = own[order]
    if (ordered[1:] == ordered[:-1]).any():
        return None
    table = np.full(1 << bits, -1, np.int32)
    table[own >> np.uint64(64 - bits)] = np.arange(len(words))

    def find(wanted: npt.NDArray[np.uint64]) -> npt.NDArray[np.int32]:
        """The word with each hash, or -1. A table finds nearly all; a binary search resolves collisions."""
        found: npt.NDArray[np.int32] = table[wanted >> np.uint64(64 - bits)]
        rest = np.flatnonzero((found >= 0) & (own[found] != wanted))
        candidate = order[np.searchsorted(ordered, wanted[rest]) % len(words)]
        found[rest] = np.where(own[candidate] == wanted[rest], candidate, -1)
        return found

    owners = np.repeat(np.arange(len(words)), lengths)
    cuts = np.arange(len(owners))
    inside = cuts != starts[owners]
    owners, cuts = owners[inside], cuts[inside]
    lefts = find(hashes(starts[owners], cuts))
    owners, cuts, lefts = owners[lefts >= 0], cuts[lefts >= 0], lefts[lefts >= 0]
    rights = find(hashes(cuts, stops[owners]))
    both = rights >= 0
    return lefts[both][::-1].tolist(), rights[both][::-1].tolist()


def bpe_model(
    vocabulary: dict[str, int],
    merges: list[tuple[str, str]],
    where: str,
    *,
    unk_token: str | None = None,
    byte_fallback: bool = False,
    ignore_merges: bool = False,
) -> Any:
    """The library's BPE model."""
    with library_errors(where):
        return models.BPE(
            vocab=vocabulary,
            merges=merges,
            unk_token=unk_token,
            fuse_unk=unk_token is not None,
            byte_fallback=byte_fallback,
            ignore_merges=ignore_merges,
        )


def assemble(
    model: Any, added: Iterable[AddedToken], *, normalizer: Any = None, pre_tokenizer: Any = None, parse: bool
) -> Any:
    """A tokenizer of the library around a model. Without `parse`, special tokens are encoded as text."""
    native = Native(model)
    if normalizer is not None:
        native.normalizer = normalizer
    if pre_tokenizer is not None:
        native.pre_tokenizer = pre_tokenizer
    native.add_tokens(list(added))
    native.encode_special_tokens = not parse
    return native
