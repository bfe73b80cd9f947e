"""Two programs whose mixtures take the same experts, so that their numbers can be compared.

Where two experts are all but tied, a rounding error chooses between them, and that row is then another; so
are those that attend to it. Numbers say nothing about such rows: the choice has to be judged for itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch

from olivine.backends.cuda import CudaProgram
from olivine.backends.cuda.rows import Rows
from olivine.backends.reference import kernels
from olivine.plan import ops
from oracles.recording import Recording


@contextmanager
def same_experts(ours: CudaProgram, theirs: Recording) -> Iterator[list[float]]:
    """Within it, a row of `ours` takes the experts that the same row took in `theirs`.

    Where it would have taken another, the two experts' logits change places: all else stays its own. Gives a
    list that grows by how far apart they were, as a share of the spread of the router's logits.
    """
    steps = [step for step in ours.executable.steps if isinstance(step.op, ops.MoE)]
    before = [step.run for step in steps]
    gaps: list[float] = []

    def traded(op: ops.MoE, run: Callable[[Rows], None]) -> Callable[[Rows], None]:
        def run_traded(rows: Rows) -> None:
            given = rows.values[op.router.id]
            own = given.sum(0) if given.ndim == 3 else given
            logits, spread = own.float().cpu().numpy().copy(), theirs.spread(op.router.id)
            at = slice(None) if op.router.rows == "tokens" or rows.outputs is None else rows.outputs.cpu()
            places = zip(rows.sequences.cpu()[at].tolist(), rows.positions.cpu()[at].tolist(), strict=True)
            for row, (sequence, position) in zip(logits, places, strict=True):
                expected = theirs.routers.get((op.router.id, sequence, position))
                if position < 0 or expected is None:  # padding
                    continue
                wanted, taken = (
                    kernels.route(each[None], op.top_k, op.normalize)[0][0] for each in (expected, row)
                )
                pairs = zip(np.setdiff1d(wanted, taken), np.setdiff1d(taken, wanted), strict=True)
                for missing, other in pairs:
                    gaps.append(float((row[other] - row[missing]) / spread))
                    row[[missing, other]] = row[[other, missing]]
            rows.values[op.router.id] = torch.from_numpy(logits).to(own)
            run(rows)
            rows.values[op.router.id] = given

        return run_traded

    for step in steps:
        assert isinstance(step.op, ops.MoE)
        step.run = traded(step.op, step.run)
    recorder = ours.executable.recorder
    recorded, recorder.enabled = recorder.enabled, False  # a graph would not call the replaced steps
    try:
        yield gaps
    finally:
        recorder.enabled = recorded
        for step, run in zip(steps, before, strict=True):
            step.run = run
