"""Texts from files and standard input, for questions, schemas, grammars and measurements. With limits."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import IO, Any

import click

from olivine.chat.messages import Media
from olivine.cli.text import size
from olivine.errors import RequestError

LARGEST = 16 << 20  # bytes of a text
LARGEST_FORMAT = 1 << 20
LARGEST_CORPUS = 1 << 28  # of a text that is only measured or cut into tokens


def read_stdin(largest: int = LARGEST) -> str:
    """Standard input. Bytes that are no UTF-8 become U+FFFD, as everywhere else."""
    return _bounded(sys.stdin.buffer, "standard input", largest).decode("utf-8", "replace")


def read_corpus(path: Path) -> str:
    """A text to measure with; - is standard input."""
    with click.open_file(str(path), "rb") as file:
        name = "standard input" if str(path) == "-" else str(path)
        return _bounded(file, name, LARGEST_CORPUS).decode("utf-8", "replace")


def _bounded(file: IO[bytes], name: str, largest: int) -> bytes:
    data = file.read(largest + 1)
    if len(data) > largest:
        raise RequestError(f"{name}: is longer than {size(largest)}")
    return data


def attachment(path: Path) -> str:
    """A file's text under its name, as it stands before a question."""
    text = read_text(path)
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{path.name}:\n{fence}\n{text.strip(chr(10))}\n{fence}"


def medium(path: Path) -> Media:
    """An image, a sound or a video as a part of a message."""
    from olivine.media import kind_of

    if not path.is_file():
        told = "this is a folder: name the files in it" if path.is_dir() else "there is no such file"
        raise RequestError(f"{path}: {told}")
    kind = kind_of(path)
    if kind is None:
        raise RequestError(f"{path}: this is no image, sound or video that is known")
    return Media(kind, str(path.resolve()))


def read_text(path: Path, largest: int = LARGEST) -> str:
    try:
        with path.open("rb") as file:
            data = _bounded(file, str(path), largest)
    except OSError as error:
        raise RequestError(f"{path}: cannot be read: {error.strerror}") from None
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise RequestError(f"{path}: is not text; images, sounds and videos are attached with -a") from None


def response_format(json_schema: str | None, grammar: str | None, regex: str | None) -> Any:
    """The library's `response_format` from the options of that name; None if there are none."""
    if sum(each is not None for each in (json_schema, grammar, regex)) > 1:
        raise click.UsageError("--json-schema (--format), --grammar and --regex exclude each other.")
    if json_schema is not None:
        return schema(json_schema)
    if grammar is not None:
        return {"type": "grammar", "grammar": _grammar(grammar)}
    return None if regex is None else {"type": "regex", "regex": regex}


def schema(told: str) -> Any:
    """A schema from JSON, or from a file that holds it; "json" is any JSON."""
    if told == "json":
        return told
    if told.lstrip().startswith("{"):
        text = told
    elif os.path.exists(told):
        text = read_text(Path(told), LARGEST_FORMAT)
    else:
        raise RequestError(f"a format is json, a JSON schema, or a file with one, and {told[:60]!r} is none")
    where = "" if text is told else f"{told}: "
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise RequestError(f"{where}this is no JSON ({place}: {error.msg})") from None
    except (ValueError, RecursionError) as error:
        raise RequestError(f"{where}this is no JSON that can be read: {error}") from None
    if not isinstance(found, dict):
        raise RequestError(f"{where}this is no JSON schema, which is an object: {text.strip()[:60]}")
    if found.get("type") in ("json_object", "json_schema"):  # as OpenAI's API has it
        return found
    return {"type": "json_schema", "schema": found}


def _grammar(told: str) -> str:
    """A grammar as it is written, or from a file that holds it."""
    if os.path.exists(told):
        return read_text(Path(told), LARGEST_FORMAT)
    if "::=" in told or re.search(r"^\s*start\s*:", told, re.MULTILINE):
        return told
    raise RequestError(
        f"--grammar is neither a file nor a grammar: {told[:60]!r}; "
        'GBNF has a rule such as root ::= "yes" | "no", Lark one such as start: "yes" | "no"'
    )
