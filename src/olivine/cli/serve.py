"""`olivine serve`: models over HTTP."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import fields
from importlib.util import find_spec
from math import isfinite, nan
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from olivine.cli.clients import CLIENTS, KEY_VARIABLE, NO_KEY, Target, export, openai_sdk
from olivine.cli.loading import tell_of_ranks, unnamed_model
from olivine.cli.obtain import resolved
from olivine.cli.options import Decorator, ModelPath, model_options, parallel_options
from olivine.cli.server_habits import FamiliarServer
from olivine.cli.text import Status, echo_hints, echo_warnings, escaped
from olivine.errors import RequestError
from olivine.server.settings import Settings

if TYPE_CHECKING:
    from olivine.loading import LoadKwargs
    from olivine.server.models import ServedModel
    from olivine.server.run import Ended

PACKAGES = ("starlette", "uvicorn", "pydantic", "prometheus_client")  # of the extra `serve`
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


class Duration(click.ParamType):  # type: ignore[type-arg]
    """Seconds, or a number with a unit: 90, 90s, 10m, 2h; 0 and less: never."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float | None:
        text = str(value).strip().lower()
        unit = _UNITS.get(text[-1:], 0.0)
        try:
            seconds = float(text[:-1]) * unit if unit else float(text)
        except ValueError:
            seconds = nan
        if not isfinite(seconds):
            self.fail(f"{value!r} is no time: 90, 10m, 2h.", param, ctx)
        return seconds if seconds > 0 else None


def setting(*names: str, **attributes: Any) -> Decorator:
    """An option for a field of `Settings`: the parameter has the field's name, the default is the field's."""
    field = next((name for name in names if not name.startswith("-")), names[-1].strip("-").replace("-", "_"))
    default = next(each.default for each in fields(Settings) if each.name == field)
    attributes.setdefault("show_default", default not in (None, (), ""))
    return click.option(*names, default=default, **attributes)


# An option for each field of `Settings`, in its order.
_SETTINGS: list[Decorator] = [
    setting("--host", help="Address to listen on; 0.0.0.0 is all networks of this machine."),
    setting("--port", type=click.IntRange(0, 65535), help="Port to listen on; 0 takes a free one."),
    setting(
        "--api-key",
        "api_keys",
        multiple=True,
        envvar="OLIVINE_API_KEY",
        show_envvar=True,
        help="Key that requests must have; can be repeated.",
    ),
    setting(
        "--cors",
        metavar="ORIGIN",
        multiple=True,
        help="Web pages that may use the server, such as http://localhost:3000; can be repeated.",
    ),
    setting(
        "--allowed-host",
        "allowed_hosts",
        metavar="NAME",
        multiple=True,
        help="Name under which the server is reached, besides its address; can be repeated.",
    ),
    setting("--log-format", type=click.Choice(["text", "json", "none"]), help="Form of the log of requests."),
    setting("--log-prompts", is_flag=True, help="Log what requests say, too."),
    setting("--max-body", type=click.IntRange(1), help="The most bytes of a request."),
    setting(
        "--max-timeout",
        type=click.FloatRange(0, min_open=True),
        help="Seconds that a request may take, waiting and running.",
    ),
    setting("--priorities", is_flag=True, help="Let requests go before others, by a priority below 0."),
    setting("--body-timeout", type=click.FloatRange(0.1), help="Seconds in which a request has to arrive."),
    setting("--max-connections", type=click.IntRange(1), help="Connections; beyond, idle ones are closed."),
    setting("--keep-alive", type=click.FloatRange(1), help="Seconds that a connection may be idle."),
    setting("--ping", type=click.FloatRange(0.1), help="Seconds of silence after which a stream is pinged."),
    setting(
        "--resume-timeout",
        type=click.FloatRange(0),
        help="Seconds that a stream waits for its client to come back, if asked to.",
    ),
    setting(
        "--idle-unload",
        type=Duration(),
        metavar="TIME",
        help="Unload a model after so long without a request: 90, 10m, 2h. Default: never.",
    ),
    setting(
        "--load-wait", type=click.FloatRange(0), help="Seconds to wait for busy models if memory is short."
    ),
    setting(
        "--stall", type=click.FloatRange(0), help="Seconds without a step until /health reports a failure."
    ),
    setting("--show-paths", is_flag=True, help="Let clients see where the models' files are."),
    setting("--grace", type=click.FloatRange(0), help="Seconds to finish running answers when stopped."),
    setting(
        "--pull/--no-pull",
        "pull",
        help="Let clients download models, by Ollama's /api/pull. Default: if only this machine can ask.",
    ),
]


