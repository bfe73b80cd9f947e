"""The Ray Serve application: an ingress, and the replicas behind it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ray
from ray import serve
from ray.serve.config import RequestRouterConfig

from olivine.ray.config import Config, cores_per_rank
from olivine.ray.ingress import Ingress
from olivine.ray.replica import Replica

SPARE = 64  # requests of a replica besides those that run and wait: health, metrics, models
DRAINING = 3600.0  # seconds that a replica which is replaced has to finish its answers
HEALTH_PERIOD, HEALTH_TIMEOUT = 5.0, 60.0  # seconds; Ray replaces a replica after three failures
SCALING: dict[str, float] = {}  # seconds of Ray's autoscaling_config; its own are 30 up, 600 down
MOST_ONGOING = 100_000  # requests of an ingress: replicas limit theirs


def application(config: Config) -> Any:
    """The application, for `ray.serve.run`."""
    load = config.load
    if load.threads is None and not config.gpus and ray.is_initialized():
        cores = [each["Resources"].get("CPU", 0.0) for each in ray.nodes() if each["Alive"]]
        load = replace(load, threads=cores_per_rank(cores, config.replicas.most, config.ranks))
    config = replace(config, load=load)
    replicas = serve.deployment(Replica).options(**replica_options(config)).bind(config)
    count = config.ingresses or min(2, config.replicas.most)
    ingress = serve.deployment(Ingress).options(
        num_replicas=count,
        ray_actor_options={"num_cpus": 0},
        max_ongoing_requests=MOST_ONGOING,
        graceful_shutdown_timeout_s=_draining(config),
    )
    return ingress.bind(replicas, config.settings)


def replica_options(config: Config) -> dict[str, Any]:
    """What Ray gives a replica, and when it starts, checks and stops one."""
    bundle = {"CPU": float(config.load.threads or 1)} | ({"GPU": float(config.gpus)} if config.gpus else {})
    most = config.load.sequences + config.load.queue + SPARE
    found: dict[str, Any] = {
        "ray_actor_options": {"num_cpus": bundle["CPU"], "num_gpus": config.gpus},
        "max_ongoing_requests": most,
        "graceful_shutdown_timeout_s": _draining(config),
        "health_check_period_s": HEALTH_PERIOD,
        "health_check_timeout_s": HEALTH_TIMEOUT,
        "request_router_config": RequestRouterConfig(request_router_class="olivine.ray.router.PrefixRouter"),
    }
    if config.ranks > 1:  # the ranks are processes of one machine
        found["placement_group_bundles"] = [bundle] * config.ranks
        found["placement_group_strategy"] = "STRICT_PACK"
    least, most_replicas = config.replicas
    if least == most_replicas:
        found["num_replicas"] = least
    else:
        found["autoscaling_config"] = {
            "min_replicas": least,
            "max_replicas": most_replicas,
            "target_ongoing_requests": config.load.sequences,  # more of them wait
            **SCALING,
        }
    return found


def _draining(config: Config) -> float:
    return config.settings.max_timeout or DRAINING
