"""The adapter for Ray Serve LLM: cases_llm.py, in a process of its own, beside what stands in for vLLM."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from oracles.cases import run_cases
from oracles.ray_llm import write_stand_ins


@pytest.mark.timeout(2000)
@pytest.mark.parametrize(
    "which", ["not exhaustive", pytest.param("exhaustive", marks=pytest.mark.exhaustive)]
)
def test_llm(which: str, tmp_path: Path) -> None:
    write_stand_ins(tmp_path)
    run_cases(Path(__file__).with_name("cases_llm.py"), which, tmp_path)


def test_without_another_engine_it_says_what_to_install() -> None:
    pytest.importorskip("ray.serve", reason="needs Ray: pip install 'olivine[cluster]'")
    code = "import sys; sys.modules['vllm'] = sys.modules['sglang'] = None; import olivine.ray.llm"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600)
    assert found.returncode == 1
    assert "OlivineError: Ray Serve LLM cannot be imported here; it needs vLLM or SGLang" in found.stderr
    assert "pip install 'olivine[cluster,serve]' 'ray[llm]'" in found.stderr
