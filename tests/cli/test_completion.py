"""Completion in shells: what is offered, by click and by a real bash."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from olivine.cli import options
from olivine.cli.completion import SHELLS, VARIABLE, BashComplete
from olivine.cli.main import COMMANDS, COMPLETION, cli
from oracles.commands import olivine


def offered(line: str, monkeypatch: pytest.MonkeyPatch, breaks: str = ":= ") -> list[str]:
    monkeypatch.setenv("COMP_LINE", line)
    monkeypatch.setenv("COMP_POINT", str(len(line.encode())))
    monkeypatch.setenv("COMP_WORDBREAKS", breaks)
    return BashComplete(cli, {}, "olivine", VARIABLE).complete().split()


def test_commands_options_and_choices_are_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    assert VARIABLE == COMPLETION
    assert offered("olivine ", monkeypatch) == [f"plain,{name}" for name in COMMANDS]
    assert offered("olivine ser", monkeypatch) == ["plain,serve"]
    assert offered("olivine serve --dev", monkeypatch) == ["plain,--device"]
    assert offered("olivine serve --device=c", monkeypatch) == ["plain,cpu", "plain,cuda"]
    assert offered("olivine config set serve.po", monkeypatch) == ["plain,serve.port"]


def test_models_are_offered_by_name_and_as_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "model_names", lambda: ["olivine-mini", "gemma3:1b", "gemma3:4b"])
    for command in ("run", "chat", "serve", "inspect", "bench", "serve other"):
        assert offered(f"olivine {command} oli", monkeypatch) == ["plain,olivine-mini", "file,oli"]
    assert offered("olivine run olivine-mini Why", monkeypatch) == ["file,Why"], "a question"


def test_names_are_offered_to_commands_that_take_no_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    assert offered("olivine pull smoll", monkeypatch)[0].startswith("plain,smollm")
    assert offered("olivine pull zzz", monkeypatch) == offered("olivine rm zzz", monkeypatch) == []
    assert offered("olivine show olivine-m", monkeypatch) == ["plain,olivine-mini"]


def test_bash_gets_what_comes_after_a_colon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "model_names", lambda: ["gemma3:1b", "gemma3:4b"])
    assert offered("olivine run gem", monkeypatch)[:2] == ["plain,gemma3:1b", "plain,gemma3:4b"]
    assert offered("olivine run gemma3:", monkeypatch)[:2] == ["plain,1b", "plain,4b"]
    assert offered("olivine run gemma3:4", monkeypatch)[:1] == ["plain,4b"]
    assert offered("olivine run gemma3:4", monkeypatch, breaks=" ")[:1] == ["plain,gemma3:4b"]


def test_the_line_ends_where_the_cursor_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMP_LINE", "olivine ser --port é")
    monkeypatch.setenv("COMP_POINT", "11")
    assert BashComplete(cli, {}, "olivine", VARIABLE).get_completion_args() == ([], "ser")


def test_completion_imports_nothing_heavy() -> None:
    script = (
        "import os, sys; from olivine.cli.main import main\n"
        f"os.environ.update({VARIABLE}='bash_complete', COMP_LINE=sys.argv[1], COMP_POINT='99')\n"
        "try: main()\nexcept SystemExit: print(*sys.modules)"
    )
    for line in ("olivine ", "olivine run ", "olivine serve --p"):
        run = subprocess.run([sys.executable, "-c", script, line], capture_output=True, text=True)
        assert run.returncode == 0, run.stderr
        assert not {"numpy", "rich", "torch", "huggingface_hub", "tokenizers"} & set(run.stdout.split())


def test_nothing_is_said_of_mistakes() -> None:
    found = olivine(
        COMP_LINE="olivine run -ngl 3 --d",
        COMP_POINT="22",
        COMP_WORDBREAKS=" ",
        **{VARIABLE: "bash_complete"},
    )
    assert (found.returncode, found.stdout, found.stderr) == (1, "", "")


@pytest.mark.parametrize("shell", SHELLS)
def test_every_shell_gets_a_script_that_it_can_read(shell: str, tmp_path: Path) -> None:
    found = olivine("completion", shell)
    assert found.returncode == 0 and f"{VARIABLE}={shell}_complete" in found.stdout
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    (tmp_path / "script").write_text(found.stdout)
    checked = subprocess.run([shell, "-n", str(tmp_path / "script")], capture_output=True, text=True)
    assert (checked.returncode, checked.stderr) == (0, "")


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_tab_in_a_real_bash(tmp_path: Path) -> None:
    pexpect = pytest.importorskip("pexpect")
    program = tmp_path / "olivine"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m olivine "$@"\n')
    program.chmod(0o755)
    (tmp_path / "script").write_text(olivine("completion", "bash").stdout)
    (tmp_path / "novel.gguf").write_text("")
    bash = pexpect.spawn("bash --norc --noprofile", cwd=str(tmp_path), encoding="utf-8", timeout=120)
    try:
        bash.sendline(
            "PS1='>'; bind 'set enable-bracketed-paste off'; PATH=$PWD:$PATH; . ./script; echo $((40+2))"
        )
        bash.expect_exact("42")
        bash.send("olivine doc\t--no-t\t")
        bash.expect_exact("doctor --no-tests ")
        bash.sendcontrol("u")
        bash.send("olivine serve nov\t")
        bash.expect_exact("novel.gguf ")
        bash.sendcontrol("u")
        bash.send("olivine chat olivine-m\t")
        bash.expect_exact("olivine-mini ")
    finally:
        bash.close(force=True)
