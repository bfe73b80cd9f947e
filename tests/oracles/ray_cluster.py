"""A Ray cluster of two nodes on this machine."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from olivine.ray.run import PATIENCE
from oracles.ports import free_port

_PORTS = (
    "metrics_agent_port",
    "metrics_export_port",
    "dashboard_agent_listen_port",
    "runtime_env_agent_port",
)
OBJECTS = 80 << 20  # bytes of an object store; the least that Ray takes is 75 MiB


class RayCluster:
    """Two nodes, and Serve's proxy on the first."""

    def __init__(self, folder: Path) -> None:
        import ray
        from ray import serve
        from ray.cluster_utils import Cluster

        head = {"include_dashboard": False, "num_cpus": 2, "temp_dir": str(folder), "no_monitor": True}
        Path("/tmp/ray").mkdir(exist_ok=True)  # where Ray notes the newest cluster, whatever its folder
        self.cluster = Cluster()
        self.add_node(**head)
        self.add_node(num_cpus=2)
        ray.init(self.cluster.address, log_to_driver=False, logging_level="error")
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        options = {"host": "127.0.0.1", "port": self.port}
        serve.start(proxy_location="HeadOnly", http_options=options)

    def add_node(self, **options: Any) -> Any:
        plain = {"object_store_memory": OBJECTS, "include_log_monitor": False}
        # Where Ray chooses them itself, a node dies that has none after 15 s.
        ports = {name: free_port() for name in _PORTS}
        return self.cluster.add_node(**plain, **ports, **options)

    def end(self) -> None:
        import ray

        with suppress(Exception):
            ray.shutdown()
        with suppress(Exception):
            self.cluster.shutdown()


def end_processes(folder: Path) -> None:
    """Ends every process that has the cluster's folder among its arguments."""
    for each in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if str(folder) in (each / "cmdline").read_text() and int(each.name) != os.getpid():
                os.kill(int(each.name), signal.SIGKILL)


@contextmanager
def running() -> Iterator[RayCluster]:
    """A cluster, whose processes are surely ended."""
    folder = Path("/tmp") / f"olivine-ray-{os.getpid()}"  # short: paths of sockets have 107 characters
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"RAY_USAGE_STATS_ENABLED": "0", **PATIENCE}.items():
            patch.setenv(name, value)
        patch.delenv("RAY_ADDRESS", raising=False)
        found = None
        try:
            found = RayCluster(folder)
            yield found
        finally:
            if found is not None:
                found.end()
            end_processes(folder)
            shutil.rmtree(folder, ignore_errors=True)
