"""What people say and what is answered, a line each in phrases.txt; "3 x" makes one as likely as three."""

from __future__ import annotations

import re
from pathlib import Path


def sections(name: str) -> dict[str, list[str]]:
    """The lines of a file beside this one, by the headings they stand under."""
    found: dict[str, list[str]] = {}
    for line in Path(__file__).with_name(name).read_text().splitlines():
        if line.startswith("== "):
            current = found.setdefault(line[3:], [])
        elif line:
            current.append(line)
    return found


def _times(line: str) -> list[str]:
    count, phrase = re.fullmatch(r"(?:(\d+) x ?)?(.*)", line).groups()  # type: ignore[union-attr]
    return [phrase.replace("\\n", "\n")] * int(count or 1)


PHRASES = {
    name: [text for line in lines for text in _times(line)] for name, lines in sections("phrases.txt").items()
}
