"""From what a user calls a model to its path: the one place where that is decided."""

from __future__ import annotations

import os
from pathlib import Path

from olivine import box
from olivine.errors import CheckpointError, MissingModelError, RequestError
from olivine.hub.aliases import aliases, defaults
from olivine.hub.names import Name, nearest, parse

CONTEXT = 4096  # at which a model is to fit, where nothing is said of it


def find(model: str | os.PathLike[str]) -> Path:
    """Where a model lies: a path that exists, else by its name: in the package, or on this disk.

    A `Path` is a path, and never a name. What looks like a path is returned as it is: opening it says that
    nothing is there. A name of a model that is not here is a `MissingModelError`, any other a
    `CheckpointError` with the names that are nearest; an empty one, or an address of another
    revision than main, a `RequestError`.
    """
    if model == "":
        raise RequestError("the name of the model is empty", param="model")
    path = box.find(model)
    if not isinstance(model, str) or os.path.lexists(path):
        return path
    name = parse(model)
    if name is None:
        return path
    from olivine.hub import local

    known = local.models()
    found = local.locate(name, known)
    if found is not None:
        return found.path
    if name.repo:
        raise MissingModelError(model, "", missing(name))
    raise CheckpointError(model, "", unknown(model, [each.name for each in known]))


def missing(name: Name) -> str:
    """Of a model that may be downloaded."""
    pull = f"olivine pull {name.text}"
    if name.alias is not None:
        size = name.alias.all_bytes / 1e9
        return f"is not on this machine: {pull} downloads it ({name.alias.repo}, about {size:.1f} GB)"
    return f"there is no such file or folder, and {name.repo} is not on this machine: {pull} downloads it"


def unknown(text: str, known: list[str]) -> str:
    """Of a word that is neither a path nor a name: the nearest names, and what fits this machine."""
    from olivine.hub import fit

    free = fit.free_memory()
    fits = {each.name: each for each in fit.fitting(free, CONTEXT)}
    told = []
    near = nearest(text, known)
    for name in near:
        alias = aliases().get(name) or defaults().get(name)
        if alias is None or name in known:
            told.append(f"{name} (on this machine)")
        else:
            large = "" if alias.name in fits else ", too large for this machine"
            told.append(f"{name} ({alias.all_bytes / 1e9:.1f} GB{large})")
    parts = [f"nearest: {', '.join(told)}"] if told else []
    if not any((aliases().get(name) or defaults().get(name, None)) in fits.values() for name in near):
        largest: dict[str, str] = {}  # of each family
        for each in fits.values():
            largest.setdefault(each.family, each.name)
        some = [*largest.values()][:3]
        parts += [f"what fits the {free / 1e9:.1f} GB of free memory: {', '.join(some)}"] if some else []
        parts.append("all names: olivine list --available")
    return f"there is no such file or folder, and no model of that name; {'; '.join(parts)}"
