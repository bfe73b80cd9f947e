"""A plan lowered to steps on one device: what forwards and chains run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from olivine.backends.cuda.graphs import GraphRecorder
from olivine.backends.cuda.launch import Step
from olivine.backends.cuda.rows import Rows
from olivine.backends.cuda.slabs import Ring, RingSlabs
from olivine.plan import Plan, ops, rank_ops
from olivine.plan.fused_ops import outputs_of, parts_of


@dataclass(frozen=True)
class Executable:
    plan: Plan
    steps: Sequence[Step]
    device: torch.device
    recorder: GraphRecorder
    ring: Ring | None  # for slabs

    def slabs(self, rows: int) -> RingSlabs | None:
        """For the slabs of one forward of so many rows, if there is a ring."""
        return None if self.ring is None else RingSlabs(self.ring, rows)

    def run(self, rows: Rows, logits: bool = True) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Hidden states and, if wanted, logits: else it launches only what hidden states and cache need."""
        for step in self.steps if logits else self.steps[: self._hidden_end]:
            step.run(rows)
            for value in step.releases:
                rows.release(value)
        hidden = rows.values.get(self.plan.hidden.id)
        if hidden is None:  # only the last stage of a pipeline has results
            hidden = torch.empty((rows.count("outputs"), 0), device=self.device)
            return hidden, hidden if logits else None
        return hidden, rows.values.get(self.plan.logits.id)

    @cached_property
    def _hidden_end(self) -> int:
        """The steps before it compute the hidden states, write the KV cache, and hand rows on."""
        return 1 + max(
            index
            for index, step in enumerate(self.steps)
            if self.plan.hidden in outputs_of(step.op)
            or isinstance(step.op, rank_ops.Send)
            or any(isinstance(part, ops.StoreKV) for part in parts_of(step.op))
        )
