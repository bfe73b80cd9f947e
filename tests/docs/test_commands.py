"""Every command of README.md and docs/ is run, or, where it says why not, parsed."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import click
import pytest

from olivine.cli.habits import SPELLINGS
from olivine.cli.main import cli
from oracles.doc_files import provide, replaced
from oracles.doc_shell import Shell, shell, simple_commands
from oracles.documents import DATA, PAGES, ROOT, Block, Transcript, blocks, inline_commands, name_of

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

# Curl and the start of the server are run by tests/server/test_docs.py.
ELSEWHERE = {"server.md"}
# These do not end by themselves: tests/cli/test_serve.py and others run them.
ENDLESS = re.compile(r"olivine (serve|launch|chat --web)\b")
HARMLESS = {"olivine", "echo", "cat", "ls", "head", "grep"}
# Without a stand-in: the output is the same on every machine.
EXACT = re.compile(r"olivine (inspect|tokenize|config (set|unset|show|path)|run .*--show-prompt)\b")


def shell_blocks(page: Path) -> list[Block]:
    return [block for block in blocks(page) if block.language in ("sh", "console")]


def with_marks(*marks: str | None) -> list[Path]:
    """Pages that have such blocks with commands."""
    found = [page for page in PAGES if page.name not in ELSEWHERE]
    return [page for page in found if any(block.mark in marks for block in shell_blocks(page))]


@pytest.fixture
def page_shell(tmp_path: Path) -> Iterator[Shell]:
    with shell(tmp_path) as found:
        yield found


def check(transcript: Transcript, block: Block, shell: Shell, real: bool) -> None:
    run = shell.run(transcript)
    whole = run.stdout + run.stderr
    told = f"{block.where}: {transcript.command}\n{whole}"
    failed = transcript.output.startswith(("Error: ", "Usage: "))
    assert (run.returncode != 0) == failed, told
    if failed:
        assert _digits(run.stderr.strip()) == _digits(transcript.output.strip()), told
    elif EXACT.search(transcript.command) and not replaced(transcript.command, real):
        assert _squeezed(transcript.output) in (_squeezed(run.stdout), _squeezed(whole)), told
    elif transcript.output:
        assert run.stdout or run.stderr, told


def _squeezed(text: str) -> str:
    """Without the widths of a table's columns, which a longer name in another row changes."""
    return re.sub(" +", " ", text.strip())


def _digits(text: str) -> str:
    return re.sub(r"\d+", "0", text)


def perform(page: Path, shell: Shell, real: bool, slow: bool) -> int:
    count = 0
    for block in shell_blocks(page):
        if block.mark == "not run" or (block.mark == "slow" and not slow):
            continue
        provide(block.text, shell.folder, real)
        for transcript in block.transcripts():
            programs = {words[0] for words in simple_commands(transcript.command)}
            if programs <= HARMLESS and not ENDLESS.search(transcript.command):
                check(transcript, block, shell, real)
                count += 1
    return count


@pytest.mark.parametrize("page", with_marks(None), ids=name_of)
def test_commands_run(page: Path, page_shell: Shell) -> None:
    perform(page, page_shell, real=False, slow=False)


@pytest.mark.exhaustive
@pytest.mark.parametrize("page", with_marks(None, "slow"), ids=name_of)
def test_commands_run_on_the_models_that_they_name(page: Path, page_shell: Shell) -> None:
    perform(page, page_shell, real=True, slow=True)


# -- commands that are not run, and those of other programs


def options_of(command: click.Command) -> set[str]:
    found = {"-h", "--help"}
    for param in command.params:
        if isinstance(param, click.Option):
            found |= {*param.opts, *param.secondary_opts}
    return found


