"""The Vercel AI SDK, if Node and its packages are there: `make test-clients` installs them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

SUITE = Path(__file__).with_name("ai-sdk") / "suite.mjs"
NODE = shutil.which("node")


@pytest.mark.skipif(NODE is None, reason="Node is not installed")
@pytest.mark.skipif(
    not SUITE.with_name("node_modules").exists(), reason="the SDK is not installed: make test-clients"
)
def test_the_sdk_talks_to_all_three_apis(url: str) -> None:
    assert NODE is not None
    run = subprocess.run([NODE, str(SUITE), url, "olivine-mini"], capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stdout + run.stderr
