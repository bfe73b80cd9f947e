"""Muon for the matrices: momentum, made orthogonal by a few steps of Newton and Schulz."""

from __future__ import annotations

from collections import defaultdict

import torch
from torch import Tensor


def orthogonal(stack: Tensor) -> Tensor:
    """The nearest orthogonal matrices, roughly: singular values come to 0.7..1.2. [N, rows, columns]"""
    a, b, c = 3.4445, -4.7750, 2.0315
    tall = stack.size(-2) > stack.size(-1)
    x = (stack.mT if tall else stack).bfloat16()
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        square = x @ x.mT
        x = a * x + (b * square + c * square @ square) @ x
    return x.mT if tall else x


class Muon(torch.optim.Optimizer):
    """Matrices of one shape are done as one stack, since each is small."""

    def __init__(self, weights: list[Tensor], lr: float, momentum: float = 0.95, decay: float = 0.05) -> None:
        by_shape: dict[torch.Size, list[Tensor]] = defaultdict(list)
        for weight in weights:
            by_shape[weight.shape].append(weight)
        super().__init__([{"params": same} for same in by_shape.values()], {"lr": lr})
        self.momentum, self.decay = momentum, decay

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        for group in self.param_groups:
            weights = group["params"]
            gradients = torch.stack([weight.grad for weight in weights])
            state = self.state[weights[0]]
            if "moving" not in state:
                state["moving"] = torch.zeros_like(gradients)
            moving = state["moving"].lerp_(gradients, 1 - self.momentum)
            update = orthogonal(gradients.lerp(moving, self.momentum))
            # As large as Adam's updates are, so that one learning rate serves both.
            size = 0.2 * max(update.shape[-2:]) ** 0.5
            torch._foreach_mul_(weights, 1 - group["lr"] * self.decay)
            torch._foreach_add_(
                weights, list(update.to(weights[0].dtype).unbind()), alpha=-group["lr"] * size
            )
