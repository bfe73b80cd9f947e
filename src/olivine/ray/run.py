"""`olivine serve --ray`: joins a cluster or starts one, deploys the application, and ends it again."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from olivine.errors import OlivineError
from olivine.ray import require_ray
from olivine.ray.config import Config

NAME = "olivine"  # of the application
HERE = "local"  # the address of a cluster that is started for this command
OBJECTS = 256 << 20  # bytes of its object store, which only requests pass through
# Ray starts many processes, and each imports much: by its own limits it gives up on a busy machine.
PATIENCE = {
    "RAY_raylet_start_wait_time_s": "300",
    "RAY_gcs_server_request_timeout_seconds": "300",
    "RAY_worker_register_timeout_seconds": "300",
    "RAY_agent_register_timeout_ms": "300000",
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "120",
}


def run(config: Config, address: str | None, check: Callable[[], None], ready: Callable[[], None]) -> None:
    """Serves until SIGINT or SIGTERM. Without an address it is the cluster of RAY_ADDRESS, or the one that
    `ray start` started on this machine, or a new one, before which `check` is called."""
    require_ray()
    for name, value in {"RAY_USAGE_STATS_ENABLED": "0", **PATIENCE}.items():
        os.environ.setdefault(name, value)
    import ray
    from ray import serve
    from ray.serve.config import HTTPOptions

    from olivine.ray.app import application

    logging.getLogger("ray.serve").setLevel(logging.WARNING)

    settings = config.settings
    http = HTTPOptions(
        host=settings.host, port=settings.port, keep_alive_timeout_s=round(settings.keep_alive)
    )
    started = _join(ray, address, check)
    try:
        with stopping(at_once=True):  # after ray.init, which has a handler of its own
            try:
                serve.start(proxy_location="EveryNode", http_options=http)
                serve.run(application(config), name=NAME, route_prefix="/")
            except (RuntimeError, TimeoutError, ray.exceptions.RayError) as error:
                raise OlivineError(f"the replicas could not be started: {error}") from None
        with stopping() as stop:
            ready()
            stop.wait()
            _end(serve, stop, settings.grace)
    except Interrupted:
        pass
    finally:
        if started:
            serve.shutdown()
        ray.shutdown()


def _join(ray: Any, address: str | None, check: Callable[[], None]) -> bool:
    """Joins a cluster; True where it had to be started, on this machine."""
    options = {"log_to_driver": False, "logging_level": "error"}
    if address != HERE:
        try:
            ray.init(address or "auto", **options)
            return False
        except ConnectionError:
            if address is not None or "RAY_ADDRESS" in os.environ:
                named = address or os.environ["RAY_ADDRESS"]
                raise OlivineError(
                    f"there is no Ray cluster at {named}: start one (ray start --head), or leave it out"
                ) from None
    check()
    ray.init(HERE, include_dashboard=False, object_store_memory=OBJECTS, **options)
    return True


def _end(serve: Any, stop: threading.Event, grace: float) -> None:
    """Ends the application: running answers have `grace` seconds, or until a second signal."""
    stop.clear()
    serve.delete(NAME, _blocking=False)
    end = time.monotonic() + grace
    while NAME in serve.status().applications and time.monotonic() < end and not stop.wait(0.2):
        pass


class Interrupted(BaseException):
    """SIGINT or SIGTERM while the application starts."""


@contextmanager
def stopping(at_once: bool = False) -> Iterator[threading.Event]:
    """An event that SIGINT and SIGTERM set; with `at_once` they also raise Interrupted."""
    stop = threading.Event()

    def told(number: int, frame: FrameType | None) -> None:
        stop.set()
        if at_once:
            raise Interrupted

    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {number: signal.signal(number, told) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
