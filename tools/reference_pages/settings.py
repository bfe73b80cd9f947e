"""docs/reference/settings.md: every setting, from the table of settings and from click."""

from __future__ import annotations

import click

from olivine.cli.defaults import options_of
from olivine.cli.main import cli
from olivine.settings import SETTINGS, VARIABLES, Kind, Setting
from reference_pages.commands import cell, prose

HEAD = """# Settings

Every setting: its key in the settings file, the variable, what the file has for it, and the commands that
take it. The flag is the key with two dashes. [Settings](../settings.md) explains them. This page is made by
`make docs`.

| key | variable | value | commands | |
| --- | --- | --- | --- | --- |"""
KINDS = {
    Kind.TEXT: "text",
    Kind.TEXTS: "text or list",
    Kind.INTEGER: "whole number",
    Kind.NUMBER: "number",
    Kind.SWITCH: "true, false",
    Kind.TIME: "seconds or text",
}


def page() -> str:
    rows = [_row(setting) for setting in SETTINGS.values()]
    others = [f"| `{name}` | {meaning} |" for name, meaning in VARIABLES.items()]
    head = "\n\nVariables that the file cannot set:\n\n| variable | |\n| --- | --- |\n"
    return "\n".join([HEAD, *rows]) + head + "\n".join(others) + "\n"


def _row(setting: Setting) -> str:
    commands = ", ".join(setting.commands)
    meaning = "The model, where none is named." if setting.argument else _help(setting)
    kind = KINDS[setting.kind]
    return f"| `{setting.name}` | `{setting.variable}` | {kind} | {commands} | {cell(prose(meaning))} |"


def _help(setting: Setting) -> str:
    """As the first command that has it says."""
    command = cli.get_command(click.Context(cli), setting.commands[0])
    assert command is not None
    return " ".join((options_of(command)[setting.name].help or "").split())
