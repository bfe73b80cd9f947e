"""Settings as the defaults of options: click looks at the flag, then at the variable, then at the file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from olivine.errors import CheckpointError, RequestError
from olivine.settings import COMMANDS, SETTINGS, Entry, Setting, SettingsFile, load_settings

if TYPE_CHECKING:
    from olivine.llm import LLM


def apply_settings(ctx: click.Context, command: click.Command) -> None:
    """Gives a command's options their variables, and the values of the settings file as defaults. `ctx` is
    the context that the command's own will have as its parent."""
    name = command.name or ""
    if name not in COMMANDS or ctx.resilient_parsing:
        return
    entries = load_settings().of(name)
    values: dict[str, Any] = {}
    for setting, option in options_of(command).items():
        option.envvar = SETTINGS[setting].variable
        if setting in entries and option.name is not None:
            values[option.name] = as_option(option, entries[setting].value)
    ctx.default_map = {name: values}


def options_of(command: click.Command) -> dict[str, click.Option]:
    """The options of a command that are settings, by the setting's name."""
    found: dict[str, click.Option] = {}
    for setting in settings_of(command.name or ""):
        if setting.argument:
            continue
        for option in command.params:
            if isinstance(option, click.Option) and setting.flag in option.opts:
                found[setting.name] = option
    return found


def default_model(ctx: click.Context) -> Path | None:
    """The model of the settings, for a command that names none."""
    setting, command = SETTINGS["model"], ctx.command.name or ""
    if command not in setting.commands:
        return None
    name = os.environ.get(setting.variable)
    source = f"the variable {setting.variable}"
    if not name:
        settings = load_settings()
        entry = settings.of(command).get(setting.name)
        if entry is None:
            return None
        name, source = entry.value, _place(settings, entry)
        if not name:
            raise RequestError(f"the name of the model is empty (from {source})")
    from olivine.hub import find

    try:
        path = find(os.path.expanduser(name))
        if not os.path.lexists(path):
            raise CheckpointError(path, "", "there is no such file or folder")
    except CheckpointError as error:
        raise type(error)(error.path, error.field, f"{error.problem} (from {source})") from None
    return path


def settings_of(command: str) -> list[Setting]:
    return [each for each in SETTINGS.values() if command in each.commands]


def as_option(option: click.Option, value: Any) -> Any:
    """One value or several, as the option takes them; of several, an option for one takes the first."""
    if option.multiple:
        return value if isinstance(value, list) else [value]
    if isinstance(value, list):
        return value[0] if value else None
    return value


def with_source(error: click.BadParameter) -> click.BadParameter:
    """The error, and where the value came from if no flag gave it."""
    if error.ctx is None or error.param is None:
        return error
    command, name = error.ctx.command, error.param.name or ""
    setting = next((key for key, option in options_of(command).items() if option.name == name), None)
    if setting is None:
        return error
    match error.ctx.get_parameter_source(name):
        case ParameterSource.ENVIRONMENT:
            source = f"the variable {SETTINGS[setting].variable}"
        case ParameterSource.DEFAULT_MAP:
            settings = load_settings()
            entry = settings.of(command.name or "")[setting]
            source = _place(settings, entry)
        case _:
            return error
    return click.BadParameter(f"{error.message} (from {source})", error.ctx, error.param)


def _place(settings: SettingsFile, entry: Entry) -> str:
    return f"{entry.key} in {settings.path}" + (f", line {entry.line}" if entry.line else "")


def thinking_for(llm: LLM, think: str | None) -> str | None:
    """How the model shall think. A setting is for all models, and says nothing to one that does not."""
    ctx = click.get_current_context()  # of a chat that `run` began: with those of `run` as its parent
    sources = [each.get_parameter_source("think") for each in (ctx, ctx.parent) if each is not None]
    is_setting = ParameterSource.ENVIRONMENT in sources or ParameterSource.DEFAULT_MAP in sources
    return None if is_setting and not llm.conversations.thinks else think


def on_command_line(ctx: click.Context, *names: str) -> bool:
    """Whether one of the parameters was given as a flag, not as a setting for all calls."""
    return any(ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE for name in names)
