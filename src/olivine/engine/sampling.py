"""From logits to a token: one definition, which every backend implements exactly.

The order: 1 logit bias, 2 penalties, 3 grammar mask, 4 temperature (0: argmax and done), 5 top-k, 6 top-p,
7 min-p, 8 a draw by Gumbel-max. Ties go to the lowest token id everywhere. Log-probabilities are those of the
logits between 3 and 4.

Exactly means to the last bit, whatever the hardware. So all is float32, rounded after every operation (never
fused); step 4 subtracts the largest logit before it divides; the masses of top-p are integers, e^z in units
of 2⁻³², whose sums are the same in any order; e^z and the noise are polynomials; ln(min_p) is rounded to
float32.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from olivine.backends import BROKEN, NOTHING_LEGAL, Draw, Drawn, Sampling, TokenLogprobs
from olivine.engine.noise import gumbel
from olivine.errors import ModelError, OlivineError, RequestError

Float32 = npt.NDArray[np.float32]

# (e^r − 1 − r) / r² for |r| ≤ ½ ln 2, the highest power first.
_EXP = np.array(
    [1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1],
    np.float32,
)


def sample(
    logits: Float32,
    sampling: Sampling,
    position: int,
    prompt: Sequence[int] = (),
    output: Sequence[int] = (),
    mask: npt.NDArray[np.int32] | None = None,
) -> int:
    """The next token, at `position` of its sequence, after `prompt` and `output`."""
    return choose(adjust(logits, sampling, prompt, output, mask), sampling, position)


def choose(adjusted: Float32, sampling: Sampling, position: int) -> int:
    """Steps 4 to 8."""
    if np.float32(sampling.temperature) == 0:
        return int(np.argmax(adjusted))
    kept = keep(temper(adjusted, sampling), sampling)
    noise = gumbel(sampling.seed, position, np.arange(len(kept), dtype=np.uint32))
    return int(np.argmax(np.where(np.isneginf(kept), kept, kept + noise)))


def adjust(
    logits: Float32,
    sampling: Sampling,
    prompt: Sequence[int] = (),
    output: Sequence[int] = (),
    mask: npt.NDArray[np.int32] | None = None,
    illegal: Sequence[int] = (),
) -> Float32:
    """Steps 1 to 3: bias, penalties, grammar (`mask`, and single tokens that are `illegal` at this point)."""
    x = logits.astype(np.float32)
    for token, bias in sampling.logit_bias.items():
        if not 0 <= token < len(x):
            raise RequestError(f"logit_bias names token {token}, and there are {len(x)}")
        x[token] += np.float32(bias)
    if sampling.repetition_penalty != 1:
        history = [*prompt, *output]
        if sampling.repeat_last_n is not None:
            history = history[len(history) - min(len(history), sampling.repeat_last_n) :]
        seen, _ = _distinct(history, len(x))
        r = np.float32(sampling.repetition_penalty)
        x[seen] = np.where(x[seen] > 0, x[seen] / r, x[seen] * r)
    if sampling.frequency_penalty or sampling.presence_penalty:
        tokens, counts = _distinct(output, len(x))
        x[tokens] -= np.float32(sampling.frequency_penalty) * counts.astype(np.float32)
        x[tokens] -= np.float32(sampling.presence_penalty)
    if not (x < np.inf).all():
        raise ModelError(BROKEN, code="invalid_logits")
    if mask is not None:
        legal = np.unpackbits(np.ascontiguousarray(mask).view(np.uint8), bitorder="little")[: len(x)]
        x[legal == 0] = -np.inf
    x[[token for token in illegal if 0 <= token < len(x)]] = -np.inf
    if np.isneginf(x).all():
        raise RequestError(NOTHING_LEGAL, code="no_token_allowed")
    return x


def temper(adjusted: Float32, sampling: Sampling) -> Float32:
    """Step 4, for a temperature above 0. The largest becomes 0, so that nothing overflows."""
    with np.errstate(over="ignore"):
        return (adjusted - adjusted.max()) / np.float32(sampling.temperature)


def keep(z: Float32, sampling: Sampling) -> Float32:
    """Steps 5 to 7: what survives the filters keeps its value, the rest becomes −inf."""
    top_k = 0 < sampling.top_k < len(z)
    if not top_k and sampling.top_p >= 1 and sampling.min_p <= 0:
        return z
    order = np.argsort(-z, kind="stable")  # stable: of equals the lowest id comes first
    if top_k:
        order = order[: sampling.top_k]
    below = z[order] - z[order[0]]
    if sampling.top_p < 1:
        mass = np.cumsum(weights(below))
        # The shortest prefix that reaches p of the mass.
        size = int(np.searchsorted(mass, math.ceil(sampling.top_p * float(mass[-1])))) + 1
        order, below = order[:size], below[:size]
    if sampling.min_p > 0:
        order = order[below >= np.float32(math.log(sampling.min_p))]
    kept = np.full_like(z, -np.inf)
    kept[order] = z[order]
    return kept


def weights(z: Float32) -> npt.NDArray[np.int64]:
    """2³² · e^z as integers, for z ≤ 0: their sums over 2²¹ tokens still fit a float64."""
    return np.rint(exp(z).astype(np.float64) * 2.0**32).astype(np.int64)


def exp(z: Float32) -> Float32:
    """e^z for z ≤ 0, and not below e^−32: by exponent and a polynomial, every step rounded once."""
    z = np.maximum(z, np.float32(-32))
    n = np.rint(z * np.float32(1.44269504))
    r = (z - n * np.float32(0.693359375)) - n * np.float32(-2.12194440e-4)  # ln 2 in two parts
    series = _EXP[0]
    for coefficient in _EXP[1:]:
        series = series * r + coefficient
    series = (series * (r * r) + r) + np.float32(1)
    return (series.view(np.int32) + (n.astype(np.int32) << 23)).view(np.float32)


def draw(logits: Float32, how: Draw, position: int) -> Drawn:
    """One token after a row, as `how` says: what `DrawingProgram.generate` does for one row and n = 1."""
    illegal = how.stop if how.at_least > 0 else ()
    if refused := how.refusal(len(logits)):
        return Drawn(error=refused)
    try:
        legal = how.legal(len(logits))
        adjusted = adjust(logits, how.sampling, how.prompt, how.output, legal, illegal)
    except OlivineError as error:
        return Drawn(error=str(error))
    token = choose(adjusted, how.sampling, position) if how.forced is None else how.forced
    if token in how.stop and how.forced is None:
        return Drawn(stopped=True)
    reports = [] if how.logprobs is None else [logprobs(adjusted, token, how.logprobs)]
    return Drawn([token], logprobs=reports)


def logprobs(adjusted: Float32, token: int, count: int) -> TokenLogprobs:
    """Log-softmax of the token and of the `count` likeliest (ties: lowest id), summed in float64."""
    x = adjusted.astype(np.float64)
    total = np.log(np.exp(x - x.max()).sum()) + x.max()
    order = np.argsort(-adjusted, kind="stable")[:count]
    return TokenLogprobs(float(x[token] - total), order.tolist(), (x[order] - total).tolist())


def _distinct(tokens: Sequence[int], vocabulary: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Each token once, and how often it comes. What is no token of the vocabulary does not count."""
    ids = np.array(tokens, np.int64)
    return np.unique(ids[(ids >= 0) & (ids < vocabulary)], return_counts=True)
