"""The experts of a mixture's rows, in Triton's interpreter, against the reference."""

from __future__ import annotations

import os

import numpy as np
import pytest

pytest.importorskip("triton")
if os.environ["TRITON_INTERPRET"] != "1":
    pytest.skip("runs in Triton's interpreter", allow_module_level=True)

import torch

from olivine.backends.cuda.kernels.expert_blocks import expert_blocks
from olivine.backends.cuda.kernels.routing import route
from olivine.backends.reference import kernels as plain


@pytest.mark.parametrize(
    ("experts", "top_k", "normalize", "parts"), [(16, 4, True, 1), (7, 3, False, 2), (3, 3, True, 3)]
)
def test_experts_and_shares(experts: int, top_k: int, normalize: bool, parts: int) -> None:
    """The router's logits may come in parts; ties go to the lowest id."""
    rng = np.random.default_rng(experts)
    logits = rng.standard_normal((parts, 5, experts)).astype(np.float32)
    logits[:, 1] = 0.5
    logits[:, 2, 1:] = -np.inf
    scale = rng.random(experts, np.float32)
    given = torch.from_numpy(logits if parts > 1 else logits[0])
    shares, chosen = route(given, top_k, normalize=normalize, scale=torch.from_numpy(scale))
    expected_ids, expected = plain.route(logits.sum(0), top_k, normalize)
    np.testing.assert_array_equal(chosen.view(5, top_k).numpy(), expected_ids)
    np.testing.assert_allclose(shares.view(5, top_k).numpy(), expected * scale[expected_ids], rtol=1e-5)
    plainly, _ = route(given, top_k, normalize=normalize)
    np.testing.assert_allclose(plainly.view(5, top_k).numpy(), expected, rtol=1e-5)


def test_rows_of_nan_take_experts_that_there_are() -> None:
    """Padding rows are whatever was in memory, and what reads the experts' weights must not leave them."""
    logits = torch.full((3, 5), float("nan"))
    logits[1] = float("inf")
    logits[2, 1:4] = 1.0
    _, chosen = route(logits, 3, normalize=True)
    taken = chosen.view(3, 3).tolist()
    assert taken[:2] == [[0, 1, 2]] * 2
    assert all(sorted(set(row)) == sorted(row) and max(row) < 5 for row in taken)


def test_no_rows() -> None:
    shares, chosen = route(torch.zeros(0, 4), 2, normalize=True)
    assert len(shares) == len(chosen) == 0


@pytest.mark.parametrize(("rows", "experts", "size"), [(200, 5, 16), (3, 70, 8), (64, 1, 8), (0, 4, 8)])
def test_rows_are_grouped_by_expert(rows: int, experts: int, size: int) -> None:
    """Every row stands once in a block of its expert; an expert has no block more than its rows fill."""
    ids = np.random.default_rng(rows).integers(0, experts, rows).astype(np.int32)
    blocks = expert_blocks(torch.from_numpy(ids), experts, size, 2)
    owners, places = blocks.expert_of.numpy(), blocks.row_ids.view(-1, size).numpy()
    taken = owners >= 0
    assert sorted(places[places >= 0].tolist()) == list(range(rows))
    assert (places[~taken] < 0).all()
    for owner, place in zip(owners[taken], places[taken], strict=True):
        assert (ids[place[place >= 0]] == owner).all()
    counts = np.bincount(ids, minlength=experts)
    np.testing.assert_array_equal(np.bincount(owners[taken], minlength=experts), -(-counts // size))
