"""benches/gpu_faults.py leaves a part of a decode step out, and the rest still runs, in the interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

BENCHES = Path(__file__).resolve().parents[2] / "benches"


@pytest.mark.exhaustive
@pytest.mark.parametrize("part", ["split-k", "single-rows"])
def test_a_part_is_left_out(part: str) -> None:
    given = ["--model", "tiny-qwen3moe", "--layers", "1", "--tokens", "1", "--device", "cpu"]
    subprocess.run(
        [sys.executable, str(BENCHES / "gpu_faults.py"), *given, "--without", part],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        check=True,
        timeout=500,
    )
