"""docs/reference/python.md: what `olivine` exports, from signatures, fields and docstrings in the source."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import sys
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import olivine

HEAD = """# Python API

What `import olivine` gives, from the signatures and docstrings of the source. [The Python API](../python.md)
explains it with examples. This page is made by `make docs`.
"""
ORDER = ("load", "LLM", "open_checkpoint")
# Options by name (`**options: Unpack[…]`), and whose they are.
OPTIONS = {
    "LoadKwargs": "olivine.loading",
    "GenerateKwargs": "olivine.options",
    "RenderKwargs": "olivine.conversation",
    "PromptKwargs": "olivine.conversation",
    "ChatKwargs": "olivine.conversation",
    "TranscribeKwargs": "olivine.transcript",
    "EmbedKwargs": "olivine.scoring",
    "ScoreKwargs": "olivine.scoring",
}
ITEM = re.compile(r"[a-z_0-9]+(, [a-z_0-9]+)*(:( |$)| \()")
Function = ast.FunctionDef | ast.AsyncFunctionDef


def page() -> str:
    names = [*ORDER, *(name for name in olivine.__all__ if name not in ORDER)]
    errors = [name for name in names if name.endswith("Error")]
    parts = [HEAD]
    for name in names:
        if name not in errors:
            parts += _object(name)
    parts.append("## Options")
    parts.append("The types of options that are given by name.")
    for name, module in OPTIONS.items():
        parts += _fields(name, importlib.import_module(module))
    parts += ["## Errors", "The codes of each are in [The Python API](../python.md#errors)."]
    parts.append("\n".join(f"- `olivine.{name}`{_base(name)}: {_first(name)}" for name in errors))
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def _object(name: str) -> list[str]:
    found = getattr(olivine, name)
    node = _find(found.__name__, _home(found))
    parts = [f"## {name}"]
    if isinstance(node, Function):
        return [*parts, _signature(node, "olivine."), _prose(ast.get_docstring(node))]
    assert isinstance(node, ast.ClassDef)
    fields = [each for each in node.body if isinstance(each, ast.AnnAssign) and _public(each.target)]
    parts.append(_prose(ast.get_docstring(node)))
    if fields:
        parts.append("```text\n" + "\n".join(ast.unparse(each) for each in fields) + "\n```")
    seen: set[str] = set()
    for each in node.body:
        if isinstance(each, Function) and not each.name.startswith("_") and each.name not in seen:
            overloaded = any("overload" in ast.unparse(mark) for mark in each.decorator_list)
            if overloaded or (ast.get_docstring(each) is None and each.name != "close"):
                continue
            seen.add(each.name)
            is_property = any(ast.unparse(mark).endswith("property") for mark in each.decorator_list)
            parts.append(f"### {name}.{each.name}")
            parts += [_property(each) if is_property else _signature(each), _prose(ast.get_docstring(each))]
    return [part for part in parts if part]


def _home(found: Any) -> ModuleType:
    return sys.modules[found.__module__]


@cache
def _tree(path: str) -> ast.Module:
    return ast.parse(Path(path).read_text(encoding="utf-8"))


def _find(name: str, module: ModuleType) -> ast.stmt:
    assert module.__file__ is not None
    for node in _tree(module.__file__).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
            return node
    raise LookupError(f"{name} is not defined in {module.__name__}")


def _public(target: ast.expr) -> bool:
    return isinstance(target, ast.Name) and not target.id.startswith("_")


def _signature(node: Function, before: str = "") -> str:
    arguments = re.sub(r"^(self|cls)(, )?", "", ast.unparse(node.args))
    result = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    word = "async def" if isinstance(node, ast.AsyncFunctionDef) else "def"
    return f"```text\n{word} {before}{node.name}({arguments}){result}\n```"


def _property(node: Function) -> str:
    return f"```text\n{node.name}: {ast.unparse(node.returns) if node.returns else 'Any'}\n```"


def _prose(text: str | None) -> str:
    """A docstring as Markdown: lines `name: …` are a list."""
    parts = []
    for paragraph in re.split(r"\n\s*\n", inspect.cleandoc(text or "")):
        lines = paragraph.splitlines()
        if not lines or not ITEM.match(lines[0]):
            parts.append(" ".join(paragraph.split()))
            continue
        items: list[str] = []
        for line in lines:
            if items and (line.startswith(" ") or not ITEM.match(line)):
                items[-1] += f" {line.strip()}"
            else:
                items.append(line)
        parts.append("\n".join(f"- {_item(each)}" for each in items))
    return "\n\n".join(part for part in parts if part)


def _item(text: str) -> str:
    names = re.match(r"[a-z_0-9]+(, [a-z_0-9]+)*", text)
    assert names is not None
    coded = ", ".join(f"`{name}`" for name in names[0].split(", "))
    return coded + text[names.end() :]


def _fields(name: str, module: ModuleType) -> list[str]:
    node = _find(name, module)
    assert isinstance(node, ast.ClassDef)
    bases = [ast.unparse(each) for each in node.bases if "TypedDict" not in ast.unparse(each)]
    fields = [ast.unparse(each) for each in node.body if isinstance(each, ast.AnnAssign)]
    also = f" Also the options of {' and '.join(f'`{base}`' for base in bases)}." if bases else ""
    told = _prose(ast.get_docstring(node)).replace(", for type checkers and editors", "")
    parts = [f"### {name}", told + also]
    return [*parts, "```text\n" + "\n".join(fields) + "\n```"] if fields else parts


def _base(name: str) -> str:
    base = getattr(olivine, name).__bases__[0].__name__
    return "" if base == "Exception" else f" (`{base}`)"


def _first(name: str) -> str:
    return " ".join((inspect.getdoc(getattr(olivine, name)) or "").split("\n\n")[0].split())
