"""Small things that several commands print."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from olivine.cli.text import program


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program `olivine` in a folder of its own, below the current one."""
    monkeypatch.chdir(tmp_path)
    path = Path("my venv", "bin", "olivine")
    path.parent.mkdir(parents=True)
    path.touch(mode=0o755)
    return path


def test_a_program_that_the_shell_does_not_find_is_called_by_its_path(
    script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", [str(script)])
    monkeypatch.setenv("PATH", "/bin")
    assert program() == "'my venv/bin/olivine'"
    monkeypatch.setenv("PATH", f"{script.parent.absolute()}{os.pathsep}/bin")
    assert program() == "olivine"
    # Another one of that name is not this one.
    other = Path("other")
    other.mkdir()
    (other / "olivine").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(other.absolute()))
    assert program() == "'my venv/bin/olivine'"


def test_a_module_is_called_by_its_python(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/somewhere/olivine/__main__.py"])
    monkeypatch.setattr(sys, "executable", "/no/such/python3")
    assert program() == "/no/such/python3 -m olivine"
    monkeypatch.setattr(sys, "argv", ["/somewhere/pytest/__main__.py"])
    assert program() == "olivine"


def test_an_ascii_locale_loses_no_text(tmp_path: Path) -> None:
    plain = {name: value for name, value in os.environ.items() if name != "PYTHONIOENCODING"}
    schema = tmp_path / "é.json"
    schema.write_text('{"const": "à"}', encoding="utf-8")
    given = ["-n", "9", "-t", "1", "--json-schema", str(schema), "Tell café"]
    for more, answer in (["--show-prompt"], "Tell café"), ([], '"à"'):
        run = subprocess.run(
            [sys.executable, "-m", "olivine", "run", *given, *more],
            input=b"",
            capture_output=True,
            env={**plain, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
            timeout=120,
        )
        assert run.returncode == 0, run.stderr
        assert answer in run.stdout.decode(), run.stdout
