"""A section of the report, and the problems that were found."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Problem:
    """Something that is wrong, and what to do about it. A `failure` is of Olivine itself or of what it was
    told, and makes the exit status 1; the rest could be better."""

    what: str
    remedy: str
    failure: bool = False


@dataclass
class Section:
    """Facts by name, and the lines that tell them: labels and values."""

    name: str
    facts: dict[str, Any] = field(default_factory=dict)
    lines: list[tuple[str, str]] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    def tell(self, label: str, value: str) -> None:
        self.lines.append((label, value))


def size(n: float) -> str:
    """Bytes for people, in powers of 1000."""
    for unit in ("B", "kB", "MB"):
        if n < 1000:
            return f"{n:.0f} {unit}" if unit == "B" else f"{n:.1f} {unit}"
        n /= 1000
    return f"{n:.1f} GB"


# A path of two names or more. Fractions, dates and addresses of the web stay.
_PATH = re.compile(r"(?<![\w:/.~])(?:~|[A-Za-z]:)?(?:[/\\][\w.@+ -]*[\w.@+-]){2,}")


def without_home(text: str) -> str:
    """The text with ~ for the home folder."""
    home = os.path.expanduser("~").rstrip("/")
    return re.sub(rf"{re.escape(home)}(?![\w@+-])", "~", text) if len(home) > 1 else text


def without_paths(text: str) -> str:
    """The text with only the last name of each path: paths have the names of people and projects."""
    return _PATH.sub(lambda found: "…/" + re.split(r"[/\\]", found[0])[-1], without_home(text))
