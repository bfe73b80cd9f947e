"""`olivine config`: settings, their values and where these come from; and changes to the settings file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from olivine import box
from olivine.cli.defaults import apply_settings, as_option, options_of, settings_of
from olivine.cli.text import echo_facts, echo_table, escaped, json_text
from olivine.errors import RequestError
from olivine.settings import (
    COMMANDS,
    SETTINGS,
    VARIABLES,
    Entry,
    Kind,
    Setting,
    load_settings,
    near,
    settings_path,
)
from olivine.settings_file import changed, removed, write

HIDDEN = "(hidden)"  # in place of an API key
SOURCES = {
    ParameterSource.COMMANDLINE: "flag",
    ParameterSource.ENVIRONMENT: "environment",
    ParameterSource.DEFAULT_MAP: "file",
}


@click.group("config", invoke_without_command=True, short_help="Show or change the settings.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
@click.pass_context
def command(ctx: click.Context, as_json: bool) -> None:
    """Show every setting, its value, and where it comes from.

    \b
    olivine config
    olivine config show serve --port 9000
    olivine config set threads 4
    olivine config set serve.port 9000
    olivine config unset serve.port

    A flag goes first, then the variable OLIVINE_NAME, then the settings file: the section of the command,
    then the keys before the first section, which hold for all commands.
    """
    if ctx.invoked_subcommand is not None:
        return
    settings = load_settings()
    for entry in settings.entries:
        try:
            _check(ctx, SETTINGS[entry.name], entry.section, entry.value)
        except click.BadParameter as error:
            line = f", line {entry.line}" if entry.line else ""
            raise RequestError(f"{settings.path}{line}: {entry.key}: {error.message}") from None
    rows = [row for setting in SETTINGS.values() for row in _rows(setting, settings.entries)]
    variables = {name: os.environ[name] for name in VARIABLES if os.environ.get(name)}
    if as_json:
        facts = {"file": str(settings.path), "exists": settings.path.exists(), "settings": rows}
        click.echo(json_text({**facts, "variables": variables}, indent=2))
        return
    there = "" if settings.path.exists() else "  (not there)"
    echo_facts([("settings file", f" {_home(settings.path)}{there}")])
    click.echo()
    table = [(_key(row), _shown(row["value"]), _source(row), row["variable"]) for row in rows]
    echo_table(("setting", "value", "from", "variable"), table, right=frozenset())
    click.echo()
    others = [(name, _shown(variables.get(name)), what) for name, what in VARIABLES.items()]
    echo_table(("other variables", "value", "meaning"), others, right=frozenset())


@command.command("path")
def path() -> None:
    """Print the path of the settings file, which need not exist."""
    click.echo(settings_path())


@command.command("show", context_settings={"ignore_unknown_options": True, "help_option_names": []})
@click.argument("command_name", metavar="COMMAND", type=click.Choice(COMMANDS))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def show(ctx: click.Context, command_name: str, arguments: tuple[str, ...]) -> None:
    """Show the settings with which COMMAND would run, given these ARGUMENTS."""
    shown = _command(ctx, command_name)
    parent = click.Context(ctx.find_root().command)
    apply_settings(parent, shown)
    found = shown.make_context(command_name, [*arguments], parent=parent, resilient_parsing=True)
    entries = load_settings().of(command_name)
    rows = [_model_row(found, entries)] if SETTINGS["model"] in settings_of(command_name) else []
    for name, option in options_of(shown).items():
        source = found.get_parameter_source(option.name or "")
        row = {
            "source": SOURCES.get(source, "default") if source else "default",
            "line": entries[name].line if name in entries else None,
            "variable": SETTINGS[name].variable,
        }
        value = found.params[option.name or ""]
        if SETTINGS[name].secret and value:
            value = HIDDEN
        rows.append((name, _shown(value), _source(row)))
    echo_table(("setting", "value", "from"), rows, right=frozenset())


def _model_row(found: click.Context, entries: Mapping[str, Entry]) -> tuple[str, str, str]:
    """The model that a command would take: `model` is an argument, and no option."""
    setting, given = SETTINGS["model"], found.params
    if words := given.get("words"):  # of `run`: perhaps the model, and a question
        from olivine.cli.run import told

        named = told(words, given["model_option"], given["prompt"], given["again"])[0]
    else:
        named = given.get("model") or given.get("model_option") or (given.get("models") or None)
    if named:
        return setting.name, _shown(named), "flag"
    if value := os.environ.get(setting.variable):
        return setting.name, _shown(value), setting.variable
    if entry := entries.get(setting.name):
        return setting.name, _shown(entry.value), f"file, line {entry.line}"
    return setting.name, box.NAME, "default"


@command.command("set", context_settings={"ignore_unknown_options": True})  # max-tokens -1
@click.argument("key", shell_complete=lambda *given: complete_keys(given[2]))
@click.argument("values", metavar="VALUE...", nargs=-1, required=True)
@click.pass_context
def set_(ctx: click.Context, key: str, values: tuple[str, ...]) -> None:
    """Write a value to the settings file: KEY is `threads`, or `serve.threads` for one command."""
    section, setting = _split(key)
    value = _typed(setting, values)
    _check(ctx, setting, section, value)
    file = settings_path()
    write(file, changed(_text(file), section, setting.name, value, file))
    click.echo(f"{key} is set in {_home(file)}")


@command.command("unset")
@click.argument("key", shell_complete=lambda *given: complete_keys(given[2]))
def unset(key: str) -> None:
    """Remove a value from the settings file."""
    section, setting = _split(key)
    file = settings_path()
    write(file, removed(_text(file), section, setting.name, file))
    click.echo(f"{key} is no longer set in {_home(file)}")


def complete_keys(start: str) -> list[str]:
    keys = [*SETTINGS, *(f"{command}.{name}" for name, each in SETTINGS.items() for command in each.commands)]
    return [key for key in keys if key.startswith(start)]


def _command(ctx: click.Context, name: str) -> click.Command:
    group = ctx.find_root().command
    assert isinstance(group, click.Group)
    found = group.get_command(ctx, name)
    assert found is not None
    return found


def _check(ctx: click.Context, setting: Setting, section: str, value: Any) -> None:
    """Raises `BadParameter` where a command would not take the value."""
    if setting.argument and not value:
        raise click.BadParameter(f"the name of the {setting.name} is empty.")
    for name in () if setting.argument else [section] if section else setting.commands:
        option = options_of(_command(ctx, name))[setting.name]
        option.process_value(ctx, as_option(option, value))


def _rows(setting: Setting, entries: tuple[Entry, ...]) -> list[dict[str, Any]]:
    """A setting's value for all commands, and each of a command's own. Where one command has the setting, its
    own value is the only one."""
    own = {entry.section: entry for entry in entries if entry.name == setting.name}
    given = os.environ.get(setting.variable)
    sections = [section for section in own if section]
    rows = []
    for section in sections if len(setting.commands) == 1 and sections else ["", *sections]:
        row: dict[str, Any] = {"setting": setting.name, "command": section or None}
        if given:
            row |= {"value": given, "source": "environment", "line": None}
        elif section in own:
            row |= {"value": own[section].value, "source": "file", "line": own[section].line}
        else:
            row |= {"value": _default(setting), "source": "default", "line": None}
        if setting.secret and row["value"]:
            row["value"] = HIDDEN
        rows.append(
            row
            | {
                "variable": setting.variable,
                "flag": None if setting.argument else setting.flag,
                "commands": setting.commands,
            }
        )
    return rows


def _default(setting: Setting) -> Any:
    """What the first of the commands has as its option's default; None: it depends on the model."""
    if setting.argument:
        return box.NAME
    from olivine.cli.main import COMMANDS as modules

    command = import_module(modules[setting.commands[0]][0]).command
    default = options_of(command)[setting.name].to_info_dict()["default"]
    return None if default in ((), [], "") else default


