"""Model files of every known format, opened as a `Checkpoint`."""

from __future__ import annotations

import os
from pathlib import Path

from olivine.errors import CheckpointError, printable
from olivine.formats import ajc1, gguf, safetensors
from olivine.formats.checkpoint import Checkpoint, Tensor
from olivine.formats.checks import unsupported_format
from olivine.formats.mapping import map_file
from olivine.hub import find

__all__ = ["Checkpoint", "Tensor", "open_checkpoint"]

_KNOWN = "known are safetensors folders and files, GGUF files and qwen3.c .bin files"
_SHOWN_NAMES = 8


def open_checkpoint(path: str | os.PathLike[str]) -> Checkpoint:
    """Open a model as its publisher ships it: a folder, or a file (its first bytes tell the format).

    A string that is no path may be the name of a model on this machine (`olivine list`), or "olivine-mini",
    the model in the package.

    Tensors are views of the memory-mapped files, so this takes no longer for a large model. A malformed file
    raises a `CheckpointError` that names the file and the field.
    """
    path = find(path)
    if os.path.isdir(path):
        return _open_folder(path)
    source = map_file(path)
    start = source.buffer[:32]
    if start.startswith(gguf.MAGIC):
        return gguf.open_file(source)
    if start.startswith(ajc1.MAGIC):
        return ajc1.open_file(source)
    if start[8:9] == b"{":  # safetensors has no magic: a 64-bit length, then a JSON object
        return safetensors.open_file(source)
    found = unsupported_format(start) or f"a file of an unknown format (it begins with {start[:8]!r})"
    raise CheckpointError(path, "", f"is {found}; {_KNOWN}")


def _open_folder(folder: Path) -> Checkpoint:
    try:
        names = sorted(os.listdir(folder))
        if safetensors.is_model_folder(folder):
            return safetensors.open_folder(folder)
    except OSError as error:
        raise CheckpointError(folder, "", f"cannot be read: {error.strerror}") from error
    # A model may be split into parts, and have a projector for images beside it.
    models = [
        name
        for name in names
        if name.lower().endswith(".gguf") and "mmproj" not in name.lower() and not gguf.is_later_part(name)
    ]
    if len(models) == 1:
        return gguf.open_file(map_file(folder / models[0]), path=folder)
    if models:
        raise CheckpointError(folder, "", f"holds several GGUF models ({_list(models)}): name one of them")
    if "consolidated.safetensors" in names:
        told = "holds a model in Mistral's own form (consolidated.safetensors)"
        raise CheckpointError(
            folder, "", f"{told}: download model*.safetensors and config.json from the same repository"
        )
    found = f"holds {_list(names)}" if names else "is empty"
    raise CheckpointError(folder, "", f"no model in this folder, which {found}; {_KNOWN}")


def _list(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN_NAMES} more" if len(names) > _SHOWN_NAMES else ""
    return ", ".join(printable(name) for name in names[:_SHOWN_NAMES]) + more
