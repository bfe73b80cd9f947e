"""Dependent launches: a kernel starts while the one before it still runs, and waits for its results itself.

Every kernel calls `wait` before it reads or writes what another kernel writes or reads, and is launched with
`LAUNCH`. What no kernel writes (weights) may be fetched before. `release` lets the next kernel start. One
that has waited knows that all kernels up to the one before it are done; if it releases only then (`begin`),
every kernel after it may rely on that, even before it waits itself. So attention fetches older keys and the
angles early: the embedding begins after the angles, and all else comes after the embedding. Products of few
rows and norms release before they wait, and nobody may rely on what came just before them.
"""

from __future__ import annotations

import ctypes
import os
import sys
from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl


def _supported() -> bool:
    """Hopper and later have them; without a GPU, kernels are compiled for those."""
    if os.environ.get("TRITON_INTERPRET") == "1":
        return False
    return not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] >= 9


_ON = _supported()
DEPENDENT: tl.constexpr = tl.constexpr(_ON)
LAUNCH: dict[str, Any] = {"launch_pdl": True} if _ON else {}


def registers(count: int) -> dict[str, Any]:
    """For a launch: a kernel may use so many a thread. Told so, the compiler uses them and loads early."""
    return {} if os.environ.get("TRITON_INTERPRET") == "1" else {"maxnreg": count}


_CARVEOUT = 9  # the driver's CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT


@cache
def _set_carveout(function: int, percent: int) -> None:
    try:
        driver = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
        driver.cuFuncSetAttribute(ctypes.c_void_p(function), _CARVEOUT, percent)
    except (OSError, AttributeError):
        pass  # it is only slower


def set_shared_memory_carveout(kernel: Any, percent: int) -> None:
    """Tells the driver how much of a multiprocessor's memory should be shared memory; the rest is its cache.

    A kernel that wants it divided otherwise than the one before cannot start early: it waits until a
    multiprocessor is empty. Left alone, the driver makes room for as many programs as fit on one; where there
    are no more programs than multiprocessors, room for one will do, and the division may stay as it is.
    """
    if _ON and isinstance(getattr(kernel, "function", None), int):
        _set_carveout(kernel.function, percent)


if _ON:
    from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait
else:  # never called

    @triton.jit
    def gdc_wait():
        pass

    @triton.jit
    def gdc_launch_dependents():
        pass


@triton.jit
def wait():
    """Waits for the kernel before."""
    if DEPENDENT:
        gdc_wait()


@triton.jit
def release():
    """Lets the kernel after start, as far as there is room for it."""
    if DEPENDENT:
        gdc_launch_dependents()


@triton.jit
def begin():
    wait()
    release()
