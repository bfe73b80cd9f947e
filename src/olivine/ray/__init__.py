"""Replicas of a model on a Ray cluster: a Ray Serve application of the HTTP server.

| file | |
| --- | --- |
| `config.py` | what an application is made of: the model, its replicas, the options of `olivine serve` |
| `app.py` | the application: its deployments, with resources, scaling and health checks |
| `ingress.py` | the deployment that clients reach: sends requests to replicas, again where one died |
| `replica.py` | the deployment that answers, with the ids of replicas and streams |
| `hosted.py` | a model with the server's ASGI application, where no web server listens |
| `prefix.py`, `router.py` | which replica: the one that has the prompt's prefix cached, with bounded load |
| `run.py` | `olivine serve --ray`: from a cluster's address to the end |
| `llm.py` | the same model as an engine of Ray Serve LLM |
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from olivine.errors import OlivineError

__all__ = ["build_app", "require_ray"]


def build_app(config: Mapping[str, Any]) -> Any:
    """The Ray Serve application of a configuration: for `serve run olivine.ray:build_app model=… replicas=2`,
    for `args` in Serve's YAML files, and for `ray.serve.run`.

    Keys are the options of `olivine serve`, with underscores: `model`, `replicas` (2, or "1-4"), `threads`,
    `context`, `tensor_parallel`, `api_keys` (by default those of OLIVINE_API_KEY), … The proxies of the
    cluster listen, so host and port are given to Serve, as `http_options`.
    """
    require_ray()
    from olivine.ray.app import application
    from olivine.ray.config import Config

    keys = tuple(os.environ.get("OLIVINE_API_KEY", "").split())
    return application(Config.of({"api_keys": keys, **config}))


def require_ray() -> None:
    """Refuses where Ray Serve is not installed."""
    try:
        missing = find_spec("ray.serve") is None or find_spec("aiohttp") is None
    except ModuleNotFoundError:
        missing = True
    if missing:
        raise OlivineError(
            "replicas need Ray Serve, not installed here: pip install 'olivine[cluster,serve]'"
        )
