"""The long run of benches/soak_server.py, cut short: its own checks are the test."""

from __future__ import annotations

import subprocess
import sys

import soak_server


def test_a_short_soak_of_the_server_leaves_nothing_behind() -> None:
    command = [sys.executable, soak_server.__file__, "olivine-mini"]
    run = subprocess.run(
        [*command, "--seconds", "2", "--tasks", "3", "--variants", "1"],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "wrong: 0" in run.stdout
