"""Why CUDA cannot be used: each reason by itself, without a GPU."""

from __future__ import annotations

import ctypes
import importlib.util
import sys
import types
from typing import Any

import pytest

from olivine.backends import devices
from olivine.errors import RequestError
from olivine.loading import choose_device


def driver(init: int = 0, count: int = 1) -> Any:
    def device_count(pointer: Any) -> int:
        pointer._obj.value = count
        return 0

    return types.SimpleNamespace(cuInit=lambda flags: init, cuDeviceGetCount=device_count)


def fake_torch(cuda: str | None = "12.8", capability: tuple[int, int] = (9, 0), error: str = "") -> Any:
    def init() -> None:
        if error:
            raise RuntimeError(error + "\nand more")

    on_gpu = types.SimpleNamespace(
        init=init, get_device_capability=lambda: capability, get_device_name=lambda: "NVIDIA Test"
    )
    version = types.SimpleNamespace(cuda=cuda)
    return types.SimpleNamespace(version=version, cuda=on_gpu, __version__="9.9")


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A machine with a driver (None: without) and with packages."""

    def make(found: Any, torch: Any = None, packages: tuple[str, ...] = ("torch", "triton")) -> None:
        def load(name: str) -> Any:
            if found is None:
                raise OSError(name)
            return found

        monkeypatch.setattr(ctypes, "CDLL", load)
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: object() if name in packages else None)
        if torch is not None:
            monkeypatch.setitem(sys.modules, "torch", torch)

    return make


@pytest.mark.parametrize(
    ("found", "torch", "packages", "reason", "gpu"),
    [
        (None, None, (), "no NVIDIA driver", False),
        (driver(init=100), None, (), "no NVIDIA GPU", False),
        (driver(init=804), None, (), "error 804", False),
        (driver(count=0), None, (), "no NVIDIA GPU", False),
        (driver(), None, (), r"torch is not installed: pip install 'olivine\[cuda\]'", True),
        (driver(), None, ("torch",), "triton is not installed", True),
        (driver(), fake_torch(cuda=None), ("torch", "triton"), "torch 9.9 is built for the CPU only", True),
        (driver(), fake_torch(error="driver too old"), ("torch", "triton"), "start: driver too old$", True),
        (
            driver(),
            fake_torch(capability=(7, 5)),
            ("torch", "triton"),
            "NVIDIA Test has .* 7.5, and 8.0",
            True,
        ),
    ],
)
def test_each_obstacle_is_named(
    machine: Any, found: Any, torch: Any, packages: tuple[str, ...], reason: str, gpu: bool
) -> None:
    machine(found, torch, packages)
    obstacle = devices.cuda_obstacle()
    assert obstacle is not None and obstacle.gpu == gpu
    # Asked for, it is an error; by itself it is a note where a GPU goes to waste, and the CPU runs.
    with pytest.raises(RequestError, match=reason):
        choose_device("cuda")
    device, notes = choose_device("auto")
    assert device == "cpu" and len(notes) == gpu and all("running on the CPU" in note for note in notes)


def test_a_torch_that_cannot_be_imported_is_an_obstacle(
    machine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken:
        def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
            if name == "torch":
                raise OSError("libcudart.so.13: cannot open shared object file\nand more")

    machine(driver())
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Broken(), *sys.meta_path])
    obstacle = devices.cuda_obstacle()
    assert obstacle == devices.Obstacle(
        "torch cannot be imported: libcudart.so.13: cannot open shared object file", gpu=True
    )


def test_a_gpu_that_can_be_used_is_used(machine: Any) -> None:
    machine(driver(), fake_torch())
    assert choose_device("auto") == choose_device("cuda") == ("cuda", ())
    assert choose_device("cpu") == ("cpu", ())


def test_an_unknown_device_is_refused() -> None:
    with pytest.raises(RequestError, match="no device 'tpu'; known: auto, cpu, cuda, reference"):
        choose_device("tpu")


def test_the_driver_describes_the_gpu(machine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """By numbers that cuda.h gives its attributes."""
    attributes = {75: 9, 76: 0, 16: 132, 97: 227 << 10}
    retained: list[int] = []

    def get(pointer: Any, index: int) -> int:
        pointer._obj.value = 40 + index
        return 0 if index < 2 else 101

    def attribute(pointer: Any, name: int, device: Any) -> int:
        pointer._obj.value = attributes[name]
        return 0 if device.value == 41 else 1

    found = driver(count=2)
    found.cuDeviceGet, found.cuDeviceGetAttribute = get, attribute
    found.cuDevicePrimaryCtxRetain = lambda pointer, device: retained.append(device.value)
    machine(found)
    monkeypatch.setattr(devices, "hash_triton", lambda: None)
    assert devices.gpu_at.__wrapped__(1) == devices.HOPPER
    assert devices.gpu_at.__wrapped__(0) is None and devices.gpu_at.__wrapped__(2) is None
    for index in (1, 2):
        devices.open_early.__wrapped__(index).join()
    assert retained == [41]
    machine(None)
    assert devices.gpu_at.__wrapped__(1) is None
