"""docs/server.md: every transcript in it is run, and must come out as it stands there.

What a model writes differs between machines, so texts, times and identifiers are not compared, nor how many
pieces a stream has.
"""

from __future__ import annotations

import ast
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from olivine import errors
from olivine.cli.serve import introduction
from olivine.llm import LLM
from olivine.server.models import ServedModel
from olivine.server.settings import Settings
from oracles.serving import serving

TEXT = (Path(__file__).parents[2] / "docs" / "server.md").read_text(encoding="utf-8")
URL = "http://127.0.0.1:8080"
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# Fields whose values differ between machines and runs, of any API.
VARIES = re.compile(
    r"(request_)?id|created(_at)?|content|text|response|thinking|arguments|partial_json|input|signature"
    r"|embeddings?|(eval|completion|output|total|cached)_?(tokens|count)|\w+_input_tokens"
    r"|(done|finish|stop)_reason|(cache|prompt|predicted)_(n|ms|per_second)"
    r"|\w+_(at|duration)|digest|size"
)


# Of errors that no client of a server gets.
ELSEWHERE = {"model_missing", "forked"}


class Transcript(NamedTuple):
    """A command and what it printed."""

    command: str
    output: str


def blocks(language: str) -> list[str]:
    return [text for found, text in BLOCK.findall(TEXT) if found == language]


def transcripts() -> list[Transcript]:
    found = []
    for block in blocks("console"):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            lines = part.splitlines()
            size = next(i for i in range(1, len(lines) + 1) if _complete("\n".join(lines[:i])))
            found.append(Transcript("\n".join(lines[:size]), "\n".join(lines[size:]).strip()))
    return found


def _complete(command: str) -> bool:
    """Whether a shell would not wait for another line."""
    try:
        shlex.split(command)
    except ValueError:
        return False
    return not command.endswith("\\")


def shape(value: Any) -> Any:
    """A value without what varies."""
    if isinstance(value, dict):
        return {
            name: "…" if VARIES.fullmatch(name) and not isinstance(item, dict) else shape(item)
            for name, item in value.items()
        }
    if isinstance(value, list):
        return [shape(item) for item in value]
    return value


CURLS = [each for each in transcripts() if each.command.startswith("curl ")]


@pytest.fixture(scope="module")
def keyed(mini: LLM) -> Iterator[str]:
    with serving([ServedModel("olivine-mini", mini)], Settings(api_keys=("secret",))) as url:
        yield url


def perform(command: str, base: str) -> httpx.Response:
    """What curl would get."""
    words = shlex.split(command)[1:]
    method, headers, body, url = "GET", {}, None, ""
    while words:
        match words.pop(0):
            case "-H":
                name, _, value = words.pop(0).partition(": ")
                headers[name] = value
            case "-d":
                method, body = "POST", words.pop(0)
                headers.setdefault("Content-Type", "application/x-www-form-urlencoded")  # as curl has it
            case "-X":
                method = words.pop(0)
            case "-s" | "-N" | "-sN" | "-i":
                pass
            case word:
                assert not word.startswith("-"), f"the test does not know curl's {word}"
                url = word.replace(URL, base)
    return httpx.request(method, url, headers=headers, content=body, timeout=240)


def events(text: str) -> list[Any]:
    """A stream's events, of any API; `…` where some are left out."""
    found: list[Any] = []
    for line in text.splitlines():
        line = line.removeprefix("data: ")
        if not line or line.startswith((":", "event: ")):
            continue
        found.append(shape(json.loads(line)) if line.startswith("{") else line)
    return found


@pytest.mark.parametrize("transcript", CURLS, ids=[each.command[:70] for each in CURLS])
def test_a_request_is_answered_as_the_text_says(transcript: Transcript, url: str, keyed: str) -> None:
    base = keyed if "secret" in transcript.command or "an API key" in transcript.output else url
    response = perform(transcript.command, base)
    told = transcript.output
    if " -i " in transcript.command:
        head, _, told = told.partition("\n\n")
        status, *headers = head.splitlines()
        assert status.split()[1] == str(response.status_code), response.text
        for header in headers:
            name, _, value = header.partition(": ")
            assert response.headers[name] == value
    if "…" not in told:
        try:
            expected = json.loads(told)
        except ValueError:
            assert told in response.text
            return
        assert shape(response.json()) == shape(expected)
        return
    if not told.startswith(("{", "data: ", "event: ")):  # lines of which some are left out
        assert all(line in response.text for line in told.splitlines() if line != "…")
        return
    before, after = (events(part) for part in told.split("…\n"))
    sent = events(response.text)
    assert len(sent) >= len(before) + len(after), "the text leaves nothing out"
    assert sent[: len(before)] == before and sent[len(sent) - len(after) :] == after


@pytest.mark.parametrize("code", blocks("python"))
def test_a_snippet_runs(code: str, url: str) -> None:
    run = subprocess.run(
        [sys.executable, "-c", code.replace(URL, url)], capture_output=True, text=True, timeout=120
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout


def test_the_start_is_as_the_text_says() -> None:
    (start,) = [each for each in transcripts() if each.command == "olivine serve"]
    first, rest = start.output.split("\n", 1)
    assert re.fullmatch(r"olivine-mini · cpu×\d+ \w+ · context 2,048", first)
    assert rest == introduction(URL, "olivine-mini")


def test_nothing_in_the_text_is_left_unchecked() -> None:
    known = ("curl ", "olivine serve", "olivine launch")
    assert all(each.command.startswith(known) for each in transcripts())
    assert {language for language, _ in BLOCK.findall(TEXT)} <= {"console", "python", "sh"}
    assert len(CURLS) >= 15


def codes() -> Iterator[str]:
    """The codes of errors, as they stand in the source."""
    yield from ("invalid_image", "invalid_audio", "invalid_video")  # made of the kind of a medium
    for path in Path(errors.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            given: list[ast.expr] = []
            match node:
                case ast.Call(func=ast.Name(id="_closing"), args=[_, _, code, *_]):
                    given = [code]
                case ast.Call(func=ast.Attribute(attr="_refuse"), args=[_, _, code]):
                    given = [code]
                case ast.Call(keywords=keywords):
                    given = [each.value for each in keywords if each.arg == "code"]
                case ast.Assign(targets=[ast.Name(id="code")], value=code):
                    given = [code]
            yield from (each.value for each in given if isinstance(each, ast.Constant) and each.value)


def test_the_table_of_errors_has_every_code() -> None:
    rows = re.findall(r"^\| [\d, –]+ \| (`[^|]+) \|", TEXT, re.MULTILINE)
    told = {code for row in rows for code in re.findall(r"`(\w+)`", row)}
    assert told == set(codes()) - ELSEWHERE
