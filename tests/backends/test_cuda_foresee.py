"""The kernels that a program launches are known before it runs, and so compiled before it runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import olivine

pytest.importorskip("triton")

from oracles import foreseeing, published, tiny


@pytest.mark.parametrize(
    "name",
    [
        "gemma4-everything",
        *(pytest.param(name, marks=pytest.mark.exhaustive) for name in ("qwen3moe-normalized", "phi4-mini")),
    ],
)
def test_every_kernel_is_foreseen(name: str, tmp_path: Path) -> None:
    published.save(published.case(name).make(), tmp_path)
    check(foreseeing.kernels(tmp_path))


@pytest.mark.parametrize(
    ("shape", "kind", "cache_type"),
    [
        pytest.param("tiny-qwen3", "Q4_K", "BF16", marks=pytest.mark.exhaustive),
        ("tiny-qwen3moe", "Q4_K_M", "BF16"),
        ("tiny-qwen3", "Q8_0", "Q8_0"),
        pytest.param("tiny-gemma4", "Q4_K", "BF16", marks=pytest.mark.exhaustive),
    ],
)
def test_every_kernel_of_quantized_weights_is_foreseen(
    shape: str, kind: str, cache_type: str, tmp_path: Path
) -> None:
    check(foreseeing.kernels(tiny.write(shape, kind, tmp_path), cache_type))


def test_kernels_have_the_same_names_in_every_process() -> None:
    """Else what one process compiles another would not find."""
    assert names(False) == names(True) != ""


NAMES = """
import sys
from olivine.backends import devices
devices.assume(devices.HOPPER)
import olivine.backends.cuda
from olivine.backends.cuda.kernels import embed, gemm_float, gemv, hash_kernels
hash_kernels()
functions = [embed._embed, gemm_float._gemm_float, gemv._gemv]
for function in reversed(functions) if "reversed" in sys.argv else functions:
    function.cache_key
print([function.cache_key for function in functions])
"""


def names(backward: bool) -> str:
    """The names of some kernels, if they are launched in an order, or in the opposite one."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = str(Path(olivine.__file__).parents[1])
    command = [sys.executable, "-c", NAMES, *(["reversed"] if backward else [])]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=True).stdout


def check(found: dict[str, set[str]]) -> None:
    assert found["short"] == found["first"]
    assert not found["long"] - found["first"] - found["later"]
    assert found["long"] - found["first"]  # else there would be nothing to foresee
