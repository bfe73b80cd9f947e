"""`olivine pull`: downloads models."""

from __future__ import annotations

from typing import Any

import click

from olivine import box
from olivine.cli.obtain import download, look_up
from olivine.cli.options import complete_names, hub_names
from olivine.cli.text import escaped, json_text, program, size
from olivine.errors import RequestError
from olivine.hub.names import Name, nearest, parse


@click.command("pull", short_help="Download a model.")
@click.argument(
    "models", nargs=-1, required=True, metavar="MODEL...", shell_complete=complete_names(hub_names)
)
@click.option("--dry-run", is_flag=True, help="Say what would be downloaded, and stop.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
def command(models: tuple[str, ...], dry_run: bool, as_json: bool) -> None:
    """Download MODEL into the cache of Hugging Face, or what is missing of it.

    \b
    olivine pull gemma3:1b
    olivine pull ggml-org/gemma-3-4b-it-GGUF:Q8_0
    olivine pull HuggingFaceTB/SmolLM2-135M-Instruct

    MODEL is a short name (olivine list --available), or a repository of Hugging Face. Of a repository with
    GGUF files one quantization is taken, Q4_K_M if none is named, with its mmproj file. Ctrl-C keeps what is
    there; the same command goes on with it. The hashes of all files are checked.

    HF_TOKEN gives access to gated repositories, HF_HOME or HF_HUB_CACHE is where files go, HF_ENDPOINT a
    mirror of the hub.
    """
    for text in models:
        _pull(hub_name(text), dry_run=dry_run, as_json=as_json)


def hub_name(text: str) -> Name:
    """A name that the hub may know."""
    if text == box.NAME:
        raise RequestError(f"{text} is a part of Olivine, and here: there is nothing to download")
    name = parse(text)
    if name is None or not name.repo:
        near = nearest(text)
        told = f"; nearest: {', '.join(near)}" if near else ""
        raise RequestError(
            f"{text} is no name of a model: a short name ({program()} list --available), or "
            f"publisher/repository of Hugging Face{told}"
        )
    return name


def _pull(name: Name, *, dry_run: bool, as_json: bool) -> None:
    remote = look_up(name)
    missing = remote.missing_bytes
    if not dry_run:
        path = download(remote, name)
    facts: dict[str, Any] = {
        "name": name.text,
        "repository": remote.repo,
        "commit": remote.commit,
        "type": remote.tag or "safetensors",
        "license": remote.license,
        "bytes": remote.bytes,
        "downloaded": 0 if dry_run else missing,
        "missing": missing if dry_run else 0,
        "path": str(remote.path),
        "files": [{"path": file.path, "bytes": file.bytes, "hash": file.blob} for file in remote.files],
    }
    if as_json:
        click.echo(json_text(facts, indent=2))
    elif dry_run:
        click.echo(
            escaped(f"{remote.repo}, {facts['type']}: {size(missing)} of {size(remote.bytes)} is missing")
        )
        for file in remote.files:
            click.echo(escaped(f"  {file.path}  {size(file.bytes)}"))
    else:
        what = "is here and complete" if not missing else "is here now"
        click.echo(escaped(f"{name.text} {what}: {path} ({size(remote.bytes)})"))
