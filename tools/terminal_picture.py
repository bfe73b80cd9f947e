"""A moving picture of the terminal for README.md: a session of `olivine run` and `olivine chat`, as an SVG.

    python tools/terminal_picture.py            writes docs/images/terminal.svg

A pseudo-terminal runs the commands on olivine-mini, with typing as a person types; pyte interprets what they
write. Times are the session's own, but pauses are at most a second. Needs pexpect and pyte (pip).
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import pexpect
import pyte
from filmstrip import Frame, Line, Span, filmstrip

ROOT = Path(__file__).resolve().parents[1]
COLUMNS, ROWS = 92, 22
TYPING = 0.045  # seconds a key
SESSION = [
    ("$ ", 'olivine run "Tell me a story about a fox and a boat" --seed 5 -n 90', "$ "),
    ("$ ", "olivine chat --seed 2", ">>> "),
    (">>> ", "Tell me a story about a robot", ">>> "),
    (">>> ", "/quit", "$ "),
]


@dataclass
class Recorder:
    """What a terminal showed, and when."""

    process: pexpect.spawn
    screen: pyte.Screen
    stream: pyte.Stream
    frames: list[Frame]
    clock: float = 0.0

    def watch(self, seconds: float, until: str | None = None) -> None:
        """Reads for so long, or until the line of the cursor is this prompt."""
        end = time.monotonic() + seconds
        quiet = 0.0
        while time.monotonic() < end:
            before = time.monotonic()
            try:
                self.stream.feed(self.process.read_nonblocking(4096, timeout=0.1))
                quiet = 0.0
            except pexpect.TIMEOUT:
                quiet += 0.1
            self.clock += min(time.monotonic() - before, 1.0)
            self.take()
            line = self.screen.display[self.screen.cursor.y]
            if until is not None and quiet >= 0.4 and line.startswith(until):
                return
        if until is not None:
            raise SystemExit(f"the session did not come to {until!r}:\n" + "\n".join(self.screen.display))

    def take(self) -> None:
        lines = tuple(_line(self.screen.buffer[row]) for row in range(ROWS))
        if not self.frames or self.frames[-1].lines != lines:
            self.frames.append(Frame(self.clock, lines))

    def type(self, text: str) -> None:
        for key in text:
            self.process.send(key)
            self.watch(TYPING)
        self.process.send("\r")


def _line(cells: object) -> Line:
    """Runs of characters of one color."""
    spans: list[Span] = []
    for column in range(COLUMNS):
        cell = cells[column]  # type: ignore[index]
        style = (_color(cell.fg), bool(cell.bold))
        if spans and spans[-1].style == style:
            spans[-1] = Span(spans[-1].text + cell.data, style, spans[-1].column)
        else:
            spans.append(Span(cell.data, style, column))
    return tuple(Span(span.text.rstrip(), span.style, span.column) for span in spans if span.text.strip())


def _color(name: str) -> str:
    """A color of the terminal, as far as the session has any."""
    known = {"default": "#d7dccf", "brightblack": "#8b9482", "blue": "#7fb0e0", "cyan": "#86c5bf"}
    known |= {"green": "#9cc45f", "red": "#e08a7f", "brown": "#d9b06a", "magenta": "#c79ad0"}
    return known.get(name, f"#{name}" if len(name) == 6 else known["default"])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    here = Path(sys.executable).parent
    parser.add_argument("--bin", type=Path, default=here, help="the folder that has `olivine`")
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "docs" / "images" / "terminal.svg")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        environment = {
            **os.environ,
            "PATH": f"{given.bin}:{os.environ['PATH']}",
            "PS1": "$ ",
            "TERM": "xterm-256color",
            "OLIVINE_STATE": folder,
            "PROMPT_TOOLKIT_NO_CPR": "1",
        }
        process = pexpect.spawn(
            "bash",
            ["--norc", "--noprofile"],
            env=environment,  # type: ignore[arg-type]
            dimensions=(ROWS, COLUMNS),
            encoding="utf-8",
            codec_errors="replace",
        )
        screen = pyte.Screen(COLUMNS, ROWS)
        recorder = Recorder(process, screen, pyte.Stream(screen), [])
        recorder.watch(20, SESSION[0][0])
        recorder.frames = recorder.frames[-1:]
        recorder.clock = 0.0
        for _, text, prompt in SESSION:
            recorder.type(text)
            recorder.watch(90, prompt)
        process.close(force=True)
    given.output.write_text(filmstrip(recorder.frames, COLUMNS, ROWS, "olivine"), encoding="utf-8")
    seconds, size = recorder.frames[-1].time, given.output.stat().st_size
    print(f"{given.output}: {len(recorder.frames)} frames, {seconds:.0f} s, {size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
