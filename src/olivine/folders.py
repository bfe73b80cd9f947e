"""Where Olivine keeps files of its own, by the XDG base directories: settings, state and caches."""

from __future__ import annotations

import os
from pathlib import Path


def config_folder() -> Path:
    """Of the settings file."""
    return _base("XDG_CONFIG_HOME", "APPDATA", ".config") / "olivine"


def state_folder() -> Path:
    """Where the history of prompts and the last conversation are kept, for this user only."""
    return _own("OLIVINE_STATE") or _base("XDG_STATE_HOME", "LOCALAPPDATA", ".local/state") / "olivine"


def cache_folder() -> Path:
    """Of what can be made again."""
    return _own("OLIVINE_CACHE") or _base("XDG_CACHE_HOME", "LOCALAPPDATA", ".cache") / "olivine"


def _own(variable: str) -> Path | None:
    named = os.environ.get(variable)
    return Path(named) if named else None


def _base(variable: str, windows: str, home: str) -> Path:
    """A relative path in the variable is ignored, as the specification wants it.

    Who has no home gets the root, as in containers with HOME=/: what cannot be written there is not kept,
    and no other user can have made it, as one could in /tmp.
    """
    named = os.environ.get(variable) or (os.environ.get(windows) if os.name == "nt" else None)
    if named and os.path.isabs(named):
        return Path(named)
    found = os.path.expanduser("~")
    return Path(found if os.path.isabs(found) else os.sep) / home
