"""Two programs whose mixtures take the same experts, so that their numbers can be compared.

Where two experts are all but tied, a rounding error chooses between them, and that row is then another; so
are those that attend to it. Numbers say nothing about such rows: the choice has to be judged for itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from olivine.backends.cuda import CudaProgram
from olivine.backends.cuda.steps import Rows
from olivine.backends.reference import ReferenceProgram, kernels
from olivine.plan import ops


class Recording(ReferenceProgram):
    """The reference backend, which keeps the router logits of its last step, [T, E] by the router's value."""

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self.routers: dict[int, np.ndarray] = {}

    def _moe(self, op: ops.MoE, x: np.ndarray, router: np.ndarray) -> np.ndarray:
        self.routers[op.router.id] = router.copy()
        return super()._moe(op, x, router)


@contextmanager
def same_experts(ours: CudaProgram, theirs: Recording) -> Iterator[list[float]]:
    """Within it, a row of `ours` takes the experts that the row of its position took in `theirs`.

    Where it would have taken another, the two experts' logits change places: all else stays its own. Gives a
    list that grows by how far apart they were, as a share of the spread of the router's logits.
    """
    mixtures = [op for op in ours.plan.ops if isinstance(op, ops.MoE)]
    steps = [step for step in ours.executable.steps if step.name == "mixture"]
    before = [step.run for step in steps]
    gaps: list[float] = []

    def traded(op: ops.MoE, run: Callable[[Rows], None]) -> Callable[[Rows], None]:
        def run_traded(rows: Rows) -> None:
            own = rows.values[op.router.id]
            expected = theirs.routers[op.router.id]
            logits = own.float().cpu().numpy().copy()
            positions = rows.positions.cpu().numpy()
            right, _ = kernels.route(expected[positions], op.top_k, op.normalize)
            found, _ = kernels.route(logits, op.top_k, op.normalize)
            for at, row, wanted, taken in zip(positions, logits, right, found, strict=True):
                if at < 0:  # no row of the batch
                    continue
                pairs = zip(np.setdiff1d(wanted, taken), np.setdiff1d(taken, wanted), strict=True)
                for missing, other in pairs:
                    gaps.append(float((row[other] - row[missing]) / expected.std()))
                    row[[missing, other]] = row[[other, missing]]
            rows.values[op.router.id] = torch.from_numpy(logits).to(own)
            run(rows)

        return run_traded

    for step, op in zip(steps, mixtures, strict=True):
        step.run = traded(op, step.run)
    recorder = ours.executable.recorder
    recorded, recorder.enabled = recorder.enabled, False  # a graph would not call the replaced steps
    try:
        yield gaps
    finally:
        recorder.enabled = recorded
        for step, run in zip(steps, before, strict=True):
            step.run = run
