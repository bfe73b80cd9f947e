"""Small checks that more than one format needs."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from olivine.errors import CheckpointError, printable

# Other files that are often found in place of a model, by their first bytes.
_UNSUPPORTED = {
    b"version https://git-lfs": "a Git LFS pointer: the model itself was not downloaded (`git lfs pull`)",
    b"PK\x03\x04": "a zip archive, perhaps a PyTorch checkpoint: look for its safetensors edition",
    b"\x80\x02\x8a\x0a": "a PyTorch checkpoint, which could run code: look for its safetensors edition",
    b"ggjt": "a GGML file from before GGUF: look for the model's GGUF edition",
    b"tjgg": "a GGML file from before GGUF: look for the model's GGUF edition",
    b"FUGG": "a byte-swapped GGUF",
    b"<!DOCTYPE": "an HTML page: the download went wrong",
    b"<html": "an HTML page: the download went wrong",
}


def unsupported_format(start: bytes) -> str | None:
    """The kind of a file that begins with `start`, if it is a known kind that cannot be read."""
    return next((what for magic, what in _UNSUPPORTED.items() if start.startswith(magic)), None)


def shown(value: object) -> str:
    """A value from a file as an error may show it."""
    if isinstance(value, str):
        return f'"{printable(value)}"'
    return str(value) if isinstance(value, int | float) else f"a {type(value).__name__}"


def is_integer(value: object) -> bool:
    """Whether a value from a file is a whole number. Python's bool is an int; a file's is not."""
    return isinstance(value, int) and not isinstance(value, bool)


def tensor_field(name: str) -> str:
    """The field of an error about one tensor."""
    return f"tensor {printable(name)}"


def refuse_overlap(path: Path, extents: Iterable[tuple[int, int, str]]) -> None:
    """Refuse (begin, end, tensor name) byte ranges of one file of which two share a byte.

    A shared byte would make one tensor an alias of another.
    """
    last_end, last_name = 0, ""
    for begin, end, name in sorted(extents):
        if begin < last_end:
            problem = f"its bytes {begin}..{end} overlap those of tensor {printable(last_name)}"
            raise CheckpointError(path, tensor_field(name), problem)
        last_end, last_name = end, name
