"""Whether a backend computes a random plan as the reference does, within what its number types explain.

How much an error grows is a matter of the plan: a norm of two columns makes much of little. So the bound is
what the plan makes of random errors as large as the backend's roundings, a few times.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from olivine.backends import Result
from oracles.random_plans import Case
from oracles.recording import Noisy, Recording, undecided

TIMES = 6  # what the worst of many rows may be off by, beside the worst of two random runs
FLOAT32 = 0.01  # the share of bfloat16's errors that float32 may have: its steps are 2^-16 of those
VAGUE = 0.3  # of the spread: what is bound by more is not known


class Expected:
    """What the reference gives for a case, and how far another backend may be off."""

    def __init__(self, case: Case, *, int8: bool = False) -> None:
        self.case = case
        options = {"page_counts": case.pages, "page_size": 32}
        self.reference = Recording(case.plan, case.weights, **options)
        self.results = case.run(self.reference)
        self._noisy = []
        self.errors = 0.0
        for seed in (1, 2):
            noisy = Noisy(case.plan, case.weights, seed=seed, int8=int8, **options)
            self.errors = max(self.errors, error(case.run(noisy), self.results))
            self._noisy.append(noisy)

    def informative(self) -> bool:
        return self.errors * TIMES < VAGUE

    def undecided(self, share: float = 1.0) -> bool:
        """Whether experts that are all but tied leave open what is right."""
        return any(undecided(self.reference, noisy, TIMES * share) for noisy in self._noisy)

    def disagreement(self, found: Sequence[Result], share: float = 1.0) -> str | None:
        """What is wrong with a backend's results, whose roundings are `share` times bfloat16's."""
        off = error(found, self.results)
        bound = TIMES * share * self.errors + 2e-5
        return (
            None if off <= bound else f"off by {off:.3g} of the spread, where {bound:.3g} is roundings' part"
        )


def error(ours: Sequence[Result], theirs: Sequence[Result]) -> float:
    """The largest error of a row (root mean square, as a share of the results' spread)."""
    worst = 0.0
    for name in ("hidden", "logits"):
        runs = ([getattr(result, name) for result in run] for run in (ours, theirs))
        a, b = (np.concatenate(run).astype(np.float64) for run in runs)
        assert a.shape == b.shape
        if a.size:
            assert np.isfinite(b).all()
            rows = np.sqrt(np.mean(np.square(a - b), axis=1)) / max(float(b.std()), 1e-3)
            worst = max(worst, float(rows.max()) if np.isfinite(a).all() else np.inf)
    return worst
