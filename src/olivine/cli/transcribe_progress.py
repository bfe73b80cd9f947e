"""The progress bar of `olivine transcribe`, and text above it."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TYPE_CHECKING, Any

import click

from olivine.cli.text import clean, draws
from olivine.subtitles import timecode

if TYPE_CHECKING:
    from rich.progress import Task

    from olivine.transcript import TranscriptDelta

_WORDS = 40  # characters of the text that is coming, in the bar


class Progress:
    """A bar with the seconds that are through, on standard error; if the text goes to the same terminal, both
    are drawn together, and the text stands above the bar."""

    def __init__(self, name: str, *, shown: bool) -> None:
        self.lines = draws(sys.stdout)
        self._bar: Any = None
        self._name, self._coming = name, ""
        if shown and (self.lines or draws(sys.stderr)):
            self._bar = _bar(to_stdout=self.lines)
            self._task = self._bar.add_task(name, total=None)

    def write(self, text: str) -> None:
        """Text for standard output."""
        if self._bar is not None and self.lines:
            self._bar.console.print(clean(text), end="", markup=False, highlight=False, emoji=False)
        else:
            click.echo(clean(text) if sys.stdout.isatty() else text, nl=False)
            sys.stdout.flush()

    def note(self, text: str) -> None:
        """A line for standard error."""
        if self._bar is not None:
            self._bar.console.print(text, style="dim", markup=False, highlight=False, emoji=False)
        else:
            click.echo(text, err=True)

    def advance(self, delta: TranscriptDelta) -> None:
        if self._bar is None:
            return
        self._coming = "" if delta.segments else self._coming + delta.text
        words = " ".join(clean(self._coming).split())[-_WORDS:]
        total = max(delta.total, delta.seconds) or None
        self._bar.update(self._task, completed=delta.seconds, total=total, description=words or self._name)

    def __enter__(self) -> Progress:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()


def _bar(to_stdout: bool) -> Any:
    from rich import progress  # imported for its use: it takes a tenth of a second
    from rich.console import Console
    from rich.text import Text

    class Times(progress.ProgressColumn):
        """What is through, and of how much."""

        def render(self, task: Task) -> Text:
            times = [timecode(each, ".")[:8] for each in (task.completed, task.total) if each is not None]
            return Text(" of ".join(times))

    class Words(progress.ProgressColumn):
        def render(self, task: Task) -> Text:
            return Text(task.description, style="dim", no_wrap=True, overflow="ellipsis")

    console = Console(file=sys.stdout if to_stdout else sys.stderr, soft_wrap=True)
    columns = (progress.BarColumn(24), Times(), progress.TimeRemainingColumn(), Words())
    return progress.Progress(*columns, console=console, transient=True, redirect_stdout=False)
