"""`olivine ps`: the models that a running server has loaded."""

from __future__ import annotations

from datetime import datetime, timezone

import click

from olivine.cli.server_client import loaded, server_options
from olivine.cli.text import echo_table, json_text, size


@click.command("ps", short_help="Show which models a running server has loaded.")
@server_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
def command(url: str, api_key: str, as_json: bool) -> None:
    """Show which models a running server has loaded: how large they are with their KV cache, where they run,
    the context that each request has, and when they are unloaded."""
    found = loaded(url, api_key)
    if as_json:
        click.echo(json_text(found, indent=2))
        return
    if not found:
        click.echo("No model is loaded.")
        return
    rows = [
        (
            str(model["name"]),
            str((model.get("details") or {}).get("quantization_level", "")),
            size(model.get("size", 0)),
            "GPU" if model.get("size_vram") else "CPU",
            f"{model.get('context_length', 0):,}",
            _until(str(model.get("expires_at", ""))),
        )
        for model in found
    ]
    echo_table(("name", "type", "memory", "device", "context", "until"), rows, right=frozenset({2, 4}))


def _until(expires: str) -> str:
    """How long a model stays loaded if nobody uses it."""
    try:
        left = (
            datetime.fromisoformat(expires.replace("Z", "+00:00")) - datetime.now(timezone.utc)
        ).total_seconds()
    except ValueError:
        return ""
    if left > 365 * 86400:
        return "it is stopped"
    return f"in {left / 60:.0f} min" if left >= 90 else f"in {max(0, left):.0f} s"
