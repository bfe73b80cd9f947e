"""Whether a GPU can be used, and why not where it cannot. Nothing heavy is imported before there is one."""

from __future__ import annotations

import ctypes
import importlib.util
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

LEAST_CAPABILITY = (8, 0)  # of the GPU: bfloat16 products


@dataclass(frozen=True)
class Gpu:
    """What the choice of kernels depends on."""

    capability: tuple[int, int]
    multiprocessors: int
    shared_memory: int  # bytes that a program may have


HOPPER = Gpu((9, 0), 132, 227 << 10)  # kernels are compiled for it where there is no GPU
_assumed: Gpu | None = None


def assume(gpu: Gpu) -> None:
    """From now on, and before the CUDA backend is imported, kernels are chosen for this GPU: in a process
    that compiles kernels and does not open the GPU."""
    global _assumed
    _assumed = gpu


def assumed_gpu() -> Gpu | None:
    return _assumed


@cache
def gpu_at(index: int) -> Gpu | None:
    """A GPU as the driver describes it; None where there is none."""
    driver, device = _driver(), ctypes.c_int(0)
    if isinstance(driver, str) or driver.cuDeviceGet(ctypes.byref(device), index):
        return None
    found = [ctypes.c_int(0) for _ in _ATTRIBUTES]
    for value, attribute in zip(found, _ATTRIBUTES, strict=True):
        if driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, device):
            return None
    major, minor, multiprocessors, shared_memory = (value.value for value in found)
    return Gpu((major, minor), multiprocessors, shared_memory)


@cache
def hash_triton() -> threading.Thread:
    """Starts to hash Triton's library, by which entries of its cache are named: for up to a second, in which
    Python can do something else."""
    from triton.runtime.cache import triton_key

    hashing = threading.Thread(target=triton_key, daemon=True)
    hashing.start()
    return hashing


@cache
def open_early(index: int) -> threading.Thread:
    """Starts what a program on the GPU needs and what can be done while torch is imported: the GPU's context,
    which torch then finds, and the hash of Triton's library."""

    def open_gpu() -> None:
        driver, device, context = _driver(), ctypes.c_int(0), ctypes.c_void_p()
        if not isinstance(driver, str) and not driver.cuDeviceGet(ctypes.byref(device), index):
            driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
        with suppress(Exception):  # it will be told where Triton is needed
            hash_triton()

    opening = threading.Thread(target=open_gpu, daemon=True)
    opening.start()
    return opening


# The driver's names of what `Gpu` has: CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR,
# _MULTIPROCESSOR_COUNT, _MAX_SHARED_MEMORY_PER_BLOCK_OPTIN.
_ATTRIBUTES = (75, 76, 16, 97)


@dataclass(frozen=True)
class Obstacle:
    """Why CUDA cannot be used. `gpu`: whether there is a GPU nevertheless, which stays unused."""

    reason: str
    gpu: bool


def cuda_obstacle() -> Obstacle | None:
    """None where CUDA can be used."""
    reason = _driver_obstacle()
    if reason is not None:
        return Obstacle(reason, gpu=False)
    for package in ("torch", "triton"):
        if importlib.util.find_spec(package) is None:
            return Obstacle(f"{package} is not installed: pip install 'olivine[cuda]'", gpu=True)
    try:
        import torch
    except (ImportError, OSError) as error:  # a library that torch needs is missing, or does not fit
        return Obstacle(f"torch cannot be imported: {str(error).splitlines()[0]}", gpu=True)

    if torch.version.cuda is None:
        return Obstacle(
            f"torch {torch.__version__} is built for the CPU only: install one with CUDA from pytorch.org",
            gpu=True,
        )
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
        capability, name = torch.cuda.get_device_capability(), torch.cuda.get_device_name()
    except (RuntimeError, AssertionError) as error:
        return Obstacle(f"CUDA does not start: {str(error).splitlines()[0]}", gpu=True)
    if capability < LEAST_CAPABILITY:
        needed, has = (".".join(map(str, c)) for c in (LEAST_CAPABILITY, capability))
        return Obstacle(f"{name} has compute capability {has}, and {needed} is needed", gpu=True)
    return None


def _driver_obstacle() -> str | None:
    """What the driver says. Without torch, which takes seconds to import."""
    driver = _driver()
    return driver if isinstance(driver, str) else None


def _driver() -> Any:
    """The driver's library, or why it cannot be used."""
    name = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
    try:
        driver = ctypes.CDLL(name)
    except OSError:
        return f"there is no NVIDIA driver ({name} was not found)"
    failed = driver.cuInit(0)
    if failed == 100:
        return "there is no NVIDIA GPU"
    if failed:
        return f"the NVIDIA driver does not start (error {failed})"
    count = ctypes.c_int(0)
    if driver.cuDeviceGetCount(ctypes.byref(count)) or count.value < 1:
        return "there is no NVIDIA GPU"
    return driver
