"""How far a download is: a bar in a terminal, else a line now and then."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from olivine.cli.text import draws, escaped, size

if TYPE_CHECKING:
    from olivine.hub.download import Report
    from olivine.hub.remote import Remote, RemoteFile

SECONDS = 10.0  # between two lines


@contextmanager
def bars(remote: Remote) -> Iterator[Report]:
    """What `fetch` is to report to."""
    if draws(sys.stderr):
        with _drawn(remote) as report:
            yield report
    else:
        yield Lines(remote).report


class Lines:
    """A line for each file, and one every ten seconds."""

    def __init__(self, remote: Remote) -> None:
        self._remote = remote
        self._told = self._began = time.monotonic()
        self._first: dict[str, int] = {}

    def report(self, file: RemoteFile, stage: str, done: int) -> None:
        now = time.monotonic()
        if stage == "check":
            return
        first = file.path not in self._first
        if first:
            self._first[file.path], self._began = done, now
        if not first and done < file.bytes and now - self._told < SECONDS:
            return
        if first and done == file.bytes:
            click.echo(f"{escaped(file.path)}: here already ({size(file.bytes)})", err=True)
        elif first:
            rest = f", {size(done)} of it is here" if done else ""
            click.echo(f"{escaped(file.path)}: {size(file.bytes)}{rest}", err=True)
        elif self._first[file.path] < file.bytes:
            got = done - self._first[file.path]
            rate = got / max(now - self._began, 1e-3)
            share = 100 * done // max(1, file.bytes)
            end = "done" if done == file.bytes else f"{size(done)} of {size(file.bytes)}"
            click.echo(f"{escaped(file.path)}: {end} ({share} %, {size(rate)}/s)", err=True)
            if done == file.bytes:
                self._first[file.path] = done
        self._told = now


@contextmanager
def _drawn(remote: Remote) -> Iterator[Report]:
    """One bar for the whole download, with the name of the file that is fetched."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
    from rich.progress import TransferSpeedColumn as SpeedColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=None),
        DownloadColumn(),
        SpeedColumn(),
        TimeRemainingColumn(compact=True),
    )
    done_by_file = {file.path: remote.here(file) for file in remote.files}
    with Progress(*columns, console=Console(stderr=True), expand=True) as progress:
        task = progress.add_task("", total=remote.bytes, completed=sum(done_by_file.values()))

        def report(file: RemoteFile, stage: str, done: int) -> None:
            name = escaped(file.path.rpartition("/")[2])
            if stage == "check":
                progress.update(task, description=f"{name}: checking, {100 * done // max(1, file.bytes)} %")
                return
            done_by_file[file.path] = done
            progress.update(task, description=name, completed=sum(done_by_file.values()))

        yield report
