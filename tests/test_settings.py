"""The settings file: what it may say, and what is said of the rest."""

from __future__ import annotations

from pathlib import Path

import pytest

from olivine.errors import RequestError
from olivine.settings import COMMANDS, SETTINGS, Kind, load_settings, settings_path


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "config.toml"
    monkeypatch.setenv("OLIVINE_CONFIG", str(path))
    return path


def told(file: Path, text: str) -> str:
    file.write_text(text, encoding="utf-8")
    with pytest.raises(RequestError) as error:
        load_settings()
    return str(error.value).removeprefix(str(file))


def test_a_section_goes_before_the_keys_for_all_commands(file: Path) -> None:
    file.write_text("threads = 2\ntemp = 0.5\n\n[serve]\nthreads = 8\nport = 9000\n[run]\nmax_tokens = 5\n")
    settings = load_settings()

    def values(command: str) -> dict[str, object]:
        return {name: entry.value for name, entry in settings.of(command).items()}

    assert values("serve") == {"threads": 8, "port": 9000}
    assert values("chat") == {"threads": 2, "temp": 0.5}
    assert values("run") == {"threads": 2, "temp": 0.5, "max-tokens": 5}
    assert values("convert") == {"threads": 2}
    assert {name: entry.line for name, entry in settings.of("serve").items()} == {"threads": 5, "port": 6}


def test_without_a_file_there_are_no_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OLIVINE_CONFIG")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert settings_path() == tmp_path / "olivine" / "config.toml"
    assert load_settings().entries == ()


def test_a_file_that_is_named_must_be_there(file: Path) -> None:
    with pytest.raises(RequestError, match=r"OLIVINE_CONFIG names .*config.toml, and there is no such file"):
        load_settings()
    file.mkdir()
    with pytest.raises(RequestError, match=r"config.toml: the settings cannot be read: "):
        load_settings()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("thread = 4", ", line 1: there is no setting 'thread': did you mean threads?"),
        ("\ntemperature = 1", ", line 2: there is no setting 'temperature': did you mean temp?"),
        ("[serve]\nprot = 1", ", line 2: there is no setting 'prot' for serve: did you mean port?"),
        ("[serve]\ntemp = 1", ", line 2: there is no setting 'temp' for serve: it is one of chat and run"),
        ("zzzz = 1", ", line 1: there is no setting 'zzzz'; see: olivine config"),
        ("[serv]\n", ", line 1: there are no settings for [serv]: did you mean serve?"),
        ("serve.prot = 1", ", line 1: there is no setting 'prot' for serve: did you mean port?"),
        ("threads = '4'", ", line 1: threads must be a whole number, and is '4'"),
        ("threads = true", ", line 1: threads must be a whole number, and is true"),
        ("threads = 1.5", ", line 1: threads must be a whole number, and is 1.5"),
        ("temp = 'hot'", ", line 1: temp must be a number, and is 'hot'"),
        ("reproducible = 1", ", line 1: reproducible must be true or false, and is 1"),
        ("device = 1", ', line 1: device must be a text in quotes, such as "auto", and is 1'),
        ("cors = ['a', 1]", ', line 1: cors must be a text in quotes, or a list of such: ["one", "two"], '
         "and is ['a', 1]"),
        ("threads = ", ": the settings are no TOML: Invalid value (at end of document)"),
        ("a = 1\na = 2\n", ": the settings are no TOML: Cannot overwrite a value (at line 2, column 6)"),
        ('"\\u001b[31m" = 1', r": there is no setting '\\x1b[31m'; see: olivine config"),
    ],
)  # fmt: skip
def test_a_mistake_is_named_with_its_place(file: Path, text: str, message: str) -> None:
    assert told(file, text) == message


def test_a_file_of_bytes_is_refused(file: Path) -> None:
    file.write_bytes(b"threads = 1 # \xff")
    with pytest.raises(RequestError, match=r"are no UTF-8 text \(byte 14\)"):
        load_settings()
    file.write_text("[" * 100_000)
    with pytest.raises(RequestError, match="are no TOML"):
        load_settings()


def test_editors_of_windows_may_have_written_it(file: Path) -> None:
    file.write_bytes(b"\xef\xbb\xbfthreads = 3\r\n[serve]\r\nport = 1\r\n")
    assert {entry.key: entry.value for entry in load_settings().entries} == {"threads": 3, "serve.port": 1}


def test_every_kind_takes_its_own() -> None:
    values = {
        Kind.TEXT: "a",
        Kind.TEXTS: ["a", "b"],
        Kind.INTEGER: 1,
        Kind.NUMBER: 1.5,
        Kind.SWITCH: False,
        Kind.TIME: "10m",
    }
    assert {kind for kind in Kind if kind.takes(values[kind])} == {*Kind}
    assert Kind.TEXTS.takes("a") and Kind.TIME.takes(90) and Kind.NUMBER.takes(1)
    assert not Kind.TIME.takes(True) and not Kind.NUMBER.takes(True)


def test_variables_that_there_were_before_keep_their_names() -> None:
    names = {setting.variable for setting in SETTINGS.values()}
    assert {"OLIVINE_API_KEY", "OLIVINE_URL", "OLIVINE_LLAMA_PYTHON"} <= names
    assert {"chat", "run", "serve", "launch", "bench"} <= {*COMMANDS}
