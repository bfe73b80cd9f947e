"""`olivine serve --replicas`: replicas of a model, by Ray Serve."""

from __future__ import annotations

import socket
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import click

from olivine.cli.loading import saved_name
from olivine.cli.serve import introduction, listen, url_of
from olivine.cli.text import Status, echo_warnings, escaped
from olivine.server.settings import Settings

if TYPE_CHECKING:
    from olivine.server.models import ServedModel


def serve_replicas(
    models: list[ServedModel], settings: Settings, options: dict[str, Any], replicas: str, address: str | None
) -> None:
    """Serves replicas of one model until Ctrl-C."""
    from olivine.ray import require_ray

    require_ray()
    from olivine.ray.config import Config
    from olivine.ray.run import run
    from olivine.server.security import warnings_of

    if len(models) > 1:
        raise click.UsageError(f"replicas are of one model, and {len(models)} are given.")
    model = models[0]
    assert model.path is not None
    if settings.port == 0:
        settings = replace(settings, port=_free(settings))
    config = Config.of(
        {
            **options,
            **asdict(settings),
            "model": saved_name(model.path),
            "mmproj": None if model.mmproj is None else str(model.mmproj.absolute()),
            "alias": model.name,
            "replicas": replicas,
        }
    )
    addresses = socket.getaddrinfo(settings.host or "0.0.0.0", None, type=socket.SOCK_STREAM)
    echo_warnings(warnings_of(settings, [str(each[4][0]) for each in addresses]))
    with Status() as status:
        status.show(f"starting Ray and {replicas} replicas of {model.name} …")

        def ready() -> None:
            status.clear()
            click.echo(f"{escaped(model.name)} · replicas on Ray: {replicas}")
            url = url_of(settings, settings.port)
            click.echo(introduction(url, model.name, keyed=bool(settings.api_keys)))

        run(config, address or None, lambda: _close(listen(settings)), ready)
    click.echo("\nstopped", err=True)


def _free(settings: Settings) -> int:
    """A port that nobody listens on: Ray's proxies are told one."""
    sockets = listen(settings)
    port = int(sockets[0].getsockname()[1])
    _close(sockets)
    return port


def _close(sockets: list[socket.socket]) -> None:
    for each in sockets:
        each.close()
