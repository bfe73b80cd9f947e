"""From logits to a token: one definition, which every backend implements exactly.

The order: 1 logit bias, 2 penalties, 3 grammar mask, 4 temperature (0: argmax and done), 5 top-k, 6 top-p,
7 min-p, 8 a draw by Gumbel-max. Ties go to the lowest token id everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from olivine.backends import Choice
from olivine.engine.noise import gumbel
from olivine.errors import RequestError

Float32 = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Sampling:
    """How to choose the next token. The defaults choose the likeliest."""

    temperature: float = 0.0
    top_k: int = 0  # 0: off
    top_p: float = 1.0  # 1: off
    min_p: float = 0.0  # 0: off
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repeat_last_n: int | None = None  # how much history the repetition penalty sees; None: all
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int = 0

    def __post_init__(self) -> None:
        self._require("temperature", 0 <= self.temperature <= 100, "between 0 and 100")
        self._require("top_k", self.top_k >= 0, "0 (off) or more")
        self._require("top_p", 0 < self.top_p <= 1, "above 0 and at most 1 (off)")
        self._require("min_p", 0 <= self.min_p <= 1, "between 0 (off) and 1")
        self._require("repetition_penalty", 0 < self.repetition_penalty <= 100, "above 0; 1 is off")
        self._require("presence_penalty", -100 <= self.presence_penalty <= 100, "between -100 and 100")
        self._require("frequency_penalty", -100 <= self.frequency_penalty <= 100, "between -100 and 100")
        self._require("repeat_last_n", (self.repeat_last_n or 0) >= 0, "0 or more")
        self._require("seed", 0 <= self.seed < 1 << 64, "between 0 and 2^64 - 1")

    @property
    def can_chain(self) -> bool:
        """Whether a backend can draw by itself: whatever needs the history does not."""
        penalties = (self.repetition_penalty, self.presence_penalty, self.frequency_penalty)
        return penalties == (1.0, 0.0, 0.0) and not self.logit_bias

    @property
    def choice(self) -> Choice:
        return Choice(self.temperature, self.top_k, self.top_p, self.min_p, self.seed)

    def _require(self, name: str, fine: bool, wanted: str) -> None:
        if not fine:
            raise RequestError(f"{name} must be {wanted}, and is {getattr(self, name)}")


def sample(
    logits: Float32,
    sampling: Sampling,
    position: int,
    prompt: Sequence[int] = (),
    output: Sequence[int] = (),
    mask: npt.NDArray[np.int32] | None = None,
) -> int:
    """The next token, at `position` of its sequence, after `prompt` and `output`."""
    adjusted = adjust(logits, sampling, prompt, output, mask)
    if sampling.temperature == 0:
        return int(np.argmax(adjusted))
    kept = keep(adjusted / np.float32(sampling.temperature), sampling)
    noise = gumbel(sampling.seed, position, np.arange(len(kept), dtype=np.uint32))
    return int(np.argmax(np.where(np.isneginf(kept), kept, kept + noise)))


def adjust(
    logits: Float32,
    sampling: Sampling,
    prompt: Sequence[int] = (),
    output: Sequence[int] = (),
    mask: npt.NDArray[np.int32] | None = None,
) -> Float32:
    """Steps 1 to 3: bias, penalties, grammar. Log-probabilities are reported of what this returns."""
    x = logits.astype(np.float32)
    if np.isnan(x).any():
        raise RequestError("the model produced NaN: its weights or its input are broken")
    for token, bias in sampling.logit_bias.items():
        if not 0 <= token < len(x):
            raise RequestError(f"logit_bias names token {token}, and there are {len(x)}")
        x[token] += np.float32(bias)
    if sampling.repetition_penalty != 1:
        history = [*prompt, *output]
        if sampling.repeat_last_n is not None:
            history = history[len(history) - min(len(history), sampling.repeat_last_n) :]
        seen = np.unique(np.array(history, np.int64))
        r = np.float32(sampling.repetition_penalty)
        x[seen] = np.where(x[seen] > 0, x[seen] / r, x[seen] * r)
    if (sampling.frequency_penalty or sampling.presence_penalty) and len(output):
        tokens, counts = np.unique(np.array(output, np.int64), return_counts=True)
        x[tokens] -= np.float32(sampling.frequency_penalty) * counts.astype(np.float32)
        x[tokens] -= np.float32(sampling.presence_penalty)
    if mask is not None:
        legal = np.unpackbits(mask.view(np.uint8), bitorder="little")[: len(x)]
        x[legal == 0] = -np.inf
    if np.isneginf(x).all():
        raise RequestError("no token is allowed here: the grammar and the biases exclude them all")
    return x


def keep(x: Float32, sampling: Sampling) -> Float32:
    """Steps 5 to 7: what survives the filters keeps its logit, the rest becomes −inf."""
    if not (0 < sampling.top_k < len(x)) and sampling.top_p >= 1 and sampling.min_p <= 0:
        return x
    order = np.argsort(-x, kind="stable")  # stable: of equal logits the lowest id comes first
    if 0 < sampling.top_k < len(x):
        order = order[: sampling.top_k]
    weights = np.exp((x[order] - x[order[0]]).astype(np.float64))
    if sampling.top_p < 1:
        mass = np.cumsum(weights)
        # The shortest prefix that reaches p of the mass, and never fewer than one.
        size = int(np.searchsorted(mass, sampling.top_p * mass[-1], side="left")) + 1
        order, weights = order[:size], weights[:size]
    if sampling.min_p > 0:
        order = order[weights >= sampling.min_p * weights[0]]
    kept = np.full_like(x, -np.inf)
    kept[order] = x[order]
    return kept
