"""`olivine stop`: unloads models of a running server."""

from __future__ import annotations

import click

from olivine.cli.server_client import ask, loaded, server_options
from olivine.cli.text import escaped


@click.command("stop", short_help="Unload a model of a running server.")
@click.argument("models", nargs=-1, metavar="[MODEL]...")
@click.option("--all", "every", is_flag=True, help="All models that are loaded.")
@server_options
def command(models: tuple[str, ...], every: bool, url: str, api_key: str) -> None:
    """Unload MODEL from a running server, which frees its memory. The server goes on: a request that names
    the model loads it again. One that answers requests stays loaded.
    """
    if bool(models) == every:
        raise click.UsageError("name the models to unload, or --all of them.")
    there = [str(model["name"]) for model in loaded(url, api_key)]
    for name in there if every else models:
        found = ask(url, api_key, "/models/unload", {"model": name})
        was = "is unloaded" if found.get("id") in there else "was not loaded"
        click.echo(f"{escaped(str(found.get('id', name)))} {was}")
    if every and not there:
        click.echo("No model is loaded.")
