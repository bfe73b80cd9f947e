"""`olivine serve --replicas`: what it needs, and what it refuses."""

from __future__ import annotations

import subprocess
import sys

import click
import pytest

from olivine.cli.main import cli
from olivine.cli.server_habits import _ADDRESS
from oracles.commands import olivine


def parsed(*arguments: str) -> dict[str, object]:
    command = cli.get_command(click.Context(cli), "serve")
    assert command is not None
    return command.make_context("serve", list(arguments)).params


@pytest.mark.parametrize("address", ["auto", "local", "10.0.0.1:6379", "ray://head:10001", "[::1]:6379"])
def test_what_may_follow_ray_is_an_address(address: str) -> None:
    assert _ADDRESS.fullmatch(address)
    assert parsed("--ray", address)["ray"] == address


@pytest.mark.parametrize(
    "arguments", [["--ray", "olivine-mini"], ["olivine-mini", "--ray"], ["--ray=", "olivine-mini"]]
)
def test_a_model_after_ray_is_no_address(arguments: list[str]) -> None:
    found = parsed(*arguments)
    assert found["ray"] == "" and len(found["models"]) == 1  # type: ignore[arg-type]


def test_vllms_names_are_known() -> None:
    found = parsed("olivine-mini", "--data-parallel-size", "2", "-tp", "2")
    assert (found["replicas"], found["tensor_parallel"]) == ("2", 2)


@pytest.mark.parametrize(
    "arguments, told",
    [
        (["--replicas", "none"], "replicas must be a number, or two such as 1-4"),
        (["--replicas", "2", "--idle-unload", "5m"], "stays loaded"),
        (["--replicas", "2", "--max-connections", "5"], "proxies"),
        (["olivine-mini", "--replicas", "2"], "replicas are of one model, and 2 are given"),
    ],
)
def test_what_replicas_cannot_have_is_refused(arguments: list[str], told: str) -> None:
    pytest.importorskip("ray.serve", reason="replicas need Ray: pip install 'olivine[cluster]'")
    extra = ["-a", "one", "-a", "two"] if "are given" in told else []
    found = olivine("serve", "olivine-mini", *arguments, *extra)
    assert found.returncode != 0 and told in found.stderr, found.stderr


def test_without_ray_it_says_what_to_install() -> None:
    script = (
        "import sys\nsys.modules['ray'] = None\nfrom olivine.cli.main import main\n"
        "sys.argv = ['olivine', 'serve', 'olivine-mini', '--replicas', '2']\nmain()"
    )
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert found.returncode != 0
    assert "pip install 'olivine[cluster,serve]'" in found.stderr and "Traceback" not in found.stderr
