"""Files that options name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest

from olivine import RequestError
from olivine.cli.files import attachment, response_format

GBNF = 'root ::= "yes" | "no"'
LARK = 'start: "yes" | "no"'


@pytest.mark.parametrize("text", [GBNF, LARK, f"# a comment\n{LARK}\n"])
def test_a_grammar_is_a_text_or_a_file(tmp_path: Path, text: str) -> None:
    wanted = {"type": "grammar", "grammar": text}
    assert response_format(None, text, None) == wanted
    (tmp_path / "grammar").write_text(text)
    assert response_format(None, str(tmp_path / "grammar"), None) == wanted


@pytest.mark.parametrize(
    ("told", "complaint"),
    [
        ((None, "no/such/file.gbnf", None), "neither a file nor a grammar: 'no/such/file.gbnf'; GBNF has"),
        (("no/such/file.json", None, None), "or a file with one, and 'no/such/file.json' is none"),
        (("xml", None, None), "a format is json, a JSON schema, or a file"),
        (("{]", None, None), r"^this is no JSON \(line 1, column 2: Expecting property name"),
        (("broken.json", None, None), r"^broken.json: this is no JSON \(line 2, column 9: Expecting value"),
        (("list.json", None, None), r"^list.json: this is no JSON schema, which is an object: \[1\]$"),
    ],
)
def test_what_is_neither_is_refused(
    told: Any, complaint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("broken.json").write_text('{"type":\n        }')
    Path("list.json").write_text("[1]\n")
    with pytest.raises(RequestError, match=complaint):
        response_format(*told)


def test_a_schema_is_one_whatever_its_type() -> None:
    """The library would take a type that is none for one of its own formats."""
    assert response_format('{"type": "nope"}', None, None) == {
        "type": "json_schema",
        "schema": {"type": "nope"},
    }
    openai = '{"type": "json_schema", "json_schema": {"schema": {}}}'
    assert response_format(openai, None, None)["json_schema"] == {"schema": {}}


def test_one_format_at_a_time() -> None:
    assert response_format(None, None, None) is None
    assert response_format("json", None, None) == "json"
    assert response_format(None, None, "a+") == {"type": "regex", "regex": "a+"}
    with pytest.raises(click.UsageError, match="exclude each other"):
        response_format("json", None, "a+")


def test_a_file_stands_in_a_fence_that_it_does_not_close(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("```\ncode\n```\n")
    assert attachment(tmp_path / "a.md") == "a.md:\n````\n```\ncode\n```\n````"
    (tmp_path / "bad").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(RequestError, match="is not text"):
        attachment(tmp_path / "bad")