def _key(row: dict[str, Any]) -> str:
    return row["setting"] if row["command"] is None else f"{row['command']}.{row['setting']}"


def _source(row: dict[str, Any]) -> str:
    match row["source"]:
        case "file":
            return f"file, line {row['line']}" if row["line"] else "file"
        case "environment":
            return row["variable"] if "setting" not in row else "environment"
    return str(row["source"])


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "–"
    return "–" if value is None else escaped(str(value))


def _home(path: Path) -> str:
    """A path with ~ for the home folder."""
    home = os.path.expanduser("~")
    return f"~{str(path)[len(home) :]}" if str(path).startswith(home + os.sep) else str(path)


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8-sig")
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except UnicodeDecodeError:
        raise RequestError(f"{file}: the settings are no UTF-8 text") from None


def _split(key: str) -> tuple[str, Setting]:
    """`serve.port` → the section and the setting."""
    section, _, name = key.rpartition(".")
    name = name.replace("_", "-")
    if section and section not in COMMANDS:
        raise RequestError(
            f"there are no settings for {section!r}; commands with some: {', '.join(COMMANDS)}"
        )
    known = {each.name: each for each in (settings_of(section) if section else SETTINGS.values())}
    if name not in known:
        of = f" for {section}" if section else ""
        raise RequestError(f"there is no setting {name!r}{of}{near(name, known)}")
    return section, known[name]


def _typed(setting: Setting, values: tuple[str, ...]) -> Any:
    """Words of the command line as a value of the file."""
    if setting.kind is Kind.TEXTS and len(values) > 1:
        return [*values]
    if len(values) > 1:
        raise click.UsageError(f"{setting.name} takes one value.")
    value: Any = values[0]
    try:
        if setting.kind is Kind.INTEGER:
            value = int(value)
        elif setting.kind is Kind.NUMBER:
            value = float(value) if not value.lstrip("+-").isdecimal() else int(value)
        elif setting.kind is Kind.SWITCH:
            value = {"true": True, "on": True, "yes": True, "1": True}.get(value.lower(), value)
            value = {"false": False, "off": False, "no": False, "0": False}.get(str(value).lower(), value)
    except ValueError:
        pass
    if not setting.kind.takes(value):
        raise RequestError(f"{setting.name} must be {setting.kind.value}, and is {values[0]!r}")
    return value
