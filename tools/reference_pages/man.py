"""src/olivine/cli/olivine.1: the man page, from click and the table of settings."""

from __future__ import annotations

import inspect
import re

import click

from olivine.cli.main import cli
from olivine.settings import SETTINGS, VARIABLES
from reference_pages.commands import value_of

HEAD = r""".\" Made by `make docs`.
.TH OLIVINE 1 "" Olivine "User Commands"
.SH NAME
olivine \- run open\-weight language models on the machine in front of you
.SH SYNOPSIS
.B olivine
.I COMMAND
.RI [ ARGUMENTS ]...
"""

FILES = {
    "~/.config/olivine/config.toml": "The settings: olivine config path.",
    "~/.local/state/olivine": "The last conversation, and the history of prompts.",
    "~/.cache/olivine": "What can be made again, such as the measured memory bandwidth.",
}


def page() -> str:
    context = click.Context(cli, info_name="olivine")
    parts = [HEAD.rstrip(), ".SH DESCRIPTION", *_help(cli), ".SH COMMANDS"]
    for name in cli.list_commands(context):
        found = cli.get_command(context, name)
        assert found is not None
        parts += _command(found, context, name)
    parts += [
        ".SH ENVIRONMENT",
        _escaped(
            "A flag goes first, then the variable, then the settings file: the section of the command, then "
            "the keys before the first section, which hold for all commands."
        ),
    ]
    for setting in SETTINGS.values():
        commands = ", ".join(setting.commands)
        parts += [".TP", f".B {_escaped(setting.variable)}", _escaped(f"{setting.flag} of {commands}.")]
    for name, meaning in VARIABLES.items():
        parts += [".TP", f".B {_escaped(name)}", _escaped(f"{meaning[0].upper()}{meaning[1:]}.")]
    parts.append(".SH FILES")
    for name, meaning in FILES.items():
        parts += [".TP", f".I {_escaped(name)}", _escaped(meaning)]
    parts += [
        ".SH EXIT STATUS",
        "0 if all went well, 1 if something failed, 2 if the command line was wrong.",
        "Ended by a signal, as that signal has it: 130 after Ctrl\\-C.",
    ]
    return "\n".join(parts) + "\n"


def _command(command: click.Command, parent: click.Context, name: str) -> list[str]:
    context = click.Context(command, parent=parent, info_name=name)
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    parts = [f'.SS "{_escaped(usage)}"', *_help(command)]
    for option in command.get_params(context):
        if isinstance(option, click.Option) and not option.hidden and "--help" not in option.opts:
            value = "" if option.is_flag or option.count else f" {value_of(option)}"
            names = ", ".join([*option.opts, *option.secondary_opts])
            text = _escaped(" ".join((option.help or "").split()))
            parts += [".TP", f"\\fB{_escaped(names)}\\fR{_escaped(value)}", text or "\\&"]
    if isinstance(command, click.Group):
        for child in command.list_commands(context):
            found = command.get_command(context, child)
            assert found is not None
            parts += _command(found, context, child)
    return parts


def _help(command: click.Command) -> list[str]:
    """A paragraph that keeps its lines (\\b) is an example."""
    parts: list[str] = []
    text = inspect.cleandoc(command.help or "").partition("\f")[0]
    for paragraph in re.split(r"\n\s*\n", text):
        if paragraph.startswith("\b\n"):
            lines = [_escaped(line) for line in inspect.cleandoc(paragraph[2:]).splitlines()]
            parts += [".PP", ".nf", ".RS", *lines, ".RE", ".fi"]
        else:
            parts += [".PP", _escaped(" ".join(paragraph.split()))]
    return parts[1:] if parts[:1] == [".PP"] else parts


def _escaped(text: str) -> str:
    """Text as roff has it: a line that begins with a dot is no request."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace('"', "\\(dq").replace("…", "...")
    return f"\\&{text}" if text[:1] in (".", "'") else text
