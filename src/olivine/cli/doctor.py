"""`olivine doctor`: whether everything works here, and what it works with."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import click

from olivine.cli.text import Status, draws, escaped, json_text

if TYPE_CHECKING:
    from olivine.doctor.report import Report
    from olivine.doctor.section import Problem

TITLES = {
    "versions": "Versions",
    "cpu": "CPU",
    "memory": "Memory",
    "gpu": "GPU",
    "self_tests": "Self-tests: olivine-mini on each backend, against the reference",
    "disk": "Disk",
    "settings": "Settings",
}
LABEL = 14  # columns


@click.command("doctor", short_help="Check this machine and installation.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
@click.option("--paths", is_flag=True, help="Show paths, too: of folders, and in messages.")
@click.option("--measure", "again", is_flag=True, help="Measure the memory bandwidth again.")
@click.option("--tests/--no-tests", default=True, help="Whether to run the self-tests; by default they run.")
def command(as_json: bool, paths: bool, again: bool, tests: bool) -> None:
    """Check this machine and this installation: CPU, memory, GPU, versions, settings, and a test of each
    backend. Problems come with what to do about them.

    The output can be pasted into an issue: it has no names of users or machines, and no paths unless --paths
    asks for them. The exit status is 1 if something does not work, else 0.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as in loading.py
    from olivine.doctor.report import examine

    with Status() as status:
        report = examine(
            lambda what: status.show(f"checking {what} …"), paths=paths, again=again, tests=tests
        )
    if as_json:
        click.echo(json_text(report.to_json(paths=paths), indent=2))
    elif draws(sys.stdout):
        show(report, paths=paths)
    else:
        click.echo(text(report, paths=paths))
    sys.exit(1 if report.failed else 0)


def text(report: Report, *, paths: bool) -> str:
    """The report as plain text."""
    lines: list[str] = []
    for section in report.sections:
        lines += [TITLES[section.name], *_lines(section.lines, paths), ""]
    lines += [summary(report.problems)]
    for problem in report.problems:
        lines += ["", f"- {_cleaned(problem.what, paths)}", f"  {_cleaned(problem.remedy, paths)}"]
    return "\n".join(lines)


def _lines(rows: list[tuple[str, str]], paths: bool) -> list[str]:
    found = []
    for label, value in rows:
        first, *more = value.split("\n")
        found.append(f"  {label:<{LABEL}}{_cleaned(first, paths)}")
        found += [f"  {'':<{LABEL}}{_cleaned(each, paths)}" for each in more]
    return found


def _cleaned(line: str, paths: bool) -> str:
    from olivine.doctor.section import without_home, without_paths

    return escaped(without_home(line) if paths else without_paths(line))


def summary(problems: list[Problem]) -> str:
    failures = sum(problem.failure for problem in problems)
    notes = len(problems) - failures
    if not problems:
        return "Everything works."
    told = []
    if failures:
        told.append(f"{failures} problem{'s' if failures > 1 else ''}")
    if notes:
        told.append(f"{notes} thing{'s' if notes > 1 else ''} that could be better")
    return f"{' and '.join(told)}:"


def show(report: Report, *, paths: bool) -> None:
    """The report in a terminal: a table, with problems in color."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    for section in report.sections:
        failed = any(problem.failure for problem in section.problems)
        mark = ("✗ ", "red") if failed else ("! ", "yellow") if section.problems else ("✓ ", "green")
        console.print(Text.assemble(mark, (TITLES[section.name], "bold")))
        table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
        table.add_column(style="dim", width=LABEL + 2, no_wrap=True)
        table.add_column(overflow="fold")
        for label, value in section.lines:
            cell = "\n".join(_cleaned(line, paths) for line in value.split("\n"))
            bad = cell.startswith("FAILED")
            table.add_row(Text(f"  {label}"), Text(cell, style="red" if bad else ""))
        console.print(table)
    console.print()
    console.print(Text(summary(report.problems), style="bold"))
    for problem in report.problems:
        style = "red" if problem.failure else "yellow"
        console.print(Text.assemble(("• ", style), _cleaned(problem.what, paths)))
        console.print(Text(f"  {_cleaned(problem.remedy, paths)}", style="dim"))
