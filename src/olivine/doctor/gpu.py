"""The GPUs, and why they are used or not. Asks the driver itself: torch takes seconds to import."""

from __future__ import annotations

import contextlib
import ctypes
import sys
from pathlib import Path
from typing import Any

from olivine.doctor.section import Problem, Section

_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_…
_VENDORS = {"0x1002": "AMD", "0x8086": "Intel"}
_DISPLAY = "0x03"  # the PCI class of display controllers


def gpus(obstacle: dict[str, Any] | None) -> Section:
    """`obstacle` is why CUDA cannot be used (`reason`, and whether there is a GPU); None: it is used."""
    section = Section("gpu")
    driver, found, others = driver_version(), cuda_devices(), other_gpus()
    section.facts = {
        "used": obstacle is None,
        "why_not": None if obstacle is None else obstacle["reason"],
        "driver": driver,
        "cuda": cuda_version(),
        "devices": found,
        "others": others,
    }
    for device in found:
        capability = ".".join(map(str, device["capability"]))
        section.tell(
            "GPU", f"{device['name']}, {device['bytes'] / 1e9:.1f} GB, compute capability {capability}"
        )
    if driver or cuda_version():
        section.tell("driver", f"{driver or 'version not known'}, CUDA {cuda_version() or 'not known'}")
    if obstacle is None:
        section.tell("used", "yes: --device auto and --device cuda run on it")
    else:
        section.tell("used", f"no: {obstacle['reason']}")
        if obstacle["gpu"]:
            what, _, remedy = obstacle["reason"].partition(": ")
            section.problems.append(
                Problem(f"the GPU is not used: {what}", remedy or "see docs/cuda.md for what is needed")
            )
    if others:
        section.tell("others", f"{', '.join(others)}: only NVIDIA GPUs are used")
    return section


def _driver() -> ctypes.CDLL | None:
    with contextlib.suppress(OSError):
        driver = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
        return None if driver.cuInit(0) else driver
    return None


def cuda_version() -> str | None:
    """The newest CUDA that the driver runs."""
    if (driver := _driver()) is None:
        return None
    found = ctypes.c_int(0)
    if driver.cuDriverGetVersion(ctypes.byref(found)):
        return None
    return f"{found.value // 1000}.{found.value % 1000 // 10}"


def cuda_devices() -> list[dict[str, Any]]:
    """Name, memory and compute capability of each NVIDIA GPU."""
    if (driver := _driver()) is None:
        return []
    count = ctypes.c_int(0)
    if driver.cuDeviceGetCount(ctypes.byref(count)):
        return []
    found = []
    for index in range(count.value):
        device, size, name = ctypes.c_int(0), ctypes.c_size_t(0), ctypes.create_string_buffer(256)
        numbers = [ctypes.c_int(0), ctypes.c_int(0)]
        if driver.cuDeviceGet(ctypes.byref(device), index):
            continue
        driver.cuDeviceGetName(name, len(name), device)
        driver.cuDeviceTotalMem_v2(ctypes.byref(size), device)
        for number, attribute in zip(numbers, (_MAJOR, _MINOR), strict=True):
            driver.cuDeviceGetAttribute(ctypes.byref(number), attribute, device)
        found.append(
            {
                "name": name.value.decode("utf-8", "replace"),
                "bytes": size.value,
                "capability": [number.value for number in numbers],
            }
        )
    return found


def driver_version(file: Path = Path("/proc/driver/nvidia/version")) -> str | None:
    """NVIDIA's driver, on Linux: the first number with dots of the line that names the module."""
    with contextlib.suppress(OSError):
        for word in file.read_text(errors="replace").partition("\n")[0].split():
            if word.count(".") >= 1 and word.replace(".", "").isdecimal():
                return word
    return None


def other_gpus(root: Path = Path("/sys/bus/pci/devices")) -> list[str]:
    """The makers of GPUs that are not NVIDIA's, on Linux."""
    found = []
    with contextlib.suppress(OSError):
        for device in sorted(root.iterdir()):
            with contextlib.suppress(OSError):
                kind, vendor = ((device / name).read_text().strip() for name in ("class", "vendor"))
                if kind.startswith(_DISPLAY) and vendor in _VENDORS:
                    found.append(f"{_VENDORS[vendor]} GPU")
    return found
