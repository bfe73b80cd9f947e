"""Tests that run in a process of their own: those of files named cases_….py.

Ray's driver has threads that outlive the cluster, and other tests fork, which may hang beside them.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest


def run_cases(file: Path, which: str, *paths: Path) -> None:
    """Runs pytest with `-m which` on a file, with these folders before others of PYTHONPATH."""
    spec = importlib.util.find_spec("ray")
    if spec is None or spec.origin is None:  # the folder `tests/ray` alone
        pytest.skip("replicas need Ray: pip install 'olivine[cluster]'")
    command = [sys.executable, "-m", "pytest", "-n", "0", "-m", which, str(file)]
    known = [*map(str, paths), *filter(None, [os.environ.get("PYTHONPATH")])]
    child = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        env={**os.environ, **({"PYTHONPATH": os.pathsep.join(known)} if known else {})},
    )
    try:
        output, _ = child.communicate(timeout=1900 if which == "exhaustive" else 840)
    finally:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
    assert child.returncode == 0, output
