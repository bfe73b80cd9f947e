"""The Dockerfiles, as far as can be told without Docker: the files that they copy, the commands they run."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from olivine.cli.serve import command as serve
from olivine.server.app import ENDPOINTS

ROOT = Path(__file__).parents[2]


@pytest.fixture(params=["Dockerfile", "Dockerfile.cuda"])
def instructions(request: pytest.FixtureRequest) -> list[tuple[str, str]]:
    """Pairs such as ("RUN", "apt-get update …")."""
    text = re.sub(r"^#.*\n", "", (ROOT / request.param).read_text(), flags=re.MULTILINE)
    lines = [line for line in text.replace("\\\n", " ").splitlines() if line.strip()]
    return [(line.split(None, 1)[0], line.split(None, 1)[1]) for line in lines]


def only(instructions: list[tuple[str, str]], name: str) -> str:
    (found,) = (rest for each, rest in instructions if each == name)
    return found


def test_what_is_copied_is_there_and_is_not_ignored(instructions: list[tuple[str, str]]) -> None:
    permitted = [
        line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")
    ]
    copied = [source for name, rest in instructions if name == "COPY" for source in rest.split()[:-1]]
    own = [source for source in copied if not source.startswith(("--from", "/"))]
    assert "native" in own and "src" in own
    for source in own:
        assert (ROOT / source).exists() and source in permitted, source


def test_what_the_build_needs_is_copied(instructions: list[tuple[str, str]]) -> None:
    metadata = (ROOT / "pyproject.toml").read_text()
    needed = re.findall(r'"([^"]+)"', re.search(r"^license-files = (.*)$", metadata, re.M)[1])  # type: ignore[index]
    copied = {source for name, rest in instructions if name == "COPY" for source in rest.split()[:-1]}
    for path in [*needed, "README.md", "pyproject.toml", "hatch_build.py"]:
        assert any(path == source or path.startswith(f"{source}/") for source in copied), path
    extras = re.search(r"\.whl\)\[([\w,]+)\]", " ".join(rest for _, rest in instructions))
    assert extras is not None
    for extra in extras[1].split(","):
        assert re.search(rf"^{extra} = \[", metadata, re.M), extra


def test_commands_parse_and_the_server_is_not_root(instructions: list[tuple[str, str]]) -> None:
    for name, rest in instructions:
        if name == "RUN":
            subprocess.run(["sh", "-n", "-c", rest], check=True)
    names = [name for name, _ in instructions]
    assert only(instructions, "USER") == "olivine"
    assert names.index("USER") > max(i for i, name in enumerate(names) if name == "RUN")


def started(instructions: list[tuple[str, str]], folder: Path, **environment: str) -> Any:
    """What the container would start, with an `olivine` that prints its arguments."""
    fake = folder / "olivine"
    fake.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    fake.chmod(0o755)
    command = [*json.loads(only(instructions, "ENTRYPOINT")), *json.loads(only(instructions, "CMD"))]
    return subprocess.run(command, env={"PATH": str(folder), **environment}, capture_output=True, text=True)


def test_it_does_not_start_without_a_key(instructions: list[tuple[str, str]], tmp_path: Path) -> None:
    for environment in ({}, {"OLIVINE_API_KEY": ""}):
        run = started(instructions, tmp_path, **environment)
        assert run.returncode != 0 and run.stdout == ""
        assert "OLIVINE_API_KEY" in run.stderr and "is not set" in run.stderr


def test_it_starts_the_server_for_all_networks(instructions: list[tuple[str, str]], tmp_path: Path) -> None:
    run = started(instructions, tmp_path, OLIVINE_API_KEY="secret")
    assert run.returncode == 0 and "secret" not in run.stdout
    assert run.stdout.splitlines() == ["serve", "--host", "0.0.0.0", "--port", "8080", "olivine-mini"]
    known = {option for parameter in serve.params for option in parameter.opts}
    assert {"--host", "--port"} <= known
    assert only(instructions, "EXPOSE") == "8080"


def test_the_health_check_asks_where_the_server_answers(instructions: list[tuple[str, str]]) -> None:
    check = only(instructions, "HEALTHCHECK")
    command = json.loads(check[check.index("[") :])
    compile(command[-1], "HEALTHCHECK", "exec")
    assert "http://127.0.0.1:8080/health'" in command[-1]
    assert [each.public for each in ENDPOINTS if each.path.endswith("/health")] == [True], "it needs no key"
    assert all(re.fullmatch(r"--[\w-]+=\d+[sm]", each) for each in shlex.split(check[: check.index("CMD")]))
