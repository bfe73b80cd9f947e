"""Changes to the settings file, line by line: comments and order stay as they are.

A change is checked before it is written: the new text must say what the old one said, and the one value.
Where that fails (a value over several lines), the file is left to its owner.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from olivine.errors import RequestError
from olivine.settings import entries_of, lines_of, parsed


def changed(text: str, section: str, name: str, value: Any, path: Path) -> str:
    """The text with this value; `section` is "" for all commands."""
    spelled, at = _place(text, section, name)
    line = f"{spelled} = {_toml(value)}"
    lines = text.splitlines()
    if at is not None:
        lines[at] = line
    elif section:
        header = next((i for (part, key), i in lines_of(text).items() if (part, key) == (section, "")), None)
        if header is None:
            lines += [*([""] if lines else []), f"[{section}]", line]
        else:
            lines.insert(header, line)  # lines count from 1: after the header
    else:
        lines.insert(_end_of_common(lines, text), line)
    return _checked("\n".join(lines) + "\n", text, section, spelled, value, path)


def _end_of_common(lines: list[str], text: str) -> int:
    """Before the first section, and before the comments and the empty lines above it."""
    headers = [number for (_, key), number in lines_of(text).items() if not key]
    if not headers:
        return len(lines)
    at = min(headers) - 1
    while at > 0 and lines[at - 1].startswith("#"):
        at -= 1
    while at > 0 and not lines[at - 1].strip():
        at -= 1
    return at


def removed(text: str, section: str, name: str, path: Path) -> str:
    """The text without this value."""
    spelled, at = _place(text, section, name)
    if at is None:
        key = f"{section}.{name}" if section else name
        raise RequestError(f"{path}: {key} is not set there")
    lines = text.splitlines()
    del lines[at]
    return _checked("\n".join(lines) + "\n" if lines else "", text, section, spelled, None, path)


def write(path: Path, text: str) -> None:
    """Writes the whole file or nothing of it. A new one is for its owner only: it may have API keys."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        target = path.resolve()  # a link stays one
        if target.exists() and not target.is_file():
            raise RequestError(f"{path}: is no file, and cannot have settings")
        handle, part = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as out:
                out.write(text)
            if target.exists():
                shutil.copymode(target, part)
            os.replace(part, target)
        except BaseException:
            os.unlink(part)
            raise
    except OSError as error:
        raise RequestError(f"{path}: cannot be written: {error.strerror or error}") from None


def _place(text: str, section: str, name: str) -> tuple[str, int | None]:
    """How the file spells the name, and the index of its line."""
    found = lines_of(text)
    for spelled in (name, name.replace("-", "_")):
        if (section, spelled) in found:
            return spelled, found[section, spelled] - 1
    return name, None


def _checked(text: str, before: str, section: str, name: str, value: Any, path: Path) -> str:
    """The text, if it says what the one before said but for the one value; a value of None is none."""
    old = parsed(before, path)
    wanted = old.setdefault(section, {}) if section else old
    wanted.pop(name, None)
    if value is not None:
        wanted[name] = value
    try:
        same = parsed(text, path) == old
    except RequestError:
        same = False
    if not same:
        raise RequestError(f"{path}: {name} cannot be changed by a line: edit the file")
    for _ in entries_of(text, path):
        pass
    return text


def _toml(value: Any) -> str:
    """A value as TOML writes it: JSON's strings are TOML's, but for DEL."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
