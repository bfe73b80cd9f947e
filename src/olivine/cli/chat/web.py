"""`olivine chat --web`: the chat page in the browser, from a server that runs as long as this command."""

from __future__ import annotations

import errno
import os
import socket
import threading
import webbrowser
from pathlib import Path
from typing import Any

import click

from olivine.cli.defaults import on_command_line
from olivine.cli.serve import listen, require_packages, serve, url_of
from olivine.cli.text import echo_hints, echo_warnings, escaped
from olivine.server.settings import Settings

# What the page does not choose; the rest is set on the page.
TAKEN = {
    "model", "model_option", "mmproj", "web", "context", "device", "threads", "kv_type", "reproducible"
}  # fmt: skip


def refuse_others(context: click.Context) -> None:
    """Options that the page would not obey are no part of the command."""
    for param in context.command.params:
        if param.name not in TAKEN and on_command_line(context, param.name or ""):
            raise click.UsageError(
                f"{max(param.opts, key=len)} is for the terminal: with --web, set it on the page."
            )


def chat_in_browser(model: Path, mmproj: Path | None, options: dict[str, Any]) -> None:
    """Serves the model, opens the page, and stays until Ctrl-C."""
    require_packages()
    from olivine.server.sources import find_models

    settings = Settings(log_format="none")
    sockets = sockets_of(settings)
    url = url_of(settings, sockets[0].getsockname()[1])
    found = find_models([model], (), ())
    found[0].mmproj = mmproj

    def ready() -> None:
        for each in found:
            if (llm := each.loaded) is not None:
                echo_warnings(llm.warnings)
                echo_hints(llm.hints)
                click.echo(f"{escaped(each.name)} · {llm.device} · context {llm.context:,}")
        click.echo(f"the chat page is at {url}  (Ctrl-C ends it)")
        threading.Thread(target=show, args=(url,), daemon=True).start()

    serve(found, settings, sockets, {**options, "sequences": 8}, ready)


def sockets_of(settings: Settings) -> list[socket.socket]:
    """At the server's usual port: browsers keep conversations by address. If it is in use, at a free one."""
    from olivine.server import run

    try:
        return run.listen(settings.host, settings.port)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            return listen(settings)  # says what is wrong
    echo_warnings(
        [
            f"port {settings.port} is in use, so this page has another one. Browsers keep conversations by "
            f"address: those of port {settings.port} are not on this page"
        ]
    )
    return run.listen(settings.host, 0)


def show(url: str) -> None:
    """Opens the browser, unless it would be one in this terminal."""
    try:
        browser = webbrowser.get()
    except webbrowser.Error:
        return
    in_terminal = type(browser) is webbrowser.GenericBrowser and "BROWSER" not in os.environ
    if not in_terminal:
        browser.open(url)
