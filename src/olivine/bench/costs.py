"""The bytes that a token must read and the operations that a prompt takes: the limits of a model's speed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from olivine.plan import Plan, ops
from olivine.tensor import Tensor


@dataclass(frozen=True)
class Costs:
    """Bytes and arithmetic; a multiplication and an addition are two operations."""

    decode_bytes: int  # of weights, for one token of one sequence
    prefill_int8: int  # operations with quantized weights, which integer units can do
    prefill_float: int  # operations with float weights, and those of attention


def costs(plan: Plan, weights: Mapping[str, Sequence[Tensor]], prompt: int) -> Costs:
    """The costs of a plan; prefill of a prompt of that many tokens, with the logits of the last."""
    tally = _Tally(weights)
    for op in plan.ops:
        rows = 1 if op.output is not None and op.output.rows == "outputs" else prompt
        match op:
            case ops.Embed():
                # One row. A tied LM head reads the whole table, as a separate Linear op.
                tally.read(op.weight, 1 / op.weight.shape[0])
            case ops.Linear():
                tally.multiply(op.weight, rows)
                if op.bias is not None:
                    tally.read(op.bias)
            case ops.MoE():
                for weight in (op.gate, op.up, op.down):
                    tally.multiply(weight, rows, op.top_k / weight.shape[0])
            case ops.Attention():
                window = op.window or prompt
                pairs = sum(min(position + 1, window) for position in range(prompt))
                tally.float += 4 * pairs * op.heads * op.cache.head_dim
            case _:
                for weight in op.weights():
                    tally.read(weight)
    return Costs(round(tally.bytes), round(tally.int8), round(tally.float))


class _Tally:
    def __init__(self, weights: Mapping[str, Sequence[Tensor]]) -> None:
        self.weights = weights
        self.bytes = 0.0
        self.int8 = 0.0
        self.float = 0.0

    def read(self, weight: ops.Weight, share: float = 1.0) -> None:
        self.bytes += share * sum(tensor.nbytes for tensor in self.weights[weight.name])

    def multiply(self, weight: ops.Weight, rows: int, share: float = 1.0) -> None:
        self.read(weight, share)
        for tensor in self.weights[weight.name]:
            operations = 2 * rows * share * tensor.size
            if tensor.dtype.is_quantized:
                self.int8 += operations
            else:
                self.float += operations
