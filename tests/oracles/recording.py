"""The reference backend with what its mixtures decided by, and with roundings as other backends have them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from olivine.backends import Batch, Result
from olivine.backends.reference import ReferenceProgram
from olivine.plan import Value, Weight, ops

BFLOAT16 = 2.0**-8  # a step, as a share of the number


class Recording(ReferenceProgram):
    """Keeps the router logits of every row that it ran: by the router's value, sequence and position."""

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self.routers: dict[tuple[int, int, int], np.ndarray] = {}
        self._batch: Batch | None = None

    def step(self, batch: Batch, *, logits: bool = True) -> Result:
        self._batch = batch
        return super().step(batch, logits=logits)

    def spread(self, router: int) -> float:
        return float(np.std([logits for (value, _, _), logits in self.routers.items() if value == router]))

    def _moe(self, op: ops.MoE, x: np.ndarray, router: np.ndarray) -> np.ndarray:
        assert self._batch is not None
        batch = self._batch
        at = np.arange(len(batch.tokens)) if op.router.rows == "tokens" else batch.outputs
        for row, logits in zip(at, router, strict=True):
            place = (op.router.id, int(batch.sequences[row]), int(batch.positions[row]))
            self.routers[place] = logits.copy()
        return super()._moe(op, x, router)


class Noisy(Recording):
    """Random errors of the size of another backend's roundings: what a plan makes of those is what that
    backend may be off by. Products and attention take operands of bfloat16 and, with `int8`, products with
    quantized weights take activations of eight bits with a scale a block."""

    def __init__(self, *given: Any, seed: int, int8: bool, **options: Any) -> None:
        super().__init__(*given, **options)
        self._rng, self._int8 = np.random.default_rng(seed), int8

    def _run(self, op: ops.Op, batch: Batch, at: Callable[[Value], np.ndarray]) -> np.ndarray | None:
        match op:
            case ops.Linear():
                return super()._run(op, batch, self._rounding(at, {op.x.id}, op.weight))
            case ops.MoE():
                # Its inner activations are rounded too: an error as large at its end.
                made = super()._run(op, batch, self._rounding(at, {op.x.id} - {op.router.id}, op.gate))
                assert made is not None
                return self._rounded(made, op.down)
            case ops.StoreKV() | ops.Attention():
                made = super()._run(op, batch, self._rounding(at, {value.id for value in op.inputs()}, None))
                return None if made is None else self._rounded(made, None)
            case _:
                return super()._run(op, batch, at)

    def _rounding(
        self, at: Callable[[Value], np.ndarray], values: set[int], weight: Weight | None
    ) -> Callable[[Value], np.ndarray]:
        return lambda value: self._rounded(at(value), weight) if value.id in values else at(value)

    def _rounded(self, x: np.ndarray, weight: Weight | None) -> np.ndarray:
        y = x * (1 + BFLOAT16 * self._rng.uniform(-1, 1, x.shape))
        dtype = None if weight is None else self._weights[weight.name][0].dtype
        if self._int8 and dtype is not None and dtype.is_quantized:
            largest = np.abs(x).max(-1, keepdims=True)  # of a row: that of a block is no larger
            y = y + largest / 127 * self._rng.uniform(-0.5, 0.5, x.shape)
        return y.astype(np.float32)


def undecided(exact: Recording, noisy: Recording, share: float = 1.0) -> bool:
    """Whether errors `share` times those of the noisy run may have changed some row's choice of experts."""
    tops = {op.router.id: op.top_k for op in exact.plan.ops if isinstance(op, ops.MoE)}
    for (router, *row), logits in exact.routers.items():
        top, error = tops[router], np.abs(noisy.routers[router, row[0], row[1]] - logits).max()
        ordered = np.sort(logits)[::-1]
        if top < len(ordered) and ordered[top - 1] - ordered[top] <= 2 * share * error + 1e-6:
            return True
    return False
