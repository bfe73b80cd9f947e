"""The CPU backend's instruction sets, one at a time, and the errors of its logits."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from olivine.backends.cpu import native

# Of this architecture; a CPU may lack the last ones.
ARM = platform.machine().lower() in ("aarch64", "arm64")
ISAS = ("plain", "neon", "dotprod", "i8mm") if ARM else ("plain", "avx2", "avxvnni", "avx512", "amx")
BFLOAT16 = ("amx", "i8mm")  # where prompt rows are computed in bfloat16
# Where they are computed in int8 if the weights are quantized, with codes of so many bits at most.
INT8 = {"avx2": 6, "avxvnni": 8, "avx512": 8, "dotprod": 8}
SAME_BITS = ("avx512", "dotprod")  # where linear ops then give them the bits of generated rows
ONE_KIND = ("avx512",)  # where attention does so too


def here() -> list[str]:
    """Those that this CPU has."""
    before = native.lib().olv_isa()
    found = [isa for isa in ISAS if not native.lib().olv_set_isa(isa.encode())]
    native.lib().olv_set_isa(before)
    return found


@contextmanager
def use(isa: str) -> Iterator[None]:
    """Programs that are made in here run on this instruction set; skips the test where the CPU lacks it."""
    before = native.lib().olv_isa()
    if native.lib().olv_set_isa(isa.encode()):
        pytest.skip(f"this CPU has no {isa}")
    try:
        yield
    finally:
        native.lib().olv_set_isa(before)


def error(ours: np.ndarray, theirs: np.ndarray, share: float = 0.9) -> float:
    """The error (root mean square, as a share of the logits' spread) that nine of ten rows stay below.

    Not of every row: in a mixture a rounding error may choose another expert, and that row is then another.
    """
    rows = np.sqrt(np.mean(np.square(ours - theirs), axis=1)) / theirs.std()
    return float(np.quantile(rows, share))
