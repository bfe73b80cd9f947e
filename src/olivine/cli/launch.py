"""`olivine launch`: starts a coding agent or another client, told to use a server of Olivine."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path

import click

from olivine import box
from olivine.cli.clients import CLIENTS, NO_KEY, Client, Target
from olivine.cli.loading import unnamed_model
from olivine.cli.obtain import ModelCommand, resolved
from olivine.cli.options import ModelPath, ServerUrl
from olivine.cli.serve import require_packages
from olivine.cli.signals import Signaled, cleaning_up, handling
from olivine.cli.text import Status, clean
from olivine.errors import RequestError
from olivine.hub.local import title
from olivine.server.settings import Settings
from olivine.settings import load_settings

URL = f"http://{Settings.host}:{Settings.port}"
# The context of a server that is started here: agents begin with some ten thousand tokens of instructions.
CONTEXT = 32768
ANSWERS = 5.0  # seconds that a server has for the list of its models


@click.command("launch", cls=ModelCommand, short_help="Start a coding agent that uses a model of yours.")
@click.argument("client", type=click.Choice([*CLIENTS]), metavar="CLIENT")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[-- ARGUMENTS]...")
@click.option("-m", "--model", help="A model that the server has, or one to serve.")
@click.option(
    "--url",
    type=ServerUrl(),
    envvar="OLIVINE_URL",
    show_envvar=True,
    help=f"The server; by default {URL}, if it runs.",
)
@click.option(
    "--api-key", envvar="OLIVINE_API_KEY", show_envvar=True, default=NO_KEY, help="The server's key."
)
@click.option(
    "-c",
    "--context",
    type=click.IntRange(0),
    help=f"Context length of a server that is started; by default {CONTEXT}, or the model's if that is less; "
    "0: the model's own.",
)
@click.option("--print", "only_print", is_flag=True, help="Print what to type in a shell, and start nothing.")
def command(
    client: str,
    arguments: tuple[str, ...],
    model: str | None,
    url: str | None,
    api_key: str,
    context: int | None,
    only_print: bool,
) -> None:
    """Start CLIENT with the settings that make it use your model.

    \b
    olivine launch claude -m path/to/model.gguf
    olivine launch codex
    olivine launch aider -- --no-git

    CLIENT is claude, codex, aider, opencode, qwen, goose, open-webui or ollama. A server that runs is used;
    if there is none, one is started, and ended with CLIENT. Its model is that of -m, or of the settings
    (olivine config).
    """
    chosen = CLIENTS[client]
    if not only_print and shutil.which(chosen.program) is None:
        raise click.ClickException(f"{chosen.program} is not installed: {chosen.install}")
    is_file = model is not None and os.path.lexists(model)
    served = None if is_file and url is None else models_at(url or URL, api_key)
    if served is None and url is not None:
        raise click.ClickException(f"there is no server at {url}: start one with olivine serve")
    if served is not None:
        name = _chosen(model, served, url or URL)
        start(chosen, Target((url or URL).rstrip("/"), name, api_key), arguments, only_print=only_print)
        return
    if only_print:
        raise click.ClickException(f"there is no server at {URL}: start one with olivine serve")
    require_packages()
    wanted = unnamed_model() if model is None else ModelPath().convert(model, None, None)
    path = resolved(click.get_current_context(), wanted)
    if model is None and path == box.FILE:
        raise click.UsageError(f"{box.NAME} is too small for {client}: name a model with -m, as -m qwen3:4b.")
    with serving(path, context) as target:
        sys.exit(ended(chosen, target, arguments))


def models_at(url: str, key: str) -> list[str] | None:
    """The names of a server's models; None if there is no server."""
    request = urllib.request.Request(
        f"{url.rstrip('/')}/v1/models", headers={"Authorization": f"Bearer {key}"}
    )
    try:
        with urllib.request.urlopen(request, timeout=ANSWERS) as response:
            return [str(each["id"]) for each in json.load(response)["data"]]
    except urllib.error.HTTPError as error:
        if error.code == 401:
            told = f"the server at {url} wants a key: --api-key, or the variable OLIVINE_API_KEY"
        else:
            told = f"the server at {url} does not list its models: HTTP status {error.code}"
        raise RequestError(told) from None
    except ValueError as error:
        raise RequestError(f"{url}: {error}") from None
    except (OSError, KeyError, TypeError, HTTPException):
        return None


def _chosen(model: str | None, served: Sequence[str], url: str) -> str:
    if model is None and served:
        return served[0]
    if model is None or model not in served:
        there = ", ".join(served) or "none"
        raise RequestError(f"the server at {url} has no model {model or ''!r}; it has: {there}")
    return model


def start(client: Client, target: Target, arguments: Sequence[str], *, only_print: bool) -> None:
    """Becomes the client; or prints how to."""
    if only_print:
        click.echo("\n".join(client.lines(target)))
        return
    given = [client.program, *client.arguments(target), *arguments]
    environment = {**os.environ, **client.environment(target)}
    if os.name == "nt":  # there, a program cannot become another one
        sys.exit(subprocess.run(given, env=environment).returncode)
    os.execvpe(client.program, given, environment)


def ended(client: Client, target: Target, arguments: Sequence[str]) -> int:
    """Runs the client; gives back its exit status. Ctrl-C is for the client alone; another signal that ends
    this program, and so the server, ends the client too."""
    given = [client.program, *client.arguments(target), *arguments]
    with handling({signal.SIGINT: signal.SIG_IGN}):
        process = subprocess.Popen(
            given,
            env={**os.environ, **client.environment(target)},
            preexec_fn=None if os.name == "nt" else _interruptible,
        )
        try:
            status = process.wait()
        except Signaled as error:
            process.send_signal(error.number)
            raise
    return 128 - status if status < 0 else status


def _interruptible() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextmanager
def serving(model: Path, context: int | None) -> Iterator[Target]:
    """A server of this model, at a free port, while it is entered. What it prints is not shown, unless it
    fails."""
    options = ["--port", "0", "--context", str(_context(model) if context is None else context)]
    if "api-key" in load_settings().of("serve"):
        options += ["--api-key", NO_KEY]  # in place of the settings' own, which the client does not know
    with tempfile.TemporaryFile("w+", encoding="utf-8") as errors, Status() as status, cleaning_up():
        status.show(f"loading {title(model)} …")
        process = subprocess.Popen(
            [sys.executable, "-m", "olivine", "serve", "-m", str(model.absolute()), *options],
            stdout=subprocess.PIPE,
            stderr=errors,
            stdin=subprocess.DEVNULL,
            text=True,
            encoding="utf-8",
            start_new_session=True,  # Ctrl-C does not reach it
            env={name: value for name, value in os.environ.items() if name != "OLIVINE_API_KEY"},
        )
        try:
            url = _url_of(process)
            if url is None:
                process.wait()
                errors.seek(0)
                told = clean(errors.read()).removeprefix("Error: ").strip()
                raise click.ClickException(f"the server did not start: {told}")
            names = models_at(url, NO_KEY)
            status.clear()
            yield Target(url, (names or [model.stem])[0])
        finally:
            process.terminate()
            process.communicate()


def _url_of(process: subprocess.Popen[str]) -> str | None:
    """Where a server listens, from what it prints when it does."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("listening on "):
            return line.split()[2]
    return None


def _context(model: Path) -> int:
    from olivine.formats import open_checkpoint
    from olivine.loading import model_of

    return min(CONTEXT, model_of(open_checkpoint(model), CONTEXT).config.context)
