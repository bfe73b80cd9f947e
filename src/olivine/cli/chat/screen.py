"""The part of the output that can still change: only differences are written.

A terminal that is made narrower breaks its rows anew, and may do so a quarter of a second before it tells its
size: whoever moves the cursor up by rows in between overwrites the wrong ones. So the cursor stays at the end
of the last line, where text that grows is continued, and what was shown in another width is left as it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import takewhile

from rich.cells import cell_len

_STYLE = re.compile(r"\x1b\[[0-9;]*m")
_PART = re.compile(rf"({_STYLE.pattern})|.", re.DOTALL)
_PADDING = re.compile(rf" +((?:{_STYLE.pattern})*)$")
_RESET = "\x1b[0m"
_BLANK = re.compile(r"[\s\u2500-\u257f]+")  # also lines of tables, whose length depends on the width


class Screen:
    """Lines; the cursor stands at the end of the last one."""

    def __init__(self, write: Callable[[str], object], size: Callable[[], tuple[int, int]]) -> None:
        """`size` gives columns and rows, now."""
        self._write = write
        self._size = size
        self._begin()

    def _begin(self) -> None:
        self._lines: list[str] = []  # those that can change
        self._columns = 0  # of the screen on which they were drawn
        self._growing = False
        self._begun = False  # whether the cursor stands behind something
        self._shown = ""  # ink of the next lines that was shown in another width

    def draw(self, lines: Sequence[str], finished: int = 0, *, growing: bool = True) -> None:
        """Shows these lines in place of those that were shown; the first `finished` of them for good.

        Lines that are `growing` only get longer and more. What has left the screen at its top cannot be
        changed any more, and stays as it was.
        """
        columns, rows = self._size()
        if columns != self._columns and self._growing and self._lines:
            self._leave(columns)
        whole = [_unpadded(line) for line in lines]
        known = _common(self._shown, _ink(whole))
        rest, dropped = _without(whole, known)
        if text := self._changes(rest, columns, rows):
            self._write(text)
        self._columns, self._growing = columns, growing
        if finished:
            self._shown = self._shown[len(_ink(whole[:finished])) :] if known == len(self._shown) else ""
        self._lines = rest[max(0, finished - dropped) :]

    def finish(self) -> None:
        """Keeps what is shown, and moves the cursor below it."""
        if self._begun:
            self._write("\n")
        self._begin()

    def abandon(self) -> None:
        """Keeps what is shown; the cursor is elsewhere, at the beginning of a row."""
        self._begin()

    def _leave(self, columns: int) -> None:
        """Keeps what is shown, but for the last word, which may be incomplete: it moves to a new row."""
        last = self._lines[-1]
        cells = _cells(last)
        while cells and cells[-1][1] != " ":
            cells.pop()
        shorter = _unpadded(_styled(cells))
        if text := _continued(last, shorter, columns):
            self._write(text)
            self._lines[-1] = shorter
            self._begun = bool(shorter)
        self._shown += _ink(self._lines)
        self._lines = []

    def _changes(self, lines: list[str], columns: int, rows: int) -> str:
        old = self._lines
        same = _common(old, lines)
        text = ""
        if same < len(old):
            if same == len(old) - 1 and same < len(lines):
                text = _continued(old[same], lines[same], columns)
                same += 1 if text else 0
            if not text:  # the last line that stays is drawn again if nothing follows: the cursor ends there
                text, same = self._erased(min(same, max(0, len(lines) - 1)), columns, rows)
                self._begun = False
        for line in lines[same:]:
            text += f"\n{line}" if self._begun else line
            self._begun = True
        return text

    def _erased(self, first: int, columns: int, rows: int) -> tuple[str, int]:
        """Erases the lines from the first one on, as far as they are on the screen; and the first erased."""
        up = 0
        at = len(self._lines)
        while at > first:
            height = _height(self._lines[at - 1], columns)
            if up + height > rows:
                break
            up, at = up + height, at - 1
        if up == 0:
            return "\n", at
        # Row by row: some terminals take erasing from their first row on for a page that shall be kept.
        return "\r\x1b[2K" + "\x1b[1A\x1b[2K" * (up - 1), at


def _continued(old: str, new: str, columns: int) -> str:
    """Output that turns the old line, with the cursor at its end, into the new one; "" for several rows."""
    before, after = _cells(old), _cells(new)
    common = _common(before, after)
    back = sum(cell_len(character) for _, character in before[common:])
    width = cell_len(_plain(old))
    column = (width - 1) % columns + 1 if width else 0
    if back > column:
        return ""
    # A cursor behind the last column stands on it.
    left = back - 1 if column == columns else back
    erase = (f"\x1b[{left}D" if left else "") + "\x1b[K" if back else ""
    return erase + _styled(after[common:])


def _common(one: Sequence[object], other: Sequence[object]) -> int:
    """The length of the common prefix."""
    return len(list(takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))))


def _cells(line: str) -> list[tuple[str, str]]:
    """The characters of a line, each with its style."""
    cells, style = [], ""
    for part in _PART.finditer(line):
        if part[1] is None:
            cells.append((style, part[0]))
        else:
            style = "" if part[0] == _RESET else style + part[0]
    return cells


def _styled(cells: Sequence[tuple[str, str]]) -> str:
    text, style = "", ""
    for wanted, character in cells:
        if wanted != style:
            text += (_RESET if style else "") + wanted
            style = wanted
        text += character
    return text + (_RESET if style else "")


def _plain(line: str) -> str:
    return _STYLE.sub("", line)


def _unpadded(line: str) -> str:
    """Without spaces at the end, which would wrap in a narrower window."""
    while (shorter := _PADDING.sub(r"\1", line)) != line:
        line = shorter
    return line


def _ink(lines: Sequence[str]) -> str:
    """The visible characters of lines: the same in every width, where the text is the same."""
    return _BLANK.sub("", _plain("".join(lines)))


def _without(lines: list[str], count: int) -> tuple[list[str], int]:
    """The lines without so many visible characters at the beginning, and how many lines were removed."""
    for at, line in enumerate(lines):
        if count == 0:
            return lines[at:], at
        if (ink := len(_ink([line]))) > count:
            cells = _cells(line)
            while count or not _ink(cells[0][1]):
                count -= len(_ink(cells.pop(0)[1]))
            return [_styled(cells), *lines[at + 1 :]], at
        count -= ink
    return [], len(lines)


def _height(line: str, columns: int) -> int:
    """Rows that a line takes: several where the window has become narrower since."""
    rows, column = 1, 0
    for character in _plain(line):
        width = cell_len(character)
        if column + width > columns and column:
            rows, column = rows + 1, 0
        column += width
    return rows
