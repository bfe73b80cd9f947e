"""`olivine rm`: deletes models from the Hugging Face cache."""

from __future__ import annotations

import difflib
import os
from typing import Any

import click

from olivine import box
from olivine.cli.options import complete_names, local_names
from olivine.cli.text import escaped, json_text, program, size
from olivine.errors import RequestError
from olivine.hub import local
from olivine.hub.names import parse
from olivine.hub.removal import remove, remove_parts


@click.command("rm", short_help="Delete a model that was downloaded.")
@click.argument(
    "models", nargs=-1, required=True, metavar="MODEL...", shell_complete=complete_names(local_names)
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
def command(models: tuple[str, ...], as_json: bool) -> None:
    """Delete MODEL from the cache of Hugging Face: its files, and nothing that other models use.

    The models of LM Studio and Ollama are theirs, and files of yours are yours: those are not deleted.
    """
    for text in models:
        removed = _remove(text)
        if as_json:
            click.echo(json_text(removed))
        else:
            click.echo(f"{escaped(removed['name'])} is deleted: {size(removed['bytes'])} is free again")


def _remove(text: str) -> dict[str, Any]:
    if os.path.lexists(text):
        raise RequestError(f"{text} is a file or folder of yours, which is yours to delete: rm {text}")
    if text == box.NAME:
        raise RequestError(f"{text} is a part of Olivine, and stays: pip uninstall olivine deletes both")
    name = parse(text)
    known = local.models()
    found = None if name is None else local.locate(name, known)
    if found is None:
        if name is not None and name.repo and (freed := remove_parts(name.repo)):
            return {"name": f"What was downloaded of {name.repo}", "bytes": freed}
        near = difflib.get_close_matches(text, [each.name for each in known], 3)
        told = f"; nearest: {', '.join(near)}" if near else ""
        raise RequestError(f"there is no model {text} on this machine ({program()} list){told}")
    if found.source == local.OLLAMA:
        raise RequestError(f"{text} belongs to Ollama, which deletes it: ollama rm {found.id}")
    if found.source != local.HUGGING_FACE:
        raise RequestError(f"{text} belongs to {found.source}: delete it there, or by hand: {found.path}")
    return {"name": found.name, "bytes": remove(found)}
