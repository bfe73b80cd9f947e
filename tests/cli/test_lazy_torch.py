"""torch without what its compiler needs, until that is used, and Triton without the backends of others."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import olivine

CODE = """
import sys
from olivine.cli.lazy_torch import import_torch_lazily
import_torch_lazily()
import torch

def is_lazy():
    return type(sys.modules["torch._meta_registrations"]).__name__ == "_Lazy"

assert torch.arange(6).view(2, 3).index_select(0, torch.tensor([1])).tolist() == [[3, 4, 5]]
print(is_lazy())
assert callable(torch._meta_registrations.register_meta)  # what makes torch import it
rows = torch.empty((4, 3), device="meta").index_select(0, torch.empty(2, dtype=torch.int32, device="meta"))
print(is_lazy(), tuple(rows.shape))
"""


def test_what_was_left_out_is_imported_when_it_is_used() -> None:
    pytest.importorskip("torch")
    environment = {**os.environ, "PYTHONPATH": str(Path(olivine.__file__).parents[1])}
    run = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, env=environment)
    assert run.returncode == 0, run.stderr
    assert run.stdout == "True\nFalse (2, 3)\n"


BACKENDS = """
import importlib.metadata
from olivine.cli.lazy_torch import import_torch_lazily
import_torch_lazily()
importlib.metadata.entry_points = lambda: 1 / 0
from triton.backends import backends
print("nvidia" in backends)
"""


def test_triton_does_not_look_through_installed_packages() -> None:
    pytest.importorskip("triton")
    environment = {**os.environ, "PYTHONPATH": str(Path(olivine.__file__).parents[1])}
    environment.pop("TRITON_BACKENDS_IN_TREE", None)
    run = subprocess.run([sys.executable, "-c", BACKENDS], capture_output=True, text=True, env=environment)
    assert run.stdout == "True\n", run.stderr
