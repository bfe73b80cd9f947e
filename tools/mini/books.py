"""Real books for children, cut into passages: a little of how people write, beside what a model wrote."""

from __future__ import annotations

import csv
import io
import re
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

from tales import clean, is_good

# In the public domain, and told simply enough.
CLASSICS = [
    "Aesop/Aesop's Fables.md",
    "Beatrix Potter/Great Big Treasury of Beatrix Potter.md",
    "Carlo Collodi/The Adventures of Pinocchio.md",
    "Edith Nesbit/The Book of Dragons.md",
    "Hans Christian Andersen/Andersen's Fairy Tales.md",
    "Hugh Lofting/The Story of Doctor Dolittle.md",
    "J. M. Barrie/Peter Pan.md",
    "Johanna Spyri/Heidi.md",
    "L. Frank Baum/Ozma of Oz.md",
    "L. Frank Baum/The Wonderful Wizard of Oz.md",
    "Lewis Carroll/Alice's Adventures in Wonderland.md",
    "Oscar Wilde/The Happy Prince & Other Tales.md",
    "Rudyard Kipling/The Jungle Book.md",
    "The Brothers Grimm/Grimms' Fairy Tales.md",
]
_PLAIN = str.maketrans(
    {"“": '"', "”": '"', "‘": "'", "’": "'", "—": " - ", "–": "-", "…": "...", "_": "", "*": ""}
)


def files(repository: Path, *paths: str) -> Iterator[tuple[str, str]]:
    """(path, text) of the newest commit's files under these paths, from a git directory."""
    command = ["git", f"--git-dir={repository}", "archive", "--format=tar", "HEAD", *paths]
    with tarfile.open(
        fileobj=io.BytesIO(subprocess.run(command, capture_output=True, check=True).stdout)
    ) as archive:
        for member in archive:
            if member.isfile():
                yield member.name, archive.extractfile(member).read().decode("utf-8", "replace")  # type: ignore[union-attr]


def plain(text: str) -> str:
    return text.translate(_PLAIN)


def passages(text: str) -> list[str]:
    """Neighboring paragraphs up to some 180 words, without those of lists, verses or foreign letters."""
    found, current = [], ""
    for paragraph in re.split(r"\n\s*\n", plain(text)):
        paragraph = " ".join(paragraph.split())
        if paragraph.startswith(("#", "-", ">", "|", "!", "[")) or not paragraph:
            found, current = [*found, current], ""
        elif len(f"{current} {paragraph}".split()) > 180:
            found, current = [*found, current], paragraph
        else:
            current = f"{current}\n\n{paragraph}".strip()
    return [text for text in (clean(passage) for passage in [*found, current]) if text and is_good(text)]


def classics(repository: Path) -> list[str]:
    return [passage for _, text in files(repository, *CLASSICS) for passage in passages(text)]


def fairy_tales(repository: Path) -> list[str]:
    """FairytaleQA: old tales, already cut into sections."""
    found = []
    for path, text in files(repository, "data-by-train-split/section-stories/train"):
        if path.endswith(".csv"):
            found += [p for row in csv.DictReader(io.StringIO(text)) for p in passages(row.get("text") or "")]
    return found


def storybooks(repository: Path) -> tuple[list[str], list[str]]:
    """Whole stories from picture books under CC BY, and whom they are by."""
    stories, credits = [], []
    for path, text in files(repository, "en"):
        fields = dict(re.findall(r"^\* (\w+): (.*)$", text, re.MULTILINE))
        title = re.match(r"# (.*)", text)
        if fields.get("License") != "[CC-BY]" or title is None or path.endswith("README.md"):
            continue
        pages = re.split(r"^##.*$", text.split("* License")[0], flags=re.MULTILINE)[1:]
        story = clean("\n".join(" ".join(page.split()) for page in pages if page.strip()).translate(_PLAIN))
        if story and is_good(story):
            stories.append(story)
            credits.append(f"{plain(title.group(1).strip())}, by {fields.get('Text', 'an unnamed author')}")
    return stories, credits
