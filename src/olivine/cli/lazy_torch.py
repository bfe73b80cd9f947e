"""torch and Triton without what only others need: a third of their import.

`torch._meta_registrations` tells torch.compile and the like the shapes of results. Here it is imported when
something of it is used, which is never. Triton looks through all installed packages for backends of others,
and here only for its own. A program that imports Olivine may use both, so only commands do this.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from types import ModuleType
from typing import Any

_NAME = "torch._meta_registrations"


class _Lazy(ModuleType):
    """Stands in for a module until something of it is needed."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # what Python asks of any module
            raise AttributeError(name)
        sys.modules.pop(self.__name__, None)
        return getattr(import_module(self.__name__), name)


def import_torch_lazily() -> None:
    """To be called before torch is imported."""
    if "torch" not in sys.modules:
        sys.modules.setdefault(_NAME, _Lazy(_NAME))
        os.environ.setdefault("TRITON_BACKENDS_IN_TREE", "1")
