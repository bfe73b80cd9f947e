"""`olivine show`: what is known of a model, on this machine or not."""

from __future__ import annotations

from typing import Any

import click

from olivine import box
from olivine.cli.list import capabilities, read_facts
from olivine.cli.options import complete_names, model_names
from olivine.cli.text import count, echo_facts, json_text, program, size
from olivine.errors import RequestError
from olivine.hub import find, local
from olivine.hub.aliases import Alias
from olivine.hub.names import parse


@click.command("show", short_help="Show what is known of a model.")
@click.argument("model", shell_complete=complete_names(model_names))
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
def command(model: str, as_json: bool) -> None:
    """Show what is known of MODEL: where it is, its size and type, what it can do, the memory it takes, and
    its license. One that is not on this machine is shown by what its short name tells; nothing is downloaded.
    `olivine inspect` has all that is in a model's files.
    """
    if not model:  # not the folder that is current
        raise RequestError("the name of the model is empty")
    name = parse(model)
    known = local.models()
    found = None if name is None else local.locate(name, known)
    ours = False  # of no repository: a path, or the package's own
    alias = name.alias if name is not None else None
    if found is None and alias is None:
        path = find(model)  # an error with the nearest names, or a path
        if name is not None and not path.exists():
            raise RequestError(f"{model} is not on this machine: {program()} pull {model}")
        where, called = ("the package", box.NAME) if path == box.FILE else ("a path", path.name)
        found = local.LocalModel(where, called, "", path, (path,))
        ours = True
    facts = _here(found) if found is not None else _there(alias)
    if ours:
        facts["repository"] = None
    if alias is not None:
        facts |= {"license": alias.license, "parameters": alias.parameters}
    if as_json:
        click.echo(json_text(facts, indent=2))
    else:
        echo_facts(_lines(facts))


def _here(model: local.LocalModel) -> dict[str, Any]:
    facts = read_facts(model)
    return {
        "name": model.name,
        "here": True,
        "where": model.source,
        "repository": model.repo,
        "path": str(model.path),
        "mmproj": None if model.mmproj is None else str(model.mmproj),
        "bytes": facts.file_bytes if model.path.is_dir() else model.bytes,
        "type": model.type or next(iter(facts.types), ""),
        "architecture": facts.architecture,
        "parameters": count(facts.parameters),
        "context": facts.train_context,
        "can": list(capabilities(facts)),
        "problem": facts.problem,
        "license": None,
    }


def _there(alias: Alias | None) -> dict[str, Any]:
    assert alias is not None
    return {
        "name": alias.name,
        "here": False,
        "where": None,
        "repository": alias.repo,
        "path": None,
        "mmproj": None,
        "bytes": alias.all_bytes,
        "type": alias.type,
        "architecture": None,
        "context": alias.context,
        "can": list(alias.can),
        "problem": None,
    }


def _lines(facts: dict[str, Any]) -> list[tuple[str, str]]:
    approximately = "" if facts["here"] else "about "
    where = (
        f"{facts['where']}: {facts['path']}"
        if facts["here"]
        else f"not here: {program()} pull {facts['name']}"
    )
    lines = [("name", facts["name"]), ("in", where), ("repository", facts["repository"] or "")]
    if facts["mmproj"]:
        lines.append(("mmproj", facts["mmproj"]))
    lines += [
        ("type", f"{facts['type']}, {approximately}{size(facts['bytes'])}"),
        ("parameters", facts["parameters"]),
        ("context", f"{facts['context']:,} tokens" if facts["context"] else ""),
        ("can", ", ".join(["text", *facts["can"]])),
        ("license", facts["license"] or ""),
        ("problem", facts["problem"] or ""),
    ]
    return [(label, value) for label, value in lines if value]
