"""A plan lowered to steps on one device: what forwards and chains run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from olivine.backends.cuda.graphs import GraphRecorder
from olivine.backends.cuda.launch import Step
from olivine.backends.cuda.rows import Rows
from olivine.plan import Plan


@dataclass(frozen=True)
class Executable:
    plan: Plan
    steps: Sequence[Step]
    device: torch.device
    recorder: GraphRecorder

    def run(self, rows: Rows, logits: bool = True) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Launches all steps, or those up to the hidden states: hidden states, and logits if wanted."""
        hidden = self.plan.hidden.id
        for step in self.steps:
            step.run(rows)
            if not logits and hidden in rows.values:
                break
            for value in step.releases:
                rows.values.pop(value, None)
        return rows.values[hidden], rows.values.get(self.plan.logits.id)
