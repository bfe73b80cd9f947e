"""Log-probabilities by the kernels that draw, in Triton's interpreter, against the definition."""

from __future__ import annotations

import os

import numpy as np
import pytest

pytest.importorskip("triton")
if os.environ["TRITON_INTERPRET"] != "1":
    pytest.skip("these tests run in Triton's interpreter", allow_module_level=True)

import torch

from olivine.backends import Sampling
from olivine.backends.cuda.kernels.advance import RowState
from olivine.backends.cuda.kernels.reports import TOPS, Reports
from olivine.backends.cuda.kernels.sampling import Workspace, choose
from olivine.engine import sampling as definition
from oracles.drawing import choices, is_defined
from oracles.matrices import CPU

GREEDY = Sampling()
ALL = Sampling(temperature=9.0, seed=3)
FILTERED = Sampling(temperature=1.5, top_k=20, top_p=0.9, seed=4)
NUCLEUS = Sampling(temperature=2.0, top_p=0.9, seed=5)


@pytest.mark.parametrize(
    "hows", [(GREEDY,) * 4, (ALL, FILTERED, GREEDY, ALL), (NUCLEUS, ALL, FILTERED, GREEDY)]
)
@pytest.mark.parametrize(
    ("size", "times"),
    [(40, 1), (700, 2), (16_500, 1), pytest.param(16_500, 3, marks=pytest.mark.exhaustive)],
)
def test_log_probabilities_with_ties(size: int, times: int, hows: tuple[Sampling, ...]) -> None:
    """Equal logits, of which the lowest tokens count, in lists that are short and long; and logits of minus
    infinity. Of the fourth step of a chain, drawn in several ways."""
    rng = np.random.default_rng(size)
    logits = np.stack(
        [
            rng.standard_normal(size) * 4,
            rng.integers(0, 3, size),  # most are equal
            np.where(rng.random(size) < 0.01, rng.standard_normal(size), -np.inf),
            np.where(np.arange(size) < 300, 1.0, 0.0),  # in one chunk
            np.where(np.isin(np.arange(size), [2, 3, size - 1]), 1.0, -np.inf),  # few are legal
        ]
    ).astype(np.float32)
    logits[2, 5] = 1.0
    logits, hows, rows = np.tile(logits, (times, 1)), (*hows, hows[0]) * times, 5 * times
    state, reports = RowState.empty(rows, 5, CPU), Reports.empty(rows, size, CPU).with_room(5)
    state.step.fill_(3)
    state.positions.fill_(7)
    sampled, by_histogram = hows[0] is not GREEDY, NUCLEUS in hows
    space = Workspace.empty(rows, size, CPU)
    choose(torch.from_numpy(logits), choices(hows, size, CPU), state, space, sampled, by_histogram, reports)
    assert state.step.tolist() == [4] * rows
    assert int(reports.count[4]) == 3, "no list of what is illegal"
    for row, how in enumerate(hows):
        token = definition.sample(logits[row], how, 8)
        assert int(state.drawn[row, 3]) == token
        found = reports.read([4] * rows, [min(TOPS, size)] * rows)[row][3]
        assert len(found.top_tokens) == min(TOPS, size) and is_defined(found, logits[row], token)
    assert not reports.drawn[:, 4].any() and not reports.top_ids[:, [0, 1, 2, 4]].any()
