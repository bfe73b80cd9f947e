"""The native library on emulated CPUs (qemu): each gets the kernels for it, and no instruction that it lacks.

`make test-x86` and `make test-arm` run all kernels there; test_cpu_objects.py reads the object files.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from olivine.backends.cpu import native
from olivine.dtypes import DTYPES
from oracles import native_calls

# CPUs, and the instruction set that the library chooses there. qemu64 is x86-64 without SSSE3 and later ones;
# Haswell has no AVX-512, and qemu emulates none.
CPUS = {
    "x86_64": [("qemu64", "plain"), ("Nehalem", "plain"), ("Haswell", "avx2")],
    "aarch64": [("cortex-a53", "neon"), ("neoverse-n1", "dotprod")],
}
ROOT = Path(__file__).parents[2]
MACHINE = {"amd64": "x86_64", "arm64": "aarch64"}.get(platform.machine().lower(), platform.machine())
HERE = [pytest.param(cpu, isa, id=cpu) for cpu, isa in CPUS.get(MACHINE, [])]
FEW = [
    each for each in HERE if each.id != "Nehalem"
]  # which says no more than qemu64 here, but NumPy runs there

STORY = """
import olivine
with olivine.load("olivine-mini", device="cpu", threads=1) as llm:
    print(llm.device)
    print(llm.generate("Once upon a time", max_tokens=12, temperature=0).text)
"""


def qemu(machine: str) -> str:
    found = shutil.which(f"qemu-{machine}") or shutil.which(f"qemu-{machine}-static")
    if sys.platform != "linux" or found is None:
        pytest.skip(f"no qemu-{machine} is installed (qemu-user-static)")
    return found


def emulated(cpu: str, *arguments: str) -> list[str]:
    """The command that runs this Python on that CPU."""
    return [qemu(MACHINE), "-cpu", cpu, sys.executable, *arguments]


def types() -> str:
    rows = {name: (number, native_calls.K, DTYPES[name]) for name, number in native.TYPES.items()}
    return json.dumps(
        {n: (i, k // dtype.block_size * dtype.block_bytes) for n, (i, k, dtype) in rows.items()}
    )


def calls(command: list[str], library: str | None = None) -> dict[str, Any]:
    script = [native_calls.__file__, library or native.lib()._name, types()]
    run = subprocess.run([*command, "-S", "-E", *script], capture_output=True, text=True)
    assert run.returncode == 0, (
        f"{run.returncode} (-4 is an instruction that the CPU does not have): {run.stderr}"
    )
    return json.loads(run.stdout)


@cache
def calls_here() -> dict[str, Any]:
    return calls([sys.executable])


@pytest.mark.parametrize(("cpu", "isa"), FEW)
def test_the_library_runs_on_an_older_cpu(cpu: str, isa: str) -> None:
    compare(calls(emulated(cpu)), isa)


@pytest.mark.skipif(MACHINE == "aarch64", reason="this is the machine")
@pytest.mark.parametrize(("cpu", "isa"), CPUS["aarch64"])
def test_the_library_for_arm_runs_on_an_older_cpu(cpu: str, isa: str) -> None:
    """That of `make test-arm`, in the folder of an aarch64 system with Python: OLIVINE_AARCH64_ROOT."""
    root, library = os.environ.get("OLIVINE_AARCH64_ROOT"), ROOT / "build" / "aarch64" / "libolivine.so"
    if not root or not library.exists():
        pytest.skip("no OLIVINE_AARCH64_ROOT, or no library of make test-arm")
    python = [qemu("aarch64"), "-cpu", cpu, "-L", root, f"{root}/usr/bin/python3"]
    compare(calls(python, str(library)), isa)


def compare(found: dict[str, Any], isa: str) -> None:
    """What an emulated CPU calculated with what this one does."""
    here = calls_here()
    assert found["isa"] == isa
    assert found["files"] == here["files"], "converted files depend on the machine"
    assert found["noise"] == here["noise"]
    assert len(found["products"]) > 10
    for name, expected in here["products"].items():
        size = max(map(abs, expected))
        # bfloat16 activations of AMX and i8mm, or int8 ones rounded once or twice.
        assert found["products"][name] == pytest.approx(expected, abs=2e-2 * size), name


@pytest.mark.parametrize("cpu", [cpu for cpu, isa in CPUS.get(MACHINE, [])][-1:])
def test_an_instruction_set_that_the_cpu_lacks_is_not_chosen(cpu: str) -> None:
    script = f"import ctypes; print([ctypes.CDLL({native.lib()._name!r}).olv_set_isa(n) for n in (%s)])"
    newer, has = ({"x86_64": "avx512", "aarch64": "i8mm"}[MACHINE], dict(CPUS[MACHINE])[cpu])
    command = emulated(cpu, "-S", "-E", "-c", script % f"b{newer!r}, b{has!r}")
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "[1, 0]\n"


@pytest.mark.exhaustive
@pytest.mark.parametrize(("cpu", "isa"), [each for each in HERE if each.id != "qemu64"])  # NumPy needs SSE4
def test_olivine_mini_tells_the_same_story_on_an_older_cpu(cpu: str, isa: str) -> None:
    expected = subprocess.run(
        [sys.executable, "-c", STORY], capture_output=True, text=True, check=True
    ).stdout
    run = subprocess.run(emulated(cpu, "-c", STORY), capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    device, told = run.stdout.split("\n", 1)
    assert device == f"cpu×1 {isa}" and told == expected.split("\n", 1)[1]
