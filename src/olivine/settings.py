"""Settings: options of commands whose values may also come from the environment or from one TOML file.

A flag goes first, then the variable OLIVINE_NAME, then the section of the command in the file, then the keys
before the first section, which hold for every command that has the option.
"""

from __future__ import annotations

import difflib
import os
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from olivine.errors import RequestError, printable
from olivine.folders import config_folder

FILE = "config.toml"
VARIABLE = "OLIVINE_CONFIG"  # names another file


class Kind(Enum):
    """What a value is in the file, in the words of error messages."""

    TEXT = 'a text in quotes, such as "auto"'
    TEXTS = 'a text in quotes, or a list of such: ["one", "two"]'
    INTEGER = "a whole number"
    NUMBER = "a number"
    SWITCH = "true or false"
    TIME = 'seconds, or a text such as "10m"'

    def takes(self, value: Any) -> bool:
        match self:
            case Kind.TEXT:
                return isinstance(value, str)
            case Kind.TEXTS:
                texts = value if isinstance(value, list) else [value]
                return all(isinstance(each, str) for each in texts)
            case Kind.INTEGER:
                return type(value) is int
            case Kind.NUMBER:
                return type(value) in (int, float)
            case Kind.SWITCH:
                return type(value) is bool
            case Kind.TIME:
                return type(value) in (int, float, str)


@dataclass(frozen=True)
class Setting:
    """A setting: the name of the flag without dashes, and the commands that have it."""

    name: str
    kind: Kind
    commands: tuple[str, ...]
    secret: bool = False
    argument: bool = False  # it stands for an argument, where that is left out

    @property
    def flag(self) -> str:
        return f"--{self.name}"

    @property
    def variable(self) -> str:
        return f"OLIVINE_{self.name.upper().replace('-', '_')}"


_TALK = ("chat", "run")
_MODEL = (*_TALK, "serve")
_SERVE = ("serve",)
_ALL = (
    Setting("model", Kind.TEXT, (*_MODEL, "launch"), argument=True),
    Setting("device", Kind.TEXT, (*_MODEL, "transcribe", "perplexity", "compare", "bench")),
    Setting(
        "threads",
        Kind.INTEGER,
        (*_MODEL, "rank", "transcribe", "perplexity", "compare", "convert", "bench"),
    ),
    Setting("context", Kind.INTEGER, (*_MODEL, "launch")),
    Setting("kv-type", Kind.TEXT, _MODEL),
    Setting("reproducible", Kind.SWITCH, _MODEL),
    Setting("tensor-parallel", Kind.INTEGER, ("run", "serve")),
    Setting("pipeline-parallel", Kind.INTEGER, ("run", "serve")),
    Setting("nodes", Kind.INTEGER, ("run", "serve")),
    Setting("rank-address", Kind.TEXT, ("run", "serve", "rank")),
    Setting("rank-key", Kind.TEXT, ("run", "serve", "rank"), secret=True),
    Setting("max-tokens", Kind.INTEGER, _TALK),
    Setting("temp", Kind.NUMBER, _TALK),
    Setting("top-k", Kind.INTEGER, _TALK),
    Setting("top-p", Kind.NUMBER, _TALK),
    Setting("min-p", Kind.NUMBER, _TALK),
    Setting("repeat-penalty", Kind.NUMBER, _TALK),
    Setting("presence-penalty", Kind.NUMBER, _TALK),
    Setting("frequency-penalty", Kind.NUMBER, _TALK),
    Setting("seed", Kind.INTEGER, _TALK),
    Setting("stop-on-repetition", Kind.SWITCH, _TALK),
    Setting("think", Kind.TEXT, _TALK),
    Setting("hide-thinking", Kind.SWITCH, _TALK),
    Setting("host", Kind.TEXT, _SERVE),
    Setting("port", Kind.INTEGER, _SERVE),
    Setting("api-key", Kind.TEXTS, ("serve", "launch", "ps", "stop"), secret=True),
    Setting("cors", Kind.TEXTS, _SERVE),
    Setting("allowed-host", Kind.TEXTS, _SERVE),
    Setting("parallel", Kind.INTEGER, _SERVE),
    Setting("queue", Kind.INTEGER, _SERVE),
    Setting("queue-per-client", Kind.INTEGER, _SERVE),
    Setting("log-format", Kind.TEXT, _SERVE),
    Setting("log-prompts", Kind.SWITCH, _SERVE),
    Setting("max-body", Kind.INTEGER, _SERVE),
    Setting("max-timeout", Kind.NUMBER, _SERVE),
    Setting("priorities", Kind.SWITCH, _SERVE),
    Setting("body-timeout", Kind.NUMBER, _SERVE),
    Setting("max-connections", Kind.INTEGER, _SERVE),
    Setting("keep-alive", Kind.NUMBER, _SERVE),
    Setting("ping", Kind.NUMBER, _SERVE),
    Setting("resume-timeout", Kind.NUMBER, _SERVE),
    Setting("idle-unload", Kind.TIME, _SERVE),
    Setting("load-wait", Kind.NUMBER, _SERVE),
    Setting("stall", Kind.NUMBER, _SERVE),
    Setting("show-paths", Kind.SWITCH, _SERVE),
    Setting("grace", Kind.NUMBER, _SERVE),
    Setting("pull", Kind.SWITCH, _SERVE),
    Setting("url", Kind.TEXT, ("launch", "ps", "stop")),
    Setting("language", Kind.TEXT, ("transcribe",)),
    Setting("llama-python", Kind.TEXT, ("bench",)),
)
SETTINGS: Mapping[str, Setting] = {each.name: each for each in _ALL}
COMMANDS = tuple(dict.fromkeys(command for each in _ALL for command in each.commands))

