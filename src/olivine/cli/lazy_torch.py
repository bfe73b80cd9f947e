"""torch without what only its compiler needs, a third of its import, and Triton without a search for the
backends of others.

`torch._meta_registrations` tells torch.compile and the like the shapes of results. Here it is imported when
something of it is used, which is never. Triton looks through all installed packages for further backends;
here it takes its own. A program that imports Olivine may use torch.compile and such backends, so only
commands do this.
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
    """To be called before torch, or Triton, is imported."""
    if "torch" not in sys.modules:
        sys.modules.setdefault(_NAME, _Lazy(_NAME))
        os.environ.setdefault("TRITON_BACKENDS_IN_TREE", "1")
