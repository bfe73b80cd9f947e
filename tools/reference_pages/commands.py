"""docs/reference/commands.md: every command with its arguments and options, from click."""

from __future__ import annotations

import inspect
import re

import click

from olivine.cli.main import cli

HEAD = """# Commands

Every command, as `olivine COMMAND --help` has it. This page is made by `make docs`.
"""


def page() -> str:
    context = click.Context(cli, info_name="olivine")
    parts = [HEAD]
    names = cli.list_commands(context)
    parts.append(
        "\n".join(f"- [`olivine {name}`](#olivine-{name}): {_line(context, name)}" for name in names)
    )
    for name in names:
        command = cli.get_command(context, name)
        assert command is not None
        parts += _sections(command, context, name, 2)
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def _line(context: click.Context, name: str) -> str:
    command = cli.get_command(context, name)
    assert command is not None
    return command.get_short_help_str(200)


def _sections(command: click.Command, parent: click.Context, name: str, level: int) -> list[str]:
    """A command's usage, help and options; those of its subcommands follow."""
    context = click.Context(command, parent=parent, info_name=name)
    path = context.command_path
    usage = " ".join([path, *command.collect_usage_pieces(context)])
    parts = [f"{'#' * level} {path}", f"```text\n{usage}\n```", _help(command)]
    rows = [_row(each) for each in command.get_params(context) if isinstance(each, click.Option)]
    rows = [row for row in rows if row]
    if rows:
        parts.append("| option | |\n| --- | --- |\n" + "\n".join(rows))
    if isinstance(command, click.Group):
        for child in command.list_commands(context):
            found = command.get_command(context, child)
            assert found is not None
            parts += _sections(found, context, child, level + 1)
    return [part for part in parts if part]


def _help(command: click.Command) -> str:
    """The help text as Markdown: a paragraph that keeps its lines (\\b) is a block."""
    text = inspect.cleandoc(command.help or "").partition("\f")[0]
    parts = []
    for paragraph in re.split(r"\n\s*\n", text):
        if paragraph.startswith("\b\n"):
            parts.append(f"```text\n{inspect.cleandoc(paragraph[2:])}\n```")
        else:
            parts.append(prose(" ".join(paragraph.split())))
    return "\n\n".join(part for part in parts if part)


def _row(option: click.Option) -> str:
    if option.hidden or "--help" in option.opts:
        return ""
    names = [*option.opts, *option.secondary_opts]
    value = "" if option.is_flag or option.count else f" {value_of(option)}"
    help_text = prose(" ".join((option.help or "").split()))
    notes = []
    if option.show_default and option.default not in (None, ()) and not callable(option.default):
        notes.append(f"default {option.default}")
    if option.required:
        notes.append("required")
    if notes:
        help_text += f" ({', '.join(notes)})"
    spelled = ", ".join(f"`{each}`" for each in names[:-1]) + (", " if len(names) > 1 else "")
    last = f"{names[-1]}{value}".replace("|", "\\|")
    return f"| {spelled}`{last}` | {cell(help_text)} |"


def value_of(option: click.Option) -> str:
    if option.metavar:
        return option.metavar
    if isinstance(option.type, click.Choice):
        return "|".join(str(each) for each in option.type.choices)
    kind = {"integer": "N", "integer range": "N", "float": "X", "float range": "X"}
    return kind.get(option.type.name, option.type.name.upper())


def prose(text: str) -> str:
    """What looks like an option, a placeholder or HTML is code."""
    text = re.sub(r"(?<![\w`-])(--[a-z][\w-]*(?:=\w+)?)", r"`\1`", text)
    return text.replace("<", "&lt;").replace("*", "\\*")


def cell(text: str) -> str:
    return text.replace("|", "\\|")