def check_olivine(words: list[str]) -> None:
    """The command and each of its options exist."""
    if words[1:3] == ["config", "show"] and words[3:]:  # of another command
        words = ["olivine", *words[3:]]
    context = click.Context(cli)
    if words[1].startswith("-"):
        assert words[1] in {"-h", "--help", "--version"}, words[1]
        return
    command = cli.get_command(context, words[1])
    assert command is not None, f"there is no command {words[1]}"
    rest = words[2 : words.index("--")] if "--" in words else words[2:]
    while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
        command = command.get_command(context, rest.pop(0))
        assert command is not None, " ".join(words)
    known = options_of(command) | set(SPELLINGS)
    for word in rest:
        option = word.partition("=")[0]
        if re.fullmatch(r"--?[a-zA-Z][\w-]*", option):
            assert option in known, f"{words[1]} has no option {option}"


def check_make(words: list[str]) -> None:
    targets = [word for word in words[1:] if "=" not in word]
    source = (ROOT / "Makefile").read_text()
    for target in targets:
        assert re.search(rf"^{re.escape(target)}:", source, re.MULTILINE), f"make has no target {target}"


@cache
def project() -> dict[str, dict[str, object]]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def check_pip(words: list[str]) -> None:
    assert words[1] in {"install", "download"}, words
    extras = project()["project"]["optional-dependencies"]
    assert isinstance(extras, dict)
    for word in words[2:]:
        for extra in re.findall(r"(?:olivine|\.)\[([\w,]+)\]", word):
            assert set(extra.split(",")) <= set(extras), f"there is no extra {extra}"


def check_script(words: list[str]) -> None:
    """`python FILE --option`: the file exists and has the option; `python -m MODULE` exists."""
    if words[1] == "-m":
        home = words[2].replace(".", "/")
        assert (
            words[2] in {"build", "venv", "pip"}
            or (ROOT / "src" / f"{home}.py").exists()
            or (ROOT / "src" / home / "__main__.py").exists()
        ), words
        return
    script = ROOT / words[1]
    assert script.exists(), f"there is no {words[1]}"
    strings = {
        node.value
        for node in ast.walk(ast.parse(script.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    for word in words[2:]:
        option = word.partition("=")[0]
        if option.startswith("-") and option != "-":
            assert option in strings, f"{words[1]} has no option {option}"


def check_pytest(words: list[str]) -> None:
    for word in words[1:]:
        if word.startswith("tests/"):
            assert (ROOT / word.partition("::")[0]).exists(), word


CHECKS: dict[str, Callable[[list[str]], None]] = {
    "olivine": check_olivine,
    "make": check_make,
    "pip": check_pip,
    "python": check_script,
    "python3": check_script,
    "pytest": check_pytest,
}
# Programs of others, which nothing here can check.
FOREIGN = {
    "curl",
    "unzip",
    "ffmpeg",
    "export",
    "git",
    "cd",
    "docker",
    "source",
    ".",
    "man",
    "eval",
    "sudo",
    "serve",
    "kubectl",
}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_exist(page: Path) -> None:
    """Those of blocks, run or not, and those that a sentence names."""
    for block in shell_blocks(page):
        for transcript in block.transcripts():
            for words in simple_commands(transcript.command):
                name = Path(words[0]).name
                if name in CHECKS:
                    CHECKS[name](words)
                else:
                    known = name in HARMLESS | FOREIGN
                    assert known, f"{block.where}: the tests do not know the program {words[0]}"
    for command in inline_commands(page):
        (words,) = simple_commands(command.replace("…", "")) or [["olivine", "--help"]]
        check_olivine([word for word in words if word])


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_block_says_what_it_is(page: Path) -> None:
    for block in blocks(page):
        assert block.language in {"sh", "console", "python", *DATA}, f"{block.where}: {block.language!r}"
        if block.language in DATA and page.parent.name != "reference":  # what the program itself says
            shown = re.search(r"^(\$ |olivine |make |pip |python )", block.text, re.MULTILINE)
            assert not shown, f"{block.where} has commands: it is a console or sh block"


def test_a_shell_knows_pipes_quotes_and_status(page_shell: Shell) -> None:
    done = page_shell.run(
        Transcript("echo 'a  b' | olivine tokenize olivine-mini | head -n 1; olivine --version", "")
    )
    assert done.returncode == 0 and "olivine, version" in done.stdout, done.stderr
    assert page_shell.run(Transcript("olivine run --no-such", "")).returncode == 2
