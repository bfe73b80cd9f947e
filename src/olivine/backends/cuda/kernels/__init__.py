"""Triton kernels, one subject a file. Each has a launcher that takes torch tensors."""

from __future__ import annotations

import sys

from triton.runtime.jit import JITFunction


def hash_kernels() -> None:
    """Makes the names of all kernels in Triton's cache the same in every process.

    A name has the hash of what the kernel calls. In Triton 3.6 that depends on what was hashed before, for
    other kernels. So all are hashed in one order, before any is launched.
    """
    for name in sorted(sys.modules):
        if name.startswith(f"{__name__}."):
            for function in list(vars(sys.modules[name]).values()):
                if isinstance(function, JITFunction):
                    function.cache_key  # noqa: B018
