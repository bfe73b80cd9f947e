"""The Python in README.md and docs/ runs: the blocks of a page one after another, in one namespace."""

from __future__ import annotations

import ast
import asyncio
import doctest
import re
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import olivine
from olivine.engine import Stats
from olivine.loading import LoadKwargs
from oracles.doc_files import provide
from oracles.documents import PAGES, Block, blocks, name_of

# docs/server.md needs a server: tests/server/test_docs.py runs it.
ELSEWHERE = {"server.md"}
FAILURE = re.compile(r"^([\w.]+(?:Error|Exception)): (.*)", re.DOTALL)


def test_the_page_has_every_option_of_load_every_error_and_every_figure() -> None:
    (page,) = [each for each in PAGES if each.parts[-2:] == ("docs", "python.md")]
    text = page.read_text(encoding="utf-8")
    cells = [row for row in text.splitlines() if row.startswith("| `")]
    told = {name for row in cells for name in re.findall(r"`(\w+)`", row.split(" | ")[0])}
    wanted = {"download", *LoadKwargs.__annotations__, *(each.name for each in fields(Stats))}
    wanted |= {name for name in olivine.__all__ if name.endswith("Error")}
    assert wanted <= told


def python_blocks(page: Path) -> list[Block]:
    return [block for block in blocks(page) if block.language == "python"]


def with_marks(*marks: str | None) -> list[Path]:
    found = [page for page in PAGES if page.name not in ELSEWHERE]
    return [page for page in found if any(block.mark in marks for block in python_blocks(page))]


def shape(value: Any) -> Any:
    """What a literal and a value have in common on every model: types, and the sizes of tuples and lists."""
    if isinstance(value, tuple):
        return tuple(shape(each) for each in value)
    return type(value).__name__


def check_value(value: Any, told: str, where: str) -> None:
    try:
        expected = ast.literal_eval(told)
    except (ValueError, SyntaxError):
        name = re.match(r"<?(\w+)", told)  # of a repr: Usage(…), <LLM …>
        assert name is None or type(value).__name__ == name[1], f"{where}: {value!r}"
        return
    assert shape(value) == shape(expected), f"{where}: {value!r} is not like {told}"


def run_examples(block: Block, namespace: dict[str, Any]) -> None:
    """A block of `>>>` lines."""
    for example in doctest.DocTestParser().get_examples(block.text):
        where = f"{block.where}: {example.source.strip()}"
        shown: list[Any] = []
        failure = FAILURE.match(example.want)
        hook, sys.displayhook = sys.displayhook, lambda value, shown=shown: shown.append(value)
        try:
            exec(compile(example.source, where, "single"), namespace)
        except Exception as error:
            assert failure, f"{where}: {error!r}"
            kind = f"{type(error).__module__}.{type(error).__name__}".removeprefix("builtins.")
            assert kind == failure[1], where
            pattern = re.escape(failure[2].strip()).replace("…", ".*")
            assert re.fullmatch(re.sub(r"\d+", r"\\d+", pattern), str(error), re.DOTALL), f"{where}: {error}"
            continue
        finally:
            sys.displayhook = hook
        assert not failure, f"{where} raises nothing"
        values = [value for value in shown if value is not None]
        assert bool(values) == bool(example.want), f"{where}: {values}"
        if values:
            check_value(values[-1], example.want, where)


def perform(page: Path, marks: tuple[str | None, ...], real: bool) -> None:
    namespace: dict[str, Any] = {"__name__": "page"}
    for block in python_blocks(page):
        if block.mark not in marks:
            continue
        provide(block.text, Path.cwd(), real)
        if block.text.startswith(">>>"):
            run_examples(block, namespace)
        else:
            exec(compile(block.text, block.where, "exec"), namespace)
            main = namespace.pop("main", None)
            if main is not None:
                asyncio.run(main())
    for value in namespace.values():
        if hasattr(value, "close") and type(value).__name__ == "LLM":
            value.close()


@pytest.mark.parametrize("page", with_marks(None), ids=name_of)
def test_python_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    perform(page, (None,), real=False)


@pytest.mark.exhaustive
@pytest.mark.parametrize("page", with_marks(None, "slow"), ids=name_of)
def test_python_runs_on_the_models_that_it_names(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    perform(page, (None, "slow"), real=True)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_python_compiles(page: Path) -> None:
    """Also where it is not run."""
    for block in python_blocks(page):
        if block.text.startswith(">>>"):
            for example in doctest.DocTestParser().get_examples(block.text):
                compile(example.source, block.where, "single")
        else:
            compile(block.text, block.where, "exec")