# Variables that are no options of a command: the file cannot set them.
VARIABLES = {
    VARIABLE: "the settings file, in place of the usual one",
    "OLIVINE_STATE": "the folder of the last conversation and the history of prompts",
    "OLIVINE_CACHE": "the folder of what can be made again, such as the measured bandwidth",
    "OLIVINE_ISA": "the instruction set of the CPU backend: avx2, neon, plain, …",
    "OLIVINE_LIBRARY": "the native library of the CPU backend, in place of the installed one",
}


@dataclass(frozen=True)
class Entry:
    """A value in the file. `section` is "" for a key before the first section."""

    name: str
    section: str
    value: Any
    line: int | None

    @property
    def key(self) -> str:
        return f"{self.section}.{self.name}" if self.section else self.name


@dataclass(frozen=True)
class SettingsFile:
    """What the file says, checked."""

    path: Path
    entries: tuple[Entry, ...] = field(default=())

    def of(self, command: str) -> dict[str, Entry]:
        """The values for a command by name: those of its section, then those for all commands."""
        found: dict[str, Entry] = {}
        for entry in self.entries:
            if entry.section == command or (
                not entry.section and command in SETTINGS[entry.name].commands and entry.name not in found
            ):
                found[entry.name] = entry
        return found


def settings_path() -> Path:
    """The settings file, which need not exist."""
    named = os.environ.get(VARIABLE)
    return Path(named) if named else config_folder() / FILE


def load_settings() -> SettingsFile:
    """Reads and checks the file. Without one there are no values; one that is named must be there."""
    path = settings_path()
    try:
        return SettingsFile(path, tuple(entries_of(path.read_text(encoding="utf-8-sig"), path)))
    except (FileNotFoundError, NotADirectoryError):
        if os.environ.get(VARIABLE):
            raise RequestError(f"{VARIABLE} names {path}, and there is no such file") from None
        return SettingsFile(path)
    except OSError as error:
        raise RequestError(f"{path}: the settings cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise RequestError(f"{path}: the settings are no UTF-8 text (byte {error.start})") from None


def entries_of(text: str, path: Path) -> Iterable[Entry]:
    """The values of a file's text; an error names the file, the line and the key."""
    lines = lines_of(text)
    common, sections = [], []
    for key, value in parsed(text, path).items():
        if isinstance(value, dict):
            where = _where(path, lines.get((key, "")))
            if key not in COMMANDS:
                raise RequestError(
                    f"{where}: there are no settings for [{printable(key)}]{near(key, COMMANDS)}"
                )
            own = [name for name, each in SETTINGS.items() if key in each.commands]
            sections += [_entry(name, key, each, own, lines, path) for name, each in value.items()]
        else:
            common.append(_entry(key, "", value, [*SETTINGS], lines, path))
    return [*sections, *common]


def parsed(text: str, path: Path) -> dict[str, Any]:
    """The text as TOML."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise RequestError(f"{path}: the settings are no TOML: {error}") from None


def _entry(
    key: str,
    section: str,
    value: Any,
    known: Iterable[str],
    lines: Mapping[tuple[str, str], int],
    path: Path,
) -> Entry:
    line = lines.get((section, key))
    where = _where(path, line)
    name = key.replace("_", "-")
    if name not in known:
        of = f" for {section}" if section else ""
        hint = near(name, known)
        if name in SETTINGS:
            hint = f": it is one of {' and '.join(SETTINGS[name].commands)}"
        raise RequestError(f"{where}: there is no setting {printable(key)!r}{of}{hint}")
    kind = SETTINGS[name].kind
    if not kind.takes(value):
        raise RequestError(f"{where}: {key} must be {kind.value}, and is {printable(_shown(value))}")
    return Entry(name, section, value, line)


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value)


def _where(path: Path, line: int | None) -> str:
    return f"{path}, line {line}" if line else str(path)


def near(name: str, known: Iterable[str]) -> str:
    """A hint: the name that was meant, by its spelling or by what other programs call it."""
    known = list(known)
    other = OTHER_NAMES.get(name.replace("_", "-"))
    near = [other] if other in known else difflib.get_close_matches(name, known, 1)
    return f": did you mean {near[0]}?" if near else "; see: olivine config"


# What other programs call them.
OTHER_NAMES = {
    "temperature": "temp",
    "repetition-penalty": "repeat-penalty",
    "num-ctx": "context",
    "ctx-size": "context",
    "context-length": "context",
    "max-model-len": "context",
    "num-predict": "max-tokens",
    "n-predict": "max-tokens",
    "max-new-tokens": "max-tokens",
    "cache-type-k": "kv-type",
    "num-thread": "threads",
    "n-threads": "threads",
    "sequences": "parallel",
    "api-keys": "api-key",
    "reasoning-effort": "think",
}

_HEADER = re.compile(r"\s*\[\s*([\w-]+)\s*\]")
_KEY = re.compile(r"""\s*(?:([\w-]+)\s*\.\s*)?["']?([\w-]+)["']?\s*=""")


def lines_of(text: str) -> dict[tuple[str, str], int]:
    """The line of each key, by section and name; of a section's header, by section and ""."""
    found: dict[tuple[str, str], int] = {}
    section = ""
    for number, line in enumerate(text.splitlines(), 1):
        if header := _HEADER.match(line):
            section = header[1]
            found.setdefault((section, ""), number)
        elif key := _KEY.match(line):
            found.setdefault((section or key[1] or "", key[2]), number)
    return found
