"""Replicas on a Ray cluster: cases_replicas.py, in a process of its own.

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

CASES = Path(__file__).with_name("cases_replicas.py")


@pytest.mark.timeout(2000)
@pytest.mark.parametrize(
    "which", ["not exhaustive", pytest.param("exhaustive", marks=pytest.mark.exhaustive)]
)
def test_replicas(which: str) -> None:
    if importlib.util.find_spec("ray") is None:
        pytest.skip("replicas need Ray: pip install 'olivine[cluster]'")
    command = [sys.executable, "-m", "pytest", "-n", "0", "-m", which, str(CASES)]
    child = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    try:
        output, _ = child.communicate(timeout=1900 if which == "exhaustive" else 840)
    finally:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
    assert child.returncode == 0, output