def settings_options(function: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(_SETTINGS):
        function = option(function)
    return function


@click.command("serve", cls=FamiliarServer, short_help="Serve models over HTTP.")
@click.argument("models", type=ModelPath(), nargs=-1, metavar="[MODEL]...")
@click.option("-m", "--model", "--models-dir", "more_models", type=ModelPath(), multiple=True, hidden=True)
@click.option(
    "-a", "--alias", "aliases", multiple=True, help="Name of a model for clients, in the order of the models."
)
@click.option(
    "--pin", "pinned", multiple=True, metavar="NAME", help="Model that stays loaded; can be repeated."
)
@click.option(
    "-c",
    "--context",
    "--ctx-size",
    type=click.IntRange(0),
    help="Context length in tokens: prompt and answer of each request; 0: the model's own.",
)
@click.option(
    "--parallel",
    "--sequences",
    "sequences",
    type=click.IntRange(1, 4096),
    default=8,
    show_default=True,
    help="Requests that run at the same time; more wait.",
)
@click.option(
    "--queue",
    type=click.IntRange(1),
    default=1024,
    show_default=True,
    help="Requests that may wait; more are answered with 429.",
)
@click.option("--queue-per-client", type=click.IntRange(1), help="Requests of one client that may wait.")
@model_options
@parallel_options
@click.option(
    "--replicas",
    metavar="N",
    help="Serve so many replicas of the model, by Ray Serve; 1-4: as many as the requests need.",
)
@click.option(
    "--ray",
    metavar="[ADDRESS]",
    help="Serve on a Ray cluster.  [default: the one of RAY_ADDRESS or of this machine, or a new one]",
)
@settings_options
def command(
    models: tuple[Path, ...],
    more_models: tuple[Path, ...],
    aliases: tuple[str, ...],
    pinned: tuple[str, ...],
    context: int | None,
    sequences: int,
    queue: int,
    queue_per_client: int | None,
    mmproj: Path | None,
    device: str,
    threads: int | None,
    kv_type: str,
    reproducible: bool,
    tensor_parallel: int,
    pipeline_parallel: int,
    nodes: int | None,
    rank_address: str | None,
    rank_key: str | None,
    replicas: str | None,
    ray: str | None,
    **settings: Any,
) -> None:
    """Serve models over HTTP, with the APIs of OpenAI, Anthropic and Ollama.

    \b
    olivine serve
    olivine serve MODEL --port 8000 --parallel 16
    olivine serve MODEL --host 0.0.0.0 --api-key "$KEY"
    olivine serve FOLDER --idle-unload 10m
    olivine serve MODEL --replicas 2

    A single MODEL is loaded at once. Of several, or of a FOLDER with models in it, requests choose one by
    its name, which is that of its file. It is loaded when it is first asked for; where memory is short, the
    one that was idle for longest is unloaded.

    Without MODEL, the one of the settings is served (olivine config), or olivine-mini, a tiny model that
    comes with Olivine and tells stories. Ctrl-C stops the server: running answers are finished, and what
    takes longer than --grace is cancelled.
    """
    require_packages()
    paths = [*models, *more_models] or [resolved(click.get_current_context(), unnamed_model())]
    if len(aliases) > len(paths):
        raise click.UsageError(f"there are {len(aliases)} names (--alias) for {len(paths)} models.")
    chosen = Settings(**settings)
    if not all(chosen.api_keys):
        raise click.UsageError("an API key is empty.")
    if not all(key.isascii() and key.isprintable() and key == key.strip() for key in chosen.api_keys):
        raise click.UsageError(
            "an API key has other characters than printable ASCII, or spaces around it: no client can send it"
        )

    from olivine.server.security import is_origin, warnings_of

    if wrong := [each for each in chosen.cors if not is_origin(each)]:
        raise click.UsageError(f"--cors {wrong[0]} is no origin: write scheme://host:port, without a path.")

    from olivine.server.sources import find_models

    found = find_models(paths, aliases, pinned)
    if mmproj is not None and len(found) > 1:
        raise click.UsageError(
            f"--mmproj is for one model, and {len(found)} are served: each takes the one that lies beside it."
        )
    found[0].mmproj = mmproj
    options: dict[str, Any] = {
        "device": device,
        "threads": threads,
        "context": context,
        "sequences": sequences,
        "queue": queue,
        "queue_per_client": queue_per_client,
        "kv_type": kv_type,
        "reproducible": reproducible,
        "tensor_parallel": tensor_parallel,
        "pipeline_parallel": pipeline_parallel,
        "nodes": nodes,
        "rank_address": rank_address,
        "rank_key": rank_key,
    }
    if replicas is not None or ray is not None:
        from olivine.cli.serve_ray import serve_replicas

        serve_replicas(found, chosen, options, replicas or "1", ray)
        return
    if rank_address is not None:
        if len(found) > 1:
            raise click.UsageError(f"--rank-address is for one model, and {len(found)} are given.")
        assert found[0].path is not None
        tell_of_ranks(found[0].path, options)
    sockets = listen(chosen)
    echo_warnings(warnings_of(chosen, [each.getsockname()[0] for each in sockets]))
    serve(found, chosen, sockets, options, lambda: introduce(chosen, sockets, found))


def serve(
    models: list[ServedModel],
    settings: Settings,
    sockets: Sequence[socket.socket],
    options: dict[str, Any],
    ready: Callable[[], None],
) -> None:
    """Serves models until Ctrl-C. A single one is loaded at once; `ready` is called when it is there."""
    if options["device"] != "reference":
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as in loading.py
    from olivine.server.endpoint import Server
    from olivine.server.loader import Loader
    from olivine.server.log import configure, kernels
    from olivine.server.models import Models
    from olivine.server.run import run

    configure(settings)
    if len(models) == 1:
        models[0].preload = True
    with Status() as status:
        starting = True

        def compiling(done: int, of: int) -> None:
            if starting and status.is_drawn:
                status.show_compiling(done, of)
            elif not of:  # the first call: a log has one line of it
                kernels.info("compiling kernels for the GPU: once for each model on this machine")

        load_options = cast("LoadKwargs", {**options, "compile_progress": compiling})
        served = Models(models, settings, Loader(load_options))
        if names := [model.name for model in models if model.preload or model.pinned]:
            status.show(f"loading {', '.join(names)} …")

        def loaded() -> None:
            nonlocal starting
            starting = False
            status.clear()
            ready()

        try:
            ended = run(Server(settings, served), sockets, loaded)
        finally:
            served.close()
    click.echo(f"\n{farewell(ended)}", err=True)


def require_packages() -> None:
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        raise click.ClickException(
            f"the server needs {', '.join(missing)}, not installed here: pip install 'olivine[serve]'"
        )


def listen(settings: Settings) -> list[socket.socket]:
    """The server's sockets; an address that cannot be had is one line that says what to do."""
    from olivine.server import run

    try:
        return run.listen(settings.host, settings.port)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            told = (
                f"port {settings.port} is in use: choose another one (--port {settings.port + 1}), "
                "or a free one (--port 0), or stop what listens there"
            )
        elif error.errno == errno.EACCES:
            told = f"port {settings.port} needs rights that you do not have: --port 8080"
        else:
            told = f"cannot listen on --host {settings.host}: {error.strerror or error}"
        raise RequestError(told) from None


def introduce(settings: Settings, sockets: Sequence[socket.socket], models: Sequence[ServedModel]) -> None:
    """Says where the server is, and what to type and write to use it."""
    url = url_of(settings, sockets[0].getsockname()[1])
    for model in models:
        name, llm = escaped(model.name), model.loaded
        if llm is None:
            failed = f"could not be loaded: {escaped(str(model.error))}" if model.failed_start else None
            click.echo(f"{name} · {failed or 'loaded at its first request'}")
            continue
        echo_warnings(llm.warnings)
        echo_hints(llm.hints)
        click.echo(f"{name} · {llm.device} · context {llm.context:,}")
    click.echo(introduction(url, models[0].name, keyed=bool(settings.api_keys)))


def url_of(settings: Settings, port: int) -> str:
    """Where this machine's own programs find the server."""
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]", "": "127.0.0.1"}.get(settings.host, settings.host)
    return f"http://{f'[{host}]' if ':' in host and '[' not in host else host}:{port}"


