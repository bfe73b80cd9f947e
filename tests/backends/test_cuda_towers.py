"""Towers of published small models on the CUDA backend, in Triton's interpreter, against the reference."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("triton")
if os.environ["TRITON_INTERPRET"] != "1":
    pytest.skip("these tests run in Triton's interpreter", allow_module_level=True)

from olivine.backends.cuda import CudaProgram
from olivine.backends.cuda.forward import Forward
from olivine.backends.cuda.micro_batch import micro_batches
from olivine.backends.reference import ReferenceProgram
from olivine.formats import open_checkpoint
from olivine.loading import model_of
from olivine.towers import Tower, batch_of, towers_of
from oracles import folders, seeing

GRIDS = ((6, 3), (3, 3))  # columns and rows of patches


def parts_of(tower: Tower) -> list[seeing.Features]:
    """Two images or sounds; a sound ends in a row that is not full."""
    c, rng = tower.config, np.random.default_rng(0)
    width = tower.built.plan.input.out.width  # type: ignore[union-attr]
    if hasattr(c, "side"):
        places = [seeing.cells(c.side, c.side, c.pool)] * 2
    elif tower.kind == "vision":
        places = [seeing.cells(*size, getattr(c, "pool", 1)) for size in GRIDS]
    else:
        places = [np.array([[4, 0]] * (n - 1) + [[3, 0]], np.int32) for n in (13, 3)]
    return [seeing.Features(rng.random((len(at), width), np.float32) * 2 - 1, at) for at in places]


@pytest.mark.parametrize(
    ("family", "kind"),
    [
        ("gemma3", "vision"),
        ("gemma4-e2b", "vision"),
        ("gemma4-e2b", "audio"),
        ("gemma4-12b", "vision"),
        ("gemma4-12b", "audio"),
    ],
)
def test_towers_agree_with_the_reference(family: str, kind: str, tmp_path: Path) -> None:
    checkpoint = open_checkpoint(folders.write_multimodal(family, tmp_path / family))
    (tower,) = (found for found in towers_of(checkpoint, model_of(checkpoint))[0] if found.kind == kind)
    plan, parts = tower.built.plan, parts_of(tower)

    def run(cls: Any, parts: list[seeing.Features], **options: Any) -> np.ndarray:
        program = cls(plan, tower.built.weights, page_counts=[64] * len(plan.groups), **options)
        hidden: np.ndarray = program.step(batch_of(tower, parts, program.page_size), logits=False).hidden
        return hidden

    ours, theirs = run(CudaProgram, parts, device="cpu"), run(ReferenceProgram, parts)
    rows = np.sqrt(np.mean(np.square(ours - theirs), axis=1)) / theirs.std()
    assert np.quantile(rows, 0.9) < 0.04, rows
    alone = run(CudaProgram, parts[-1:], device="cpu")
    assert np.array_equal(alone, ours[-len(alone) :])


def test_what_an_image_leaves_on_the_device_is_not_taken_for_the_next_ones(tmp_path: Path) -> None:
    """Images of as many patches share a forward, whose inputs are copied only where they differ."""
    checkpoint = open_checkpoint(folders.write_multimodal("gemma4-e2b", tmp_path / "model"))
    (tower,) = (found for found in towers_of(checkpoint, model_of(checkpoint))[0] if found.kind == "vision")
    plan, rng = tower.built.plan, np.random.default_rng(0)
    program = CudaProgram(plan, tower.built.weights, page_counts=[64] * len(plan.groups), device="cpu")
    forward = None
    for size in ((6, 3), (3, 6), (3, 6), (6, 3)):
        at = seeing.cells(*size, tower.config.pool)
        rows = rng.random((len(at), plan.input.out.width), np.float32)  # type: ignore[union-attr]
        batch = batch_of(tower, [seeing.Features(rows, at)], program.page_size)
        (part,) = micro_batches(batch)
        forward = forward or Forward(program.executable, part.shape(batch, False))
        forward.fill_tower(batch, part)
        given = forward._tower_rows()
        assert np.array_equal(given.embeddings.numpy(), rows)
        assert np.array_equal(given.coordinates.numpy(), at)
        assert np.array_equal(forward.positions.numpy(), np.arange(18))
