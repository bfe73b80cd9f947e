"""What is on the disk, and how large it is: models that were downloaded, caches, and the settings."""

from __future__ import annotations

import os
import shutil
import stat
import time
from collections import Counter
from pathlib import Path

from olivine.doctor.section import Problem, Section, size, without_home
from olivine.errors import OlivineError
from olivine.folders import cache_folder, state_folder
from olivine.hub import local
from olivine.settings import SETTINGS, VARIABLES, load_settings, settings_path

LONGEST = 2.0  # seconds to add up a folder: what is found by then is told
LITTLE = 5 << 30  # bytes: less has no room for most models
_PATHS = ("OLIVINE_CONFIG", "OLIVINE_STATE", "OLIVINE_CACHE", "OLIVINE_LIBRARY")


def stores(*, paths: bool) -> Section:
    """Folders with models and caches, and the room that is left on the disk of the home folder."""
    section = Section("disk")
    stored = []
    models = Counter(model.source for model in local.models())
    for name, folder in folders():
        if not os.path.isdir(folder):
            continue
        total, complete = folder_size(folder)
        facts = {"name": name, "models": models.get(name), "bytes": total, "complete": complete}
        stored.append(facts | ({"path": str(folder)} if paths else {}))
        count = f"{models[name]} model{'' if models[name] == 1 else 's'}, " if name in models else ""
        least = "" if complete else "at least "
        where = f"  {without_home(str(folder))}" if paths else ""
        section.tell(name, f"{count}{least}{size(total)}{where}")
    home = os.path.expanduser("~")
    free = shutil.disk_usage(home if os.path.isdir(home) else os.curdir).free
    section.tell("free", size(free))
    section.facts = {"folders": stored, "free_bytes": free}
    if free < LITTLE:
        section.problems.append(
            Problem(
                f"only {size(free)} of disk are free", "olivine list shows models, olivine rm deletes one"
            )
        )
    return section


def folders() -> list[tuple[str, Path]]:
    """Where models and caches lie, by the programs whose they are."""
    return [
        (local.HUGGING_FACE, local.hub_cache()),
        *((local.OLLAMA, folder) for folder in local.ollama_folders()),
        *((local.LM_STUDIO, folder) for folder in local.lm_studio_folders()),
        ("cache", cache_folder()),
        ("state", state_folder()),
    ]


def folder_size(folder: Path, longest: float = LONGEST) -> tuple[int, bool]:
    """Bytes of the files in a folder, links not followed; and whether there was time for all of them."""
    end = time.monotonic() + longest
    total, left = 0, [str(folder)]
    while left:
        if time.monotonic() > end:
            return total, False
        try:
            with os.scandir(left.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        left.append(entry.path)
                    elif entry.is_file(follow_symlinks=False):
                        total += entry.stat(follow_symlinks=False).st_size
        except OSError:
            continue
    return total, True


def settings(*, paths: bool) -> Section:
    """The settings file and the variables that are set: their names, since values may be secrets."""
    section = Section("settings")
    path = settings_path()
    names = [*VARIABLES, *(each.variable for each in SETTINGS.values())]
    variables = [name for name in names if os.environ.get(name)]
    section.facts = {"exists": path.exists(), "variables": variables, "problem": None}
    shown = [_variable(name, paths) for name in variables]
    try:
        found = load_settings()
    except OlivineError as error:
        section.facts["problem"] = str(error)
        section.tell("file", "cannot be used")
        section.problems.append(Problem(str(error), "correct the file: olivine config path", failure=True))
    else:
        keys = [entry.key for entry in found.entries]
        section.facts["keys"] = keys
        where = f"{without_home(str(path))}: " if paths else ""
        section.tell("file", where + (", ".join(keys) or ("empty" if path.exists() else "none")))
        secret = any(SETTINGS[entry.name].secret for entry in found.entries)
        if secret and os.name == "posix" and path.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH):
            section.problems.append(
                Problem("others can read the API key in the settings file", "chmod 600 the file")
            )
    section.tell("variables", ", ".join(shown) or "none")
    return section


def _variable(name: str, paths: bool) -> str:
    if name == "OLIVINE_ISA" or (paths and name in _PATHS):
        return f"{name}={without_home(os.environ[name])}"
    return name
