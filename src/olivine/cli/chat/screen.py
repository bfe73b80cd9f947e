"""The end of the output that can still change: lines that are drawn again only where they differ."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from rich.cells import cell_len

_STYLE = re.compile(r"\x1b\[[0-9;]*m")


class Screen:
    """Lines above the cursor, which stands at the beginning of the row below them."""

    def __init__(self, write: Callable[[str], object], size: Callable[[], tuple[int, int]]) -> None:
        """`size` gives columns and rows, now."""
        self._write = write
        self._size = size
        self._lines: list[str] = []

    def draw(self, lines: Sequence[str], finished: int = 0) -> None:
        """Shows these lines in place of those that were shown; the first `finished` of them for good.

        What has left the screen at its top cannot be changed any more, and stays as it was.
        """
        same = 0
        while same < min(len(lines), len(self._lines)) and lines[same] == self._lines[same]:
            same += 1
        columns, rows = self._size()
        up, first = 0, len(self._lines)
        while first > same:
            height = self._height(self._lines[first - 1], columns)
            if up + height >= rows:
                break
            up, first = up + height, first - 1
        # Row by row: some terminals take erasing from their first row on for a page that shall be kept.
        text = (f"\x1b[{up}A\r" if up else "") + "".join(f"\x1b[2K{line}\n" for line in lines[first:])
        left = up - sum(self._height(line, columns) for line in lines[first:])
        if left > 0:
            text += "\x1b[2K\n" * left + f"\x1b[{left}A"
        if text:
            self._write(text)
        self._lines = list(lines[finished:])

    def finish(self) -> None:
        """What is shown stays."""
        self._lines = []

    @staticmethod
    def _height(line: str, columns: int) -> int:
        """Rows that a line takes: several where the window has become narrower since."""
        return max(1, -(-cell_len(_STYLE.sub("", line)) // max(1, columns)))
