"""The memory bandwidth: measured once, kept, and measured again where what was kept is of another machine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from olivine import machine
from olivine.backends import cpu


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[int]:
    """The sizes of the measurements that were made; each finds a GB/s more than the one before."""
    sizes: list[int] = []

    def measure(threads: int, bytes: int, repeats: int) -> float:
        sizes.append(bytes)
        return len(sizes) * 1e9

    monkeypatch.setattr(cpu, "read_bandwidth", measure)
    monkeypatch.setattr(machine, "is_busy", lambda: False)
    monkeypatch.setenv("OLIVINE_CACHE", str(tmp_path / "cache"))
    return sizes


def test_it_is_measured_once(measured: list[int], tmp_path: Path) -> None:
    assert machine.bandwidth() == machine.bandwidth() == 1e9
    assert len(measured) == 1
    assert machine.bandwidth(again=True) == machine.bandwidth() == 2e9
    assert [each.name for each in (tmp_path / "cache").iterdir()] == [machine.KEPT]


def test_a_busy_machine_is_measured_again(measured: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "is_busy", lambda: True)
    assert (machine.bandwidth(), machine.bandwidth()) == (1e9, 2e9)
    monkeypatch.setattr(machine, "is_busy", lambda: False)
    assert (machine.bandwidth(), machine.bandwidth()) == (3e9, 3e9)


@pytest.mark.parametrize(("load", "busy"), [(0.9, False), (2.1, True), (1.9, False)])
def test_half_of_the_cpus_make_a_busy_machine(
    load: float, busy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine.os, "getloadavg", lambda: (load, 0.0, 0.0))
    monkeypatch.setattr(machine.os, "cpu_count", lambda: 4)
    assert machine.is_busy() == busy


def test_another_cpu_is_measured_anew(measured: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    machine.bandwidth()
    monkeypatch.setattr(machine, "cpu_name", lambda: "another")
    assert machine.bandwidth() == 2e9


@pytest.mark.parametrize(
    "text", ["", "[]", '{"a": "b"}', "[" * 100_000], ids=["empty", "list", "text", "deep"]
)
def test_a_broken_file_is_replaced(text: str, measured: list[int], tmp_path: Path) -> None:
    file = tmp_path / "cache" / machine.KEPT
    file.parent.mkdir()
    file.write_text(text)
    assert machine.bandwidth() == machine.bandwidth() == 1e9
    assert list(json.loads(file.read_text()).values()) == [1e9]


def test_where_nothing_can_be_kept_it_is_measured_each_time(
    measured: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OLIVINE_CACHE", "/proc/no/such/place")
    assert (machine.bandwidth(), machine.bandwidth()) == (1e9, 2e9)


def test_a_machine_without_memory_is_not_filled(measured: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "spare_bytes", lambda: 1 << 28)
    machine.bandwidth()
    assert measured == [1 << 26]


def test_the_name_of_the_cpu_is_that_of_its_maker(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nmodel name\t: Fast  CPU @ 3 GHz\nflags\t\t: fma\n")
    assert machine.cpu_name(tmp_path) == "Fast CPU @ 3 GHz"
    assert machine.cpu_name(tmp_path / "nowhere")
