"""The code grids: sets of words, derived from the tables of the format's own library."""

from __future__ import annotations

import re
from pathlib import Path

import gguf.quants
import numpy as np
import pytest

from olivine.backends import reference
from olivine.backends.reference.grids import grid

FILE = Path(reference.__file__).parents[1] / "grids.inc"
NAMES = ("IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ1_S")


def table_of(name: str) -> np.ndarray:
    kind = getattr(gguf.quants, name)
    kind.init_grid()
    return kind.grid.reshape(kind.grid_shape)


@pytest.mark.parametrize("name", NAMES)
def test_the_file_has_the_words_of_the_library(name: str) -> None:
    table = table_of(name)
    values = sorted(set(table.reshape(-1)))
    digits = np.searchsorted(values, table)
    words = (digits * len(values) ** np.arange(table.shape[1])).sum(axis=1)
    assert (np.diff(words) > 0).all()  # so that the set is the whole grid
    bits = np.zeros(-(-(len(values) ** table.shape[1]) // 4) * 4, np.uint8)
    bits[words] = 1
    figures = "".join(f"{figure:x}" for figure in bits.reshape(-1, 4) @ [1, 2, 4, 8])
    entry = FILE.read_text().split(f"GRID({name}, {table.shape[1]}, ")[1].split(")\nGRID")[0]
    assert "".join(re.findall(r'"(.*)"', entry)) == figures


@pytest.mark.parametrize("name", NAMES)
def test_it_is_read_in_the_librarys_order(name: str) -> None:
    eighths = 8 if name == "IQ1_S" else 1
    np.testing.assert_array_equal(grid(name), eighths * table_of(name))
