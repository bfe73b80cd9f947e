"""Programmatic dependent launch: a kernel starts while the previous one runs, and waits for it by itself.

`release` lets the next kernel start: it does when all programs have released. The rules:

1. Every kernel is launched with `LAUNCH`, and every program of it calls `wait` before it reads what another
   kernel writes, or writes what another reads. What no kernel writes (weights) may be loaded before.
2. After `wait`, all kernels up to the previous one are done. A kernel that releases only then (`begin`) lets
   every later kernel rely on that even before it waits itself. Attention does so; GEMV, norms and the choice
   of experts release at once, because what comes after them has much to load. What a kernel stored before it
   released (`release_stored`) can be read by every later kernel, also before a wait: embeddings do that.

What is loaded before the wait, and why it is there:

- by attention, the rotary angles, positions and keys of earlier steps: angles are stored with the embedding.
  A row that other rows of its step attend to is stored before the first attention of that cache begins: so
  later attentions load it early too (`Lowering.is_written_before`). What an attention stores by itself is of
  rows of different sequences, each of which loads its own after the wait;
- by a GEMV, what a gate is multiplied with, if it was made before an attention (`Lowering.is_old`);
- by sampling, how a row is drawn, its bias, mask and stop tokens, which only the host writes, between
  kernels;
- by the second GEMV of experts, which experts those are: the first one waits for that before it releases,
  even if other programs of its launch do not, for the last release counts (`GemvExperts.early`).

Only `expand` is launched without `LAUNCH`: it runs beside other kernels (slabs.py).
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

from olivine.backends.devices import HOPPER, assumed_gpu, gpu_at


def _supported() -> bool:
    """Hopper and later support it; without a GPU, kernels are compiled for those."""
    if os.environ.get("TRITON_INTERPRET") == "1":
        return False
    gpu = assumed_gpu() or gpu_at(torch.cuda.current_device() if torch.cuda.is_initialized() else 0) or HOPPER
    return gpu.capability[0] >= 9


_ON = _supported()
_DEPENDENT: tl.constexpr = tl.constexpr(_ON)
LAUNCH: dict[str, Any] = {"launch_pdl": True} if _ON else {}


def registers(count: int) -> dict[str, Any]:
    """For a launch: registers a thread may use. Given a limit, the compiler uses them and loads early."""
    return {} if os.environ.get("TRITON_INTERPRET") == "1" else {"maxnreg": count}


_CARVEOUT = 9  # the driver's CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT


@cache
def _set_carveout(function: int, percent: int) -> None:
    try:
        driver = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
        driver.cuFuncSetAttribute(ctypes.c_void_p(function), _CARVEOUT, percent)
    except (OSError, AttributeError):
        pass  # only slower without


def set_shared_memory_carveout(kernel: Any, percent: int) -> None:
    """Tells the driver how much of a multiprocessor's memory should be shared memory; the rest is L1 cache.

    A kernel that needs another division than the previous one cannot start early: it waits until a
    multiprocessor is empty. By default the driver makes room for as many programs as fit on one; where there
    are no more programs than multiprocessors, room for one is enough, and the division can stay as it is.
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
    """Waits for the previous kernel."""
    if _DEPENDENT:
        gdc_wait()


@triton.jit
def release():
    """Lets the next kernel start, as far as there is room for it."""
    if _DEPENDENT:
        gdc_launch_dependents()


@triton.jit
def keep_loads_early(M):
    """Keeps the loads before it there: else the compiler, to save registers, moves each to where it is used,
    and waits for it.

    It is one more release, which changes nothing, in a loop of min(M, 1) rounds, whose number the compiler
    does not know. Without dependent launch it does nothing.
    """
    for _ in range(tl.minimum(M, 1)):
        release()


@triton.jit
def keep_early(x):
    """x, of bfloat16 numbers and eight or more a thread, which is computed before a wait; else the compiler,
    to save registers, computes it where it is used.

    A store that never happens wants it there: x must not be NaN. Without dependent launch this does nothing.
    (With an operand that says whether to store, Triton 3.7 would exchange x through shared memory after it.)
    """
    if _DEPENDENT:
        ASM: tl.constexpr = (
            "{ .reg .pred nan; setp.eq.u32 nan, $4, 0xFFFFFFFF;"
            " @nan st.shared.b32 [$4], $5; @nan st.shared.b32 [$6], $7;"
            " mov.b32 $0, $4; mov.b32 $1, $5; mov.b32 $2, $6; mov.b32 $3, $7; }"
        )
        x = tl.inline_asm_elementwise(
            ASM, "=&r,=&r,=&r,=&r,r,r,r,r", [x], dtype=x.dtype, is_pure=True, pack=8
        )
    return x


@triton.jit
def release_stored():
    """Lets the next kernel start when what this program has stored can be read, even before a wait."""
    if _DEPENDENT:
        tl.inline_asm_elementwise(
            "fence.acq_rel.gpu; // dummy $0", "=r", [], dtype=tl.int32, is_pure=False, pack=1
        )
        tl.debug_barrier()
    release()


@triton.jit
def begin():
    """Waits, then releases."""
    wait()
    release()
