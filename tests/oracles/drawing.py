"""How rows are drawn, as the kernels of the CUDA backend take it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from olivine.backends import Sampling
from olivine.backends.base import TokenLogprobs
from olivine.backends.cuda.kernels.sampling import Choices
from olivine.engine import sampling as definition


def choices(hows: Sequence[Sampling], size: int, device: torch.device) -> Choices:
    """Of rows of a vocabulary of that size."""
    how = Choices.empty(len(hows), device)
    how.temperature.copy_(torch.tensor([s.temperature for s in hows]))
    how.top_k.copy_(torch.tensor([min(s.top_k, size) for s in hows]))
    how.top_p.copy_(torch.tensor([s.top_p for s in hows], dtype=torch.float64))
    how.log_min_p.copy_(torch.tensor([math.log(s.min_p) if s.min_p else -math.inf for s in hows]))
    seeds = np.array([s.seed for s in hows], np.uint64).view(np.int32).reshape(-1, 2)
    how.seed.copy_(torch.from_numpy(seeds.copy()))
    return how


def is_defined(found: TokenLogprobs, logits: np.ndarray, token: int) -> bool:
    """Whether log-probabilities are those of the definition, but for the order in which masses are added."""
    expected = definition.logprobs(logits, token, len(found.top_tokens))
    values, wanted = ([report.logprob, *report.top_logprobs] for report in (found, expected))
    return found.top_tokens == expected.top_tokens and np.allclose(values, wanted, rtol=0, atol=1e-9)
