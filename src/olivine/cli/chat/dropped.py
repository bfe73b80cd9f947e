"""Files that were dropped on the terminal, which pastes their paths: quoted, with backslashes, or as URLs."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from urllib.parse import unquote, urlsplit

_START = re.compile(r"(?:^|(?<=\s))(?<!\\\s)(?=[/~'\"]|file://|[A-Za-z]:\\)")  # of a path, not after "\\ "
_LONGEST = 4096  # characters of a path


def dropped(text: str) -> tuple[str, list[Path]]:
    """A message without the images, sounds and videos whose paths stand at its end; and those. Only whole
    paths count, from the root on: a terminal pastes no others, and a person who types one means the text."""
    found: list[Path] = []
    while (last := _last(text)) is not None:
        text, path = last
        found.insert(0, path)
    return text, found


def _last(text: str) -> tuple[str, Path] | None:
    """The text before the path at its end, and the path."""
    text = text.rstrip()
    first = max(0, len(text) - _LONGEST)
    for match in reversed([*_START.finditer(text, first)]):
        if (path := _path(text[match.start() :])) is not None:
            return text[: match.start()].rstrip(), path
    return None


def _path(text: str) -> Path | None:
    """The medium that a text names as terminals do; None if it names none."""
    from olivine.media import kind_of

    spellings = [text]
    if text.startswith("file://"):
        spellings = [unquote(urlsplit(text).path)]
    elif any(mark in text for mark in "'\"\\"):
        try:
            words = shlex.split(text)
        except ValueError:  # a quote without its end
            words = []
        spellings += words if len(words) == 1 else []
    for spelling in spellings:
        try:
            path = Path(spelling).expanduser()
            if "\n" not in spelling and path.is_absolute() and path.is_file() and kind_of(path) is not None:
                return path
        except (OSError, ValueError, RuntimeError):  # too long, a NUL, a home that is nobody's
            continue
    return None
