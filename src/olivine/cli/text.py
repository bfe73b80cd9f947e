"""Output helpers that several commands share."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

import click


def size(n: float) -> str:
    """Bytes for people, in powers of 1000 as disks and downloads count them."""
    if n < 1000:
        return f"{n:.0f} B"
    for unit in ("kB", "MB", "GB"):
        n /= 1000
        if n < 1000 or unit == "GB":
            break
    return f"{n:.1f} {unit}"


def count(n: int) -> str:
    for divisor, unit in ((10**9, "B"), (10**6, "M"), (10**3, "K")):
        if n >= divisor:
            return f"{n / divisor:.1f} {unit}"
    return str(n)


def program() -> str:
    """What to type for Olivine: `olivine` where the shell finds this one, else as it was called."""
    called = Path(sys.argv[0])
    if called.parts[-2:] == ("olivine", "__main__.py"):
        return f"{_typed(sys.executable)} -m olivine"
    return _typed(sys.argv[0]) if called.stem == "olivine" else "olivine"


def _typed(path: str) -> str:
    """A program's name where the shell finds it by that, else its path."""
    name = Path(path).name
    found = shutil.which(name)
    with contextlib.suppress(OSError):
        if found is not None and os.path.samefile(found, path):
            return name
    return shlex.quote(path)


def echo_facts(lines: Iterable[tuple[str, str]]) -> None:
    """Labels in a column, and values behind them, which are not truncated."""
    click.echo(facts_table(lines, lambda label: click.style(label, bold=True)))


def facts_table(lines: Iterable[tuple[str, str]], style: Callable[[str], str] = str) -> str:
    """Values may have several lines, each of which is `escaped`."""
    indent = "\n" + " " * 14
    rows = (style(f"{label:<14}") + indent.join(map(escaped, value.split("\n"))) for label, value in lines)
    return "\n".join(rows)


def echo_table(header: Sequence[str], rows: Sequence[Sequence[str]], right: frozenset[int]) -> None:
    """A table with columns as wide as their widest entry; the columns in `right` are flush right."""
    rows = [[*map(escaped, row)] for row in rows]
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]

    def line(row: Sequence[str]) -> str:
        cells = [
            c.rjust(w) if i in right else c.ljust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))
        ]
        return "  ".join(cells).rstrip()

    click.echo(click.style(line(header), bold=True))
    for row in rows:
        click.echo(line(row))


def draws(out: TextIO) -> bool:
    """Whether that is a terminal on which lines can be drawn again."""
    return out.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def colors() -> bool | None:
    """What click is told of colors and bold: none on a simple terminal and none for users who want none; of
    other outputs it knows itself."""
    return False if os.environ.get("TERM", "dumb") == "dumb" or os.environ.get("NO_COLOR") else None


def echo_warnings(warnings: Iterable[str]) -> None:
    for warning in warnings:
        click.echo(f"warning: {escaped(warning)}", err=True)


def echo_hints(hints: Iterable[str]) -> None:
    """Prints hints in a terminal, not into pipes."""
    if sys.stderr.isatty():
        echo_warnings(hints)


def reading(done: int, prompt: int) -> str:
    """How far a prompt has been read."""
    return f"reading the prompt: {done:,}/{prompt:,} tokens"


class Status:
    """A status line on standard error, redrawn in place if the terminal can."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._there = False
        self.is_drawn = draws(sys.stderr) and not quiet

    def show(self, text: str) -> None:
        """Replaces the line; truncated, because a line that wraps could not be redrawn."""
        if self.is_drawn:
            line = escaped(text)[: shutil.get_terminal_size().columns - 1]
            click.echo(f"\r\x1b[K{line}", nl=False, err=True, color=True)
            self._there = True

    def show_compiling(self, done: int, of: int) -> None:
        """How many of the GPU's kernels are compiled; `of` is 0 until their number is known."""
        self.show(f"compiling kernels: {done} of {of}" if of else "compiling kernels")

    def clear(self) -> None:
        """Erases the line, if there is one."""
        if self._there:
            click.echo("\r\x1b[K", nl=False, err=True, color=True)  # no color, but click takes it for one
            self._there = False

    def __enter__(self) -> Status:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.clear()


# All control characters but tabs and line feeds, and those that change the direction of text.
_CONTROL = {
    code: None
    for code in (*range(32), *range(127, 160), 0x2028, 0x2029, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
    if chr(code) not in "\t\n"
}


def clean(text: str) -> str:
    """Untrusted text for a terminal: without escape sequences and control characters."""
    return text.translate(_CONTROL)


def escaped(text: str) -> str:
    """A name or a value from a file on one line: what is not printable is spelled as Python spells it."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def json_text(value: Any, **options: Any) -> str:
    """JSON for people and programs: readable, with escapes for whatever a terminal might obey."""
    text = json.dumps(value, ensure_ascii=False, **options)
    return "".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text)
