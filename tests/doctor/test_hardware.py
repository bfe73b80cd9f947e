"""What is said of the CPU, the memory and the GPUs, on machines that are not this one."""

from __future__ import annotations

from pathlib import Path

import pytest

from olivine import machine
from olivine.backends import cpu
from olivine.backends.cpu import isas
from olivine.doctor import gpu, hardware
from olivine.errors import OlivineError

GB = 10**9


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    (tmp_path / "cpuinfo").write_text("flags\t: fma avx2 bmi2 avx512f avx512bw avx512vl avx512dq\n")
    return tmp_path


def test_an_instruction_set_lacks_what_the_cpu_does_not_list(
    proc: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(isas.platform, "machine", lambda: "x86_64")
    assert isas.obstacle("avx512", proc) == "this CPU has no avx512_vnni"
    assert isas.obstacle("amx", proc) == "this CPU has no amx_bf16, amx_tile, avx512_bf16, avx512_vnni"
    assert isas.obstacle("avx2", proc).startswith("the CPU has it, but")
    assert isas.obstacle("avx2", proc / "nowhere") == "this CPU does not have it"
    monkeypatch.setattr(isas.platform, "machine", lambda: "aarch64")
    assert isas.obstacle("i8mm", proc) == "this CPU has no asimddp, asimdhp, bf16, i8mm"


def test_the_table_is_that_of_the_library() -> None:
    """What is usable has all that the table says it needs, and the rest lacks something of it."""
    before, found = cpu.isa(), isas.features()
    here = {name: isas.usable(name) for name in isas.isas()}
    assert here["plain"] and not isas.usable("none")
    assert cpu.isa() == before, "asking changes nothing"
    for name in here if found is not None else ():
        lacking = isas.missing_features(name, found)
        assert here[name] == (not lacking) or name == "amx", f"{name} lacks {lacking}"


def test_a_better_instruction_set_that_is_not_used_has_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isas, "isas", lambda: {"amx": ("x",), "avx2": (), "plain": ()})
    monkeypatch.setattr(isas, "usable", lambda name: name != "amx")
    monkeypatch.setattr(isas, "obstacle", lambda name: "this CPU has no x")
    monkeypatch.setattr(cpu, "isa", lambda: "avx2")
    monkeypatch.delenv("OLIVINE_ISA", raising=False)
    found = hardware.processor()
    assert found.facts["isa"] == "avx2" and found.problems == []
    assert ("instructions", "avx2 in use\nnot amx: this CPU has no x") in found.lines
    monkeypatch.setattr(cpu, "isa", lambda: "plain")
    monkeypatch.setenv("OLIVINE_ISA", "plain")
    found = hardware.processor()
    assert found.problems[0].remedy == "unset OLIVINE_ISA" and not found.problems[0].failure
    assert "not avx2: OLIVINE_ISA asks for plain" in found.lines[-1][1]


def test_a_library_that_cannot_be_loaded_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object) -> str:
        raise OlivineError("there is no library")

    monkeypatch.setattr(cpu, "isa", missing)
    monkeypatch.setattr(machine, "bandwidth", lambda again: missing())
    assert [problem.failure for problem in hardware.processor().problems] == [True]
    assert "bandwidth" not in hardware.memory().facts


@pytest.mark.parametrize(("spare", "busy", "problems"), [(8 * GB, False, 0), (GB, False, 1), (GB, True, 2)])
def test_little_memory_and_a_busy_machine_are_named(
    spare: int, busy: bool, problems: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hardware, "spare_bytes", lambda: spare)
    monkeypatch.setattr(hardware, "whole_bytes", lambda: 16 * GB)
    monkeypatch.setattr(machine, "is_busy", lambda: busy)
    monkeypatch.setattr(machine, "bandwidth", lambda again: 20.4 * GB)
    found = hardware.memory()
    assert len(found.problems) == problems and not any(each.failure for each in found.problems)
    assert found.lines[1][1] == "20.4 GB/s: a model of 1 GB generates at most 20 tokens a second"


DEVICE = {"name": "NVIDIA H200", "bytes": 150 * GB, "capability": [9, 0]}


def test_a_gpu_that_is_not_used_is_a_problem_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "cuda_devices", lambda: [DEVICE])
    monkeypatch.setattr(gpu, "cuda_version", lambda: "12.8")
    monkeypatch.setattr(gpu, "driver_version", lambda: "570.1")
    reason = "torch is not installed: pip install 'olivine[cuda]'"
    found = gpu.gpus({"reason": reason, "gpu": True})
    assert found.lines[:3] == [
        ("GPU", "NVIDIA H200, 150.0 GB, compute capability 9.0"),
        ("driver", "570.1, CUDA 12.8"),
        ("used", f"no: {reason}"),
    ]
    assert found.problems[0].what == "the GPU is not used: torch is not installed"
    assert found.problems[0].remedy == "pip install 'olivine[cuda]'"
    assert gpu.gpus(None).facts["used"] and not gpu.gpus(None).problems
    assert not gpu.gpus({"reason": "there is no NVIDIA GPU", "gpu": False}).problems


def test_the_driver_and_other_gpus_are_read_from_the_system(tmp_path: Path) -> None:
    version = tmp_path / "version"
    version.write_text(
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build\nGCC 12.3\n"
    )
    assert gpu.driver_version(version) == "570.86.15"
    assert gpu.driver_version(tmp_path / "none") is None
    for name, kind, vendor in (
        ("0", "0x030000", "0x1002"),
        ("1", "0x020000", "0x8086"),
        ("2", "0x030200", "0x10de"),
    ):
        device = tmp_path / "pci" / name
        device.mkdir(parents=True)
        (device / "class").write_text(f"{kind}\n")
        (device / "vendor").write_text(f"{vendor}\n")
    assert gpu.other_gpus(tmp_path / "pci") == ["AMD GPU"]
    assert gpu.other_gpus(tmp_path / "none") == []
