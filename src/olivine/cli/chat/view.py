"""How answers are shown: as Markdown that grows in a terminal, or as plain text."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TextIO

from olivine.cli.text import Status, clean, reading

if TYPE_CHECKING:
    from rich.console import Console

    from olivine.reply import Delta

WINDOW = 6  # lines of a thought that are shown while it lasts
READING = "reading the prompt …"
PAUSE = 0.03  # seconds between two drawings
HIDE_CURSOR, SHOW_CURSOR = "\x1b[?25l", "\x1b[?25h"
SHARE = 8  # drawing takes at most one part in so many of the time


class View(Protocol):
    """Shows answers, and notes beside them."""

    open_thoughts: bool
    thought: str  # of the last answer
    literal: bool  # answers are shown as they are written, not as Markdown

    def begin(self) -> None:
        """A question was asked; the first delta may take a while."""

    def feed(self, delta: Delta) -> None:
        """Shows a delta of the answer."""

    def end(self) -> None:
        """The answer is over, or was stopped."""

    def redraw(self) -> None:
        """Another program used the terminal meanwhile: the unfinished part is drawn again, below."""

    def note(self, text: str, *, style: str = "") -> None:
        """A line that does not come from the model."""

    def summary(self, text: str) -> None:
        """Tokens, times and speed of an answer."""


class PlainView:
    """The answers as they are and nothing else: for pipes, files and simple terminals. The rest goes to
    standard error."""

    open_thoughts = False
    thought = ""
    literal = True

    def __init__(self, out: TextIO | None = None, *, quiet: bool = False) -> None:
        self._out = out or sys.stdout
        self._talk = sys.stderr.isatty() and not quiet
        self._safe = self._out.isatty()  # what goes into a file is what the model said
        self._said = False
        self._status = Status(quiet=quiet)

    def begin(self) -> None:
        self._status.show(READING)

    def feed(self, delta: Delta) -> None:
        if delta.prefilled < delta.prompt:
            self._status.show(reading(delta.prefilled, delta.prompt))
        else:
            self._status.clear()
        if text := clean(delta.content) if self._safe else delta.content:
            self._out.write(text)
            self._out.flush()
            self._said = True

    def end(self) -> None:
        self._status.clear()
        if self._said:
            self._out.write("\n")
            self._out.flush()
        self._said = False

    def redraw(self) -> None:
        pass

    def note(self, text: str, *, style: str = "") -> None:
        print(clean(text), file=sys.stderr, flush=True)

    def summary(self, text: str) -> None:
        if self._talk:
            self.note(text)


class TerminalView:
    """Answers as Markdown, thoughts dim. A thought is a window of its last lines, and one line once it is
    over; left open, it is shown whole."""

    def __init__(
        self,
        out: TextIO | None = None,
        *,
        open_thoughts: bool = False,
        hide_thoughts: bool = False,
        quiet: bool = False,
        clock: Callable[[], float] = time.perf_counter,
        console: Console | None = None,
    ) -> None:
        from rich.console import Console  # imported for its use: it takes a tenth of a second

        from olivine.cli.chat.screen import Screen

        self._out = out or sys.stdout
        # The terminal's size counts, not what a shell exported when it was another.
        environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
        self._console = console or Console(file=self._out, highlight=False, _environ=environment)
        self._screen = Screen(self._write, lambda: self._console.size)
        self._clock = clock
        self.open_thoughts = open_thoughts
        self.literal = False
        self._hide_thoughts = hide_thoughts
        self._quiet = quiet
        self._next = 0.0
        self._drawing = False
        self._begin()

    def _begin(self) -> None:
        self.thought = ""
        self._thinking = 0  # tokens
        self._answering = False  # the thought is over
        self._text = ""  # of the answer, what is not finished
        self._above = False  # whether something stands above that
        self._reading = ""  # how far the prompt has been read

    def begin(self) -> None:
        self._start()
        self._reading = READING
        self._draw()

    def _start(self) -> None:
        self._begin()
        self._drawing = True
        self._write(HIDE_CURSOR)  # it would jump about

    def feed(self, delta: Delta) -> None:
        if not self._drawing:
            self._start()
        if not delta.tokens:
            self._reading = reading(delta.prefilled, delta.prompt)
        self._thinking += delta.reasoning_tokens
        self.thought += clean(delta.reasoning)
        self._text += clean(delta.content)
        now = self._clock()
        if now >= self._next:
            self._draw()
            took = self._clock() - now
            self._next = now + max(PAUSE, SHARE * took)

    def end(self) -> None:
        if self._drawing:
            self._draw(last=True)
            self._write(SHOW_CURSOR)
        self._drawing = False
        self._screen.finish()
        self._next = 0.0

    def redraw(self) -> None:
        if self._drawing:
            self._write(HIDE_CURSOR)
            self._screen.abandon()
            self._draw()

    def note(self, text: str, *, style: str = "") -> None:
        from olivine.cli.chat import markdown

        self._write("".join(f"{line}\n" for line in markdown.plain(clean(text), style, self._console)))

    def summary(self, text: str) -> None:
        if not self._quiet:
            self.note(text, style="dim")
            self._write("\n")

    def _draw(self, last: bool = False) -> None:
        from olivine.cli.chat import markdown

        lines: list[str] = []
        begun = bool(self._text.strip())
        if not self._answering and self.thought:
            lines += self._thought_lines(over=last or begun)
        if not self._answering and not begun:
            if not lines and not last:
                lines = markdown.plain(self._reading, "dim", self._console)
            whole = self.open_thoughts and not self._hide_thoughts  # and no window of the last lines
            self._screen.draw(lines, growing=whole and bool(self.thought))
            return
        if not self._answering:
            self._answering, self._above = True, bool(lines)
            self._text = self._text.lstrip("\n")
        size = len(self._text) if last else self._finished()
        done, self._text = self._text[:size], self._text[size:]
        if done.strip() or (done and self.literal):
            lines += [*self._gap(), *self._render(done)]
            self._above = not self.literal  # lines follow each other, blocks have a gap between them
        kept = len(lines)
        if self._text.strip():
            lines += [*self._gap(), *self._render(self._text)]
        self._screen.draw(lines, finished=kept)

    def _render(self, text: str) -> list[str]:
        from olivine.cli.chat import markdown

        if self.literal:
            lines = text.removesuffix("\n").split("\n")
            return [row for line in lines for row in markdown.plain(line, "", self._console) or [""]]
        return markdown.render(text, self._console)

    def _finished(self) -> int:
        """How much of the text cannot change any more: whole lines, or blocks of Markdown."""
        from olivine.cli.chat import markdown

        return self._text.rfind("\n") + 1 if self.literal else markdown.finished(self._text)

    def _gap(self) -> list[str]:
        return [""] if self._above else []

    def _thought_lines(self, over: bool) -> list[str]:
        from olivine.cli.chat import markdown

        count = f"{self._thinking:,} tokens"
        thought = self.thought.strip("\n")
        if self.open_thoughts and not self._hide_thoughts:
            return markdown.plain(thought, "dim italic", self._console)
        if over:
            how = "" if self._hide_thoughts else " · Ctrl-O opens it"
            return markdown.plain(f"▸ thought, {count}{how}", "dim", self._console)
        title = markdown.plain(f"▾ thinking, {count}", "dim", self._console)
        if self._hide_thoughts:
            return title
        return [*title, *markdown.plain(thought, "dim italic", self._console)[-WINDOW:]]

    def _write(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()
