"""README.md, its neighbors and the pages of docs/, taken apart: fenced blocks, the commands in them, links.

What a block is for is its language: `console` is a transcript, `sh` has commands without their output,
`python` code; `text` and the other data languages are shown and never run. A comment in the line before a
block says why it is not run (`<!-- not run: needs a GPU -->`), or only by `make test-all`
(`<!-- slow: … -->`); it is parsed all the same.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md"), ROOT / "tools" / "mini" / "README.md"])
DATA = {"text", "json", "toml", "yaml", "html", "cpp", "dockerfile", "ini"}  # of blocks that are only shown
FENCE = re.compile(r"^(?P<indent> *)(?P<ticks>`{3,})(?P<language>[\w+-]*)(?P<title>[^\n`]*)$")
MARK = re.compile(r"^ *<!-- (not run|slow): (.+?) -->$")
INLINE = re.compile(r"(?<!`)`([^`]+)`(?!`)")


class Transcript(NamedTuple):
    """A command and what it printed."""

    command: str
    output: str


@dataclass(frozen=True)
class Block:
    page: Path
    line: int  # of the fence, from 1
    language: str
    text: str
    mark: str | None  # "not run" or "slow"

    @property
    def where(self) -> str:
        return f"{name_of(self.page)}:{self.line}"

    def transcripts(self) -> list[Transcript]:
        """The commands of a console or sh block."""
        if self.language == "console":
            parts = re.split(r"^\$ ", self.text, flags=re.MULTILINE)[1:]
            return [_first_command(part) for part in parts]
        found, rest = [], self.text
        while rest := rest.lstrip("\n"):
            command, rest = _first_command(rest)
            if not command.startswith("#"):
                found.append(Transcript(command, ""))
        return found


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def _first_command(text: str) -> Transcript:
    lines = text.splitlines()
    size = next((i for i in range(1, len(lines) + 1) if _complete("\n".join(lines[:i]))), len(lines))
    return Transcript("\n".join(lines[:size]), "\n".join(lines[size:]).strip("\n"))


def _complete(command: str) -> bool:
    """Whether a shell would not wait for another line."""
    try:
        shlex.split(command, comments=True)
    except ValueError:
        return False
    return not command.endswith("\\")


@cache
def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page, in order."""
    found: list[Block] = []
    lines = page.read_text(encoding="utf-8").splitlines()
    number = 0
    while number < len(lines):
        fence = FENCE.match(lines[number])
        if fence is None:
            number += 1
            continue
        end = number + 1
        while lines[end].strip() != fence["ticks"]:
            end += 1
        indent = len(fence["indent"])
        text = "".join(f"{line[indent:]}\n" for line in lines[number + 1 : end])
        before = MARK.match(lines[number - 1]) if number else None
        found.append(Block(page, number + 1, fence["language"], text, before and before[1]))
        number = end + 1
    return found


def prose(page: Path) -> str:
    """A page without its fenced blocks."""
    kept, inside = [], ""
    for line in page.read_text(encoding="utf-8").splitlines():
        fence = FENCE.match(line)
        if inside:
            inside = "" if line.strip() == inside else inside
        elif fence:
            inside = fence["ticks"]
        else:
            kept.append(line)
    return "\n".join(kept)


def inline_commands(page: Path) -> list[str]:
    """Commands of ours that a sentence names: `olivine …` in backticks."""
    spans = INLINE.findall(prose(page))
    return [" ".join(span.split()) for span in spans if re.match(r"olivine +[a-z]", span)]


def anchors(page: Path) -> set[str]:
    """What links to headings of a page may name, as GitHub makes it of them."""
    found: dict[str, int] = {}
    for line in prose(page).splitlines():
        if heading := re.match(r"#{1,6} +(.+?)\s*$", line):
            text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading[1])
            slug = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
            found[slug] = found.get(slug, 0) + 1
    return {slug if n == 0 else f"{slug}-{n}" for slug, count in found.items() for n in range(count)}


def links(page: Path) -> list[str]:
    """Where a page points to, pictures included."""
    text = re.sub(r"`[^`]*`", "", prose(page))
    return re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r'(?:src|href)="([^"]+)"', text)
