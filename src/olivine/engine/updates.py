"""What the caller of a request hears of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

from olivine.backends import TokenLogprobs
from olivine.errors import OlivineError

# stop: a stop token came, or the caller found a stop string; length: max_tokens or the context is reached;
# repetition: the caller found the text to repeat itself only.
Finish = Literal["stop", "length", "cancelled", "timeout", "repetition"]


@dataclass
class Timings:
    """Seconds: waiting, reading the prompt, generating."""

    queue: float = 0.0
    prefill: float = 0.0
    decode: float = 0.0


@dataclass
class Usage:
    """Tokens: of the prompt, of those the ones that were cached, and generated ones."""

    prompt: int = 0
    cached: int = 0
    completion: int = 0
    drafted: int = 0  # proposed by speculation
    accepted: int = 0  # of those, the ones that would have been drawn


@dataclass
class Update:
    """Progress of a request. The last one has `finish` or `error`."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prefilled: int = 0  # prompt tokens computed so far
    finish: Finish | None = None
    error: OlivineError | None = None
    embedding: npt.NDArray[np.float32] | None = None
