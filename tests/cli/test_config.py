"""`olivine config`: values and where they come from, and changes to the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from olivine import box
from olivine.settings import SETTINGS
from oracles.commands import olivine


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "config.toml"
    monkeypatch.setenv("OLIVINE_CONFIG", str(path))
    path.write_text('threads = 3\napi-key = "sesame"\n[serve]\nport = 9000\nthreads = 8\n')
    return path


def row(output: str, name: str) -> list[str]:
    return next(line.split() for line in output.splitlines() if line.split()[:1] == [name])


def test_every_setting_is_listed_with_its_source(settings: Path) -> None:
    found = olivine("config", OLIVINE_TEMP="0.5")
    assert found.returncode == 0
    assert found.stdout.startswith(f"settings file {settings}\n".replace("file ", "file  "))
    assert row(found.stdout, "threads") == ["threads", "3", "file,", "line", "1", "OLIVINE_THREADS"]
    assert row(found.stdout, "serve.threads")[1:5] == ["8", "file,", "line", "5"]
    assert row(found.stdout, "serve.port")[1:5] == ["9000", "file,", "line", "4"]
    assert row(found.stdout, "temp") == ["temp", "0.5", "environment", "OLIVINE_TEMP"]
    assert row(found.stdout, "kv-type")[1:3] == ["auto", "default"]
    assert row(found.stdout, "host")[1:3] == ["127.0.0.1", "default"]
    assert "sesame" not in found.stdout
    assert row(found.stdout, "api-key")[1] == "(hidden)"
    assert row(found.stdout, "OLIVINE_CONFIG")[1] == str(settings)


def test_json_has_the_same(settings: Path) -> None:
    found = json.loads(olivine("config", "--json", OLIVINE_API_KEY="sesame").stdout)
    assert found["file"] == str(settings) and found["exists"]
    rows: dict[Any, Any] = {(each["setting"], each["command"]): each for each in found["settings"]}
    assert {name for name, _ in rows} == {*SETTINGS}
    assert (rows["threads", None]["value"], rows["threads", None]["source"]) == (3, "file")
    assert (rows["port", "serve"]["value"], rows["port", "serve"]["line"]) == (9000, 4)
    assert rows["api-key", None]["value"] == "(hidden)"
    assert rows["seed", None]["value"] is None


def test_show_tells_what_a_call_would_use(settings: Path) -> None:
    found = olivine("config", "show", "serve", "--host", "0.0.0.0", "MODEL", OLIVINE_QUEUE="5").stdout
    assert row(found, "host")[1:] == ["0.0.0.0", "flag"]
    assert row(found, "queue")[1:] == ["5", "OLIVINE_QUEUE"]
    assert row(found, "port")[1:] == ["9000", "file,", "line", "4"]
    assert row(found, "grace")[1:] == ["10.0", "default"]


def test_show_tells_which_model_a_call_would_take(settings: Path) -> None:
    def model(*arguments: str, **variables: str) -> str:
        return " ".join(row(olivine("config", "show", *arguments, **variables).stdout, "model")[1:])

    for command in ("run", "chat", "serve"):
        assert model(command) == "olivine-mini default"
        assert model(command, OLIVINE_MODEL="other") == "other OLIVINE_MODEL"
    assert model("run", "Hello there") == "olivine-mini default"
    for given in (["chat", str(box.FILE)], ["serve", str(box.FILE)], ["run", str(box.FILE), "Hello"]):
        assert model(*given, OLIVINE_MODEL="other") == f"{box.FILE} flag"
    assert model("run", "-m", str(box.FILE), "Hello") == f"{box.FILE} flag"
    settings.write_text('threads = 1\nmodel = "mine"\n')
    assert model("chat") == "mine file, line 2"


def test_a_value_that_a_command_would_refuse_is_named(settings: Path) -> None:
    settings.write_text("threads = 1\n[serve]\nport = 99999\n")
    found = olivine("config")
    assert found.returncode == 1
    assert f"{settings}, line 3: serve.port: 99999 is not in the range 0<=x<=65535." in found.stderr


def test_set_and_unset_change_the_file(settings: Path) -> None:
    for arguments in (
        ["threads", "4"],
        ["run.temp", "0.5"],
        ["serve.cors", "a", "b"],
        ["reproducible", "on"],
    ):
        assert olivine("config", "set", *arguments).returncode == 0
    assert olivine("config", "unset", "serve.port").returncode == 0
    assert settings.read_text() == (
        'threads = 4\napi-key = "sesame"\nreproducible = true\n'
        '[serve]\ncors = ["a", "b"]\nthreads = 8\n\n[run]\ntemp = 0.5\n'
    )
    assert olivine("config", "path").stdout == f"{settings}\n"


def test_a_value_may_begin_with_a_minus(settings: Path) -> None:
    assert olivine("config", "set", "max-tokens", "-1").returncode == 0
    assert settings.read_text().startswith('threads = 3\napi-key = "sesame"\nmax-tokens = -1\n')
    assert "Usage:" in olivine("config", "set", "--help").stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["prot", "1"], "there is no setting 'prot': did you mean port?"),
        (["serve.prot", "1"], "there is no setting 'prot' for serve: did you mean port?"),
        (["serv.port", "1"], "there are no settings for 'serv'; commands with some: chat, run, serve, "),
        (["port", "x"], "port must be a whole number, and is 'x'"),
        (["port", "70000"], "70000 is not in the range 0<=x<=65535."),
        (["device", "tpu"], "'tpu' is not one of 'auto', 'cpu', 'cuda', 'reference'."),
        (["port", "1", "2"], "port takes one value."),
        (["top-p", "5"], "top_p must be above 0 and at most 1 (off), and is 5.0"),
        (["temp", "-1"], "temperature must be between 0 and 100, and is -1.0"),
        (["run.top-k", "-1"], "top_k must be 0 (off) or more, and is -1"),
        (["max-tokens", "0"], "0 is neither at least 1 nor -1"),
        (["think", "maybe"], "think is 'maybe'; known: on, off, minimal"),
        (["url", "localhost:8080"], "'localhost:8080' has no http:// before it."),
        (["model", ""], "the name of the model is empty."),
        (["reproducible", "perhaps"], "reproducible must be true or false, and is 'perhaps'"),
    ],
)
def test_a_value_that_no_command_takes_is_not_written(
    settings: Path, arguments: list[str], message: str
) -> None:
    before = settings.read_text()
    found = olivine("config", "set", *arguments)
    assert found.returncode != 0 and message in found.stderr
    assert settings.read_text() == before
