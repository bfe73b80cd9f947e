"""Terminals: one as far as Olivine uses it, which knows few sequences and refuses all others; and a real
pseudo-terminal with a process in it."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pexpect
from rich.cells import cell_len

_SEQUENCE = re.compile(r"\x1b\[(\?25[hl]|[0-9;]*m|\d+[AD]|2?K)")


def spawn(
    *arguments: Any, state: Path, program: Sequence[str] = ("-m", "olivine"), **environment: str
) -> pexpect.spawn:
    """Olivine in a pseudo-terminal; `state` is the folder of its history."""
    return pexpect.spawn(
        sys.executable,
        [*program, *map(str, arguments)],
        env={
            **os.environ,
            "TERM": "xterm-256color",
            "OMP_NUM_THREADS": "1",
            "OLIVINE_STATE": str(state),
            "PROMPT_TOOLKIT_NO_CPR": "1",  # nobody here answers where the cursor is
            **environment,
        },
        dimensions=(40, 100),
        encoding="utf-8",
        codec_errors="replace",
        timeout=240,
    )


class Terminal:
    """Rows of cells that scroll. `text` is everything that was ever on it."""

    def __init__(self, columns: int, rows: int) -> None:
        self.columns, self.height = columns, rows
        self._rows: list[list[str]] = [[]]
        self._wrapped: set[int] = set()  # rows that go on in the next one
        self._row = self._column = 0

    def write(self, text: str) -> None:
        at = 0
        while at < len(text):
            if found := _SEQUENCE.match(text, at):
                self._obey(found[1])
                at = found.end()
                continue
            self._put(text[at])
            at += 1

    def flush(self) -> None:
        pass

    def isatty(self) -> bool:
        return True

    def resize(self, columns: int) -> None:
        """Breaks the rows anew, as most terminals do; the cursor stays where it is in its line."""
        old, wrapped, place = self._rows, self._wrapped, (self._row, self._column)
        self.columns, self._rows, self._wrapped = columns, [[]], set()
        self._row = self._column = 0
        cursor = (0, 0)
        for i, row in enumerate(old):
            for j, cell in enumerate([*row, None]):
                if (i, j) == place:
                    cursor = (self._row, self._column)
                for character in cell or "":
                    self._put(character)
            if i < len(old) - 1 and i not in wrapped:
                self._put("\n")
        self._row, self._column = cursor

    @property
    def text(self) -> list[str]:
        """The rows, without the empty ones at the end."""
        rows = ["".join(row).rstrip() for row in self._rows]
        while rows and not rows[-1]:
            rows.pop()
        return rows

    def _put(self, character: str) -> None:
        if character == "\n":
            self._wrapped.discard(self._row)
            self._row, self._column = self._row + 1, 0
        elif character == "\r":
            self._column = 0
        else:
            assert character.isprintable(), f"{character!r} reached the terminal"
            width = cell_len(character)
            if self._column + width > self.columns:
                self._wrapped.add(self._row)
                self._row, self._column = self._row + 1, 0
            self._extend()
            row = self._rows[self._row]
            row += [" "] * (self._column + width - len(row))
            if width:
                row[self._column : self._column + width] = [character, *[""] * (width - 1)]
            else:
                row[self._column - 1] += character
            self._column += width
        self._extend()

    def _extend(self) -> None:
        while len(self._rows) <= self._row:
            self._rows.append([])

    def _obey(self, sequence: str) -> None:
        if sequence.endswith("A"):
            top = max(0, len(self._rows) - self.height)
            self._row = max(top, self._row - int(sequence[:-1]))
        elif sequence.endswith("D"):  # a cursor behind the last column stands on it
            self._column = max(0, min(self._column, self.columns - 1) - int(sequence[:-1]))
        elif sequence == "2K":
            self._rows[self._row].clear()
            self._wrapped.discard(self._row)
        elif sequence == "K":
            del self._rows[self._row][min(self._column, self.columns - 1) :]
            self._wrapped.discard(self._row)
