"""Settings as defaults of options: flags, variables and the file, in this order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest

from olivine.cli.defaults import options_of
from olivine.cli.main import cli
from olivine.settings import COMMANDS, SETTINGS, Kind
from oracles.commands import olivine

# Options that are no settings: they say what one call is about, or are other spellings of it.
OF_ONE_CALL = {
    "alias", "against", "all", "attach", "continue", "depth", "download", "file", "force",
    "generate", "grammar", "help", "json", "json-schema", "load", "metadata", "mmproj",
    "mmproj-only", "model", "no-bos", "no-mmproj", "count", "ids", "output", "pin", "plan", "print",
    "prompt", "quiet", "ranks", "raw", "ray", "regex", "repeats", "replicas", "show-prompt",
    "special", "srt", "stop", "system", "tensors", "tools", "translate", "type", "verbose", "vtt", "web",
    "window", "windows", "yes",
}  # fmt: skip
# Settings of one command whose flag means something else in another.
ELSEWHERE = {("bench", "parallel"), ("transcribe", "max-tokens")}


def command_of(name: str) -> click.Command:
    found = cli.get_command(click.Context(cli), name)
    assert found is not None
    return found


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_is_a_setting_or_of_one_call(name: str) -> None:
    command = command_of(name)
    known = options_of(command)
    assert {*known} == {
        setting.name for setting in SETTINGS.values() if name in setting.commands and not setting.argument
    }
    for option in command.params:
        if isinstance(option, click.Option) and option not in known.values():
            flags = {flag.removeprefix("--") for flag in option.opts if flag.startswith("--")}
            assert flags & OF_ONE_CALL or {(name, flag) for flag in flags} & ELSEWHERE, (
                f"{flags} of {name}: a setting (olivine/settings.py), or of one call (this test)?"
            )


@pytest.mark.parametrize("setting", [each for each in SETTINGS.values() if not each.argument], ids=str)
def test_kinds_are_those_of_the_options(setting: Any) -> None:
    names = {
        "text": Kind.TEXT,
        "choice": Kind.TEXT,
        "integer": Kind.INTEGER,
        "integer range": Kind.INTEGER,
        "float": Kind.NUMBER,
        "float range": Kind.NUMBER,
        "boolean": Kind.SWITCH,
        "duration": Kind.TIME,
    }
    for name in setting.commands:
        kind = names[options_of(command_of(name))[setting.name].type.name]
        assert setting.kind is (Kind.TEXTS if setting.kind is Kind.TEXTS and kind is Kind.TEXT else kind)


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "config.toml"
    monkeypatch.setenv("OLIVINE_CONFIG", str(path))
    path.write_text("max-tokens = 3\ntemp = 0\n[serve]\nport = 99999\n")
    return path


def used(*arguments: str, **environment: str) -> list[str]:
    """The number of tokens that `olivine run` would take, and where it comes from."""
    shown = olivine("config", "show", "run", *arguments, **environment).stdout
    return next(line.split()[1:] for line in shown.splitlines() if line.startswith("max-tokens"))


def test_flags_go_before_variables_and_these_before_the_file(settings: Path) -> None:
    assert used() == ["3", "file,", "line", "1"]
    assert used(OLIVINE_MAX_TOKENS="5") == ["5", "OLIVINE_MAX_TOKENS"]
    assert used("-n", "7", OLIVINE_MAX_TOKENS="5") == ["7", "flag"]
    settings.write_text("max-tokens = 3\ntemp = 0\n[run]\nmax-tokens = 9\n")
    assert used() == ["9", "file,", "line", "4"]


def test_a_command_runs_with_its_settings(settings: Path) -> None:
    settings.write_text("max-tokens = 2\n")
    few = olivine("run", "Tell me about a fox", OLIVINE_THREADS="1", OLIVINE_TEMP="0").stdout
    assert 0 < len(few.split()) <= 2


def test_the_model_of_the_settings_answers_where_none_is_named(settings: Path, tmp_path: Path) -> None:
    settings.write_text('model = "no-such-model-9"\nthreads = 1\nmax-tokens = 1\n')
    found = olivine("run", "Tell me about a fox")
    assert found.returncode == 1 and "no-such-model-9" in found.stderr
    for arguments in (["run"], ["chat"], ["serve"]):
        assert "no-such-model-9" in olivine(*arguments, text="hello").stderr
    assert olivine("run", "olivine-mini", "Tell me about a fox").returncode == 0
    assert olivine("run", "Tell me about a fox", OLIVINE_MODEL="olivine-mini").returncode == 0


def test_a_value_out_of_range_is_named_with_its_place(settings: Path) -> None:
    found = olivine("serve")
    assert found.returncode == 2
    assert f"65535. (from serve.port in {settings}, line 4)" in found.stderr
    found = olivine("serve", OLIVINE_PORT="99999")
    assert "65535. (from the variable OLIVINE_PORT)" in found.stderr
    assert "(from" not in olivine("serve", "--port", "99999").stderr


def test_a_value_that_the_library_refuses_is_named_with_its_place(settings: Path) -> None:
    settings.write_text("temp = -1\n")
    for command in ("run", "chat"):
        found = olivine(command, text="hi")
        assert found.returncode == 2
        told = "temperature must be between 0 and 100, and is -1.0 (from temp in {}, line 1)"
        assert told.format(settings) in found.stderr
    assert (
        "(from the variable OLIVINE_THINK)"
        in olivine("run", "-c", OLIVINE_THINK="maybe", OLIVINE_TEMP="1").stderr
    )


@pytest.mark.parametrize("name", ["no-such-model-9", "/no/such/model.gguf", "gemma3:27b", ""])
def test_a_model_that_is_not_there_is_named_with_its_place(settings: Path, name: str, tmp_path: Path) -> None:
    elsewhere = {"HF_HOME": str(tmp_path), "HOME": str(tmp_path), "OLLAMA_MODELS": str(tmp_path)}
    settings.write_text(f'model = "{name}"\n')
    for arguments in (["run", "Tell me more"], ["chat"], ["serve"]):
        found = olivine(*arguments, **elsewhere)
        assert found.returncode == 1 and f"(from model in {settings}, line 1)" in found.stderr
    if name:
        found = olivine("run", "Tell me more", OLIVINE_MODEL=name, **elsewhere)
        assert "(from the variable OLIVINE_MODEL)" in found.stderr


def test_a_mistake_in_the_file_stops_a_command_and_not_its_help(settings: Path) -> None:
    settings.write_text("prot = 1\n")
    found = olivine("run", "hello")
    assert (found.returncode, found.stderr) == (
        1,
        f"Error: {settings}, line 1: there is no setting 'prot': did you mean port?\n",
    )
    assert olivine("--help").returncode == olivine("tokenize", "--help").returncode == 0


def test_a_setting_for_chats_does_not_refuse_a_continuation(settings: Path) -> None:
    settings.write_text('think = "off"\nhide-thinking = true\nmax-tokens = 3\ntemp = 0\n')
    assert olivine("run", "-p", "Once", "-t", "1").returncode == 0
    assert "need a chat" in olivine("run", "-p", "Once", "--think=off").stderr


def test_to_think_is_a_wish_as_a_setting_and_an_order_as_a_flag(settings: Path) -> None:
    """olivine-mini does not think."""
    settings.write_text('think = "high"\nmax-tokens = 3\ntemp = 0\nthreads = 1\n')
    for command in (["run", "Hello there"], ["chat"]):
        assert olivine(*command, text="Hello\n").returncode == 0
        assert olivine(*command, text="Hello\n", OLIVINE_THINK="low").returncode == 0
        found = olivine(*command, "--think=low", text="Hello\n")
        assert found.returncode == 1 and "this model does not think" in found.stderr


def test_one_value_is_a_list_where_the_option_takes_several(settings: Path) -> None:
    settings.write_text('api-key = ["first", "second"]\nthreads = 1\n')
    shown = olivine("config", "show", "bench").stdout
    assert ["threads", "1", "file,", "line", "2"] in [line.split() for line in shown.splitlines()]
    launched = olivine("config", "show", "launch")
    assert launched.returncode == 0 and "first" not in launched.stdout