def introduction(url: str, model: str, *, keyed: bool = False) -> str:
    """What is printed when the server is ready. A key is not shown: the lines name the variable with it."""
    target = Target(url, model, KEY_VARIABLE if keyed else NO_KEY)
    header = f' -H "Authorization: Bearer {KEY_VARIABLE}"' if keyed else ""
    body = '{"messages": [{"role": "user", "content": "Tell me a story about a fox"}]}'
    key = 'os.environ["OLIVINE_API_KEY"]' if keyed else f'"{NO_KEY}"'
    lines = [
        f"listening on {url}  (Ctrl-C stops the server)",
        "",
        f"curl {url}/v1/chat/completions -H 'Content-Type: application/json'{header} -d '{body}'",
        "",
        *(["import os"] if keyed else []),
        "from openai import OpenAI",
        f'client = OpenAI(base_url="{target.openai}", api_key={key})',
        'messages = [{"role": "user", "content": "Tell me a story about a fox"}]',
        f"answer = client.chat.completions.create(model={model!r}, messages=messages)",
        "print(answer.choices[0].message.content)",
        "",
        "# OpenAI's SDKs",
        export(openai_sdk(target)),
    ]
    for name in ("claude", "codex", "aider", "open-webui", "ollama"):
        lines += [f"# {CLIENTS[name].title}", *CLIENTS[name].lines(target)]
    return "\n".join(lines)


def farewell(ended: Ended) -> str:
    """What became of the requests that were running."""
    if not ended.finished and not ended.cancelled:
        return "stopped; no request was running"
    return f"stopped; running requests: {ended.finished} finished, {ended.cancelled} cancelled"
