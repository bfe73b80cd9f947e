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
    named = os.environ.get(variable) or (os.environ.get(windows) if os.name == "nt" else None)
    return Path(named) if named else Path(os.path.expanduser("~")) / home
