"""Dependent launches: a kernel starts while the one before it still runs, and waits for its results itself.

Every kernel calls `begin` before it reads what another kernel wrote, and is launched with `LAUNCH`. What does
not depend on others (weights) may be fetched before.
"""

from __future__ import annotations

import os
from typing import Any

import triton
import triton.language as tl

_ON = os.environ.get("TRITON_INTERPRET") != "1"
DEPENDENT: tl.constexpr = tl.constexpr(_ON)
LAUNCH: dict[str, Any] = {"launch_pdl": True} if _ON else {}

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
def begin():
    """Waits for the kernel before, and only then lets the next one start: one may wait, not all of them."""
    if DEPENDENT:
        gdc_wait()
        gdc_launch_dependents()


@triton.jit
def prefetch(pointers):
    """Asks for the cache lines at the pointers to be brought into L2."""
    if DEPENDENT:
        tl.inline_asm_elementwise(
            "prefetch.global.L2 [$1]; mov.b32 $0, 0;",
            "=r,l",
            [pointers.to(tl.int64)],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )
