"""The model in the box: olivine-mini comes with the package, so that a first question needs no download.

tools/mini/ makes it.
"""

from __future__ import annotations

import os
from pathlib import Path

from olivine.errors import CheckpointError

NAME = "olivine-mini"
FILE = Path(__file__).with_name(f"{NAME}.gguf")


def packaged() -> Path:
    """The model's file; an error that says what to do where it is not there."""
    if not FILE.is_file():
        raise CheckpointError(
            FILE,
            "",
            f"this copy of Olivine came without {NAME}, the model in the box; tools/mini/README.md says how "
            "to make it. Or name a model of your own: olivine chat path/to/model.gguf",
        )
    return FILE


def find(model: str | os.PathLike[str]) -> Path:
    """Where a model lies: in the box if `model` is the name of the one that lies there, else where it says.

    A file or folder of that name in the working directory goes first. A `Path` is a path, and never a name:
    "./olivine-mini" would have become the same one.
    """
    named = isinstance(model, str) and model == NAME and not os.path.lexists(NAME)
    return packaged() if named else Path(model)
