"""What a signal leaves that ends or stops the program: a terminal with a cursor that echoes."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import pexpect
import pytest

from oracles import tiny

PROMPT = r">>> "
TALKS = r"\x1b\[\?25l(?:(?!\x1b\[\?)[^\n])*\n"  # the cursor is hidden, and the answer's second line begins
COOKED = "echo=True canonical=True"
SHELL = str(Path(__file__).with_name("shell.py"))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write("tiny-llama", "Q8_0", tmp_path_factory.mktemp("models"))


@pytest.fixture
def start(tmp_path: Path) -> Any:
    """Starts Olivine as a shell's job in a pseudo-terminal; ends it after the test."""
    running: list[pexpect.spawn] = []

    def spawn(*arguments: Any, **environment: str) -> pexpect.spawn:
        program = [SHELL, sys.executable, "-m", "olivine", *map(str, arguments)]
        child = pexpect.spawn(
            sys.executable,
            program,
            env={
                **os.environ,
                "TERM": "xterm-256color",
                "OMP_NUM_THREADS": "1",
                "OLIVINE_STATE": str(tmp_path / "state"),
                "PROMPT_TOOLKIT_NO_CPR": "1",
                **environment,
            },
            dimensions=(40, 100),
            encoding="utf-8",
            codec_errors="replace",
            timeout=240,
        )
        running.append(child)
        return child

    yield spawn
    for child in running:
        child.close(force=True)  # closes the terminal: what still runs in it gets SIGHUP


def foreground(child: pexpect.spawn) -> int:
    """The process that has the terminal."""
    job = os.tcgetpgrp(child.child_fd)
    assert job > 0, "kill(0) would be for the tests"
    return job


def cursor_shown(text: str) -> bool:
    return text.rfind("\x1b[?25h") >= text.rfind("\x1b[?25l")


LONG = ("--temp", "0", "--allow-repetition", "--context", "100000", "-t", "1")


@pytest.mark.parametrize(
    ("command", "number"),
    [
        ("chat", signal.SIGTERM),
        ("chat", signal.SIGHUP),
        ("chat", signal.SIGQUIT),
        ("ask", signal.SIGTERM),
        ("continue", signal.SIGTERM),
    ],
)
def test_an_answer_that_is_killed(start: Any, model: Path, command: str, number: int) -> None:
    if command == "chat":
        child = start("chat", model, *LONG)
        child.expect(PROMPT)
        child.send("Hello\r")
        child.expect(TALKS)
    elif command == "ask":
        child = start("run", model, "--system", "Be kind.", "Hello", *LONG)
        child.expect(TALKS)
    else:
        child = start("run", model, "-p", "Hello", "-n", "90000", *LONG)
        child.expect(r"\n.{20}")
    os.kill(foreground(child), number)
    child.expect(rf"\[ended -{int(number)} {COOKED}\]")
    assert cursor_shown(child.before) and child.before.rfind("\x1b[0m") >= child.before.rfind("\x1b[2m")
    assert "Traceback" not in child.before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_model_that_loads_is_stopped_and_killed(start: Any, model: Path, number: int) -> None:
    child = start("chat", model, *LONG)
    child.expect("loading tiny-llama.gguf")
    job = foreground(child)
    os.kill(job, signal.SIGTSTP)
    child.expect(rf"\[stopped {COOKED}\]")
    child.send("\n")
    os.kill(job, number)
    child.expect(rf"\[ended -{int(number)} {COOKED}\]")
    assert "Traceback" not in child.before


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_prompt_that_is_killed(start: Any, model: Path, number: int) -> None:
    child = start("chat", model, *LONG)
    child.expect(PROMPT)
    child.send("unsent")
    child.expect("unsent")
    os.kill(foreground(child), number)
    child.expect(rf"\[ended -{int(number)} {COOKED}\]")
    assert cursor_shown(child.before)
    assert "\x1b[?2004l" in child.before, "pasted text would come with marks around it"


def test_stopping_in_the_middle_of_an_answer(start: Any, model: Path) -> None:
    child = start("chat", model, *LONG)
    child.expect(PROMPT)
    child.send("Hello\r")
    child.expect(TALKS)
    for _ in range(2):
        child.send("\x1a")
        child.expect(rf"\[stopped {COOKED}\]")
        assert cursor_shown(child.before)
        child.send("\n")
        child.expect(TALKS)
    child.send("\x03")
    child.expect(r"stopped · [\d,]+ tok · ")
    child.expect(PROMPT)
    child.send("/quit\r")
    child.expect(rf"\[ended 0 {COOKED}\]")


@pytest.mark.parametrize("how", ["key", "signal"])
def test_stopping_at_the_prompt(start: Any, model: Path, how: str) -> None:
    child = start("chat", model, "-n", "2", "-t", "1")
    child.expect(PROMPT)
    child.send("Hel")
    child.expect("Hel")
    if how == "key":
        child.send("\x1a")
    else:
        os.kill(foreground(child), signal.SIGTSTP)
    child.expect(rf"\[stopped {COOKED}\]")
    assert cursor_shown(child.before)
    child.send("\n")
    child.expect(r">>> .*Hel")
    child.send("lo\r")
    child.expect(r"\b2 tok · ")
    child.expect(PROMPT)
    child.send("\x04")
    child.expect(rf"\[ended 0 {COOKED}\]")


def test_a_question_that_goes_on_in_the_background_leaves_the_terminal_alone(start: Any, model: Path) -> None:
    """Who changes the modes of somebody else's terminal is stopped once more, and never ends."""
    child = start("run", model, "--system", "Be kind.", "Hello", "-n", "4000", *LONG)
    child.expect(TALKS)
    job = foreground(child)
    child.send("\x1a")
    child.expect(rf"\[stopped {COOKED}\]")
    os.kill(job, signal.SIGCONT)
    child.expect(r"4,000 tok · ")
    child.send("\n")
    child.expect(rf"\[ended 0 {COOKED}\]")


def test_ctrl_c_ends_a_question_by_its_signal(start: Any, model: Path) -> None:
    child = start("run", model, "--system", "Be kind.", "Hello", *LONG)
    child.expect(TALKS)
    child.send("\x03")
    child.expect(r"stopped · [\d,]+ tok · ")
    child.expect(rf"\[ended -2 {COOKED}\]")
    assert cursor_shown(child.before)
