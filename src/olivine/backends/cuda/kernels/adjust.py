"""Bias, penalties, mask and forbidden stops on the device: steps 1 to 3 of engine/sampling.py.

Tokens are counted where they are written down (kernels/advance.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
import triton
import triton.language as tl

from olivine.backends.base import Draw
from olivine.backends.cuda.kernels.pdl import LAUNCH, begin

RING = 4096  # tokens of history that a row can look back over; a window must be shorter
_CHUNK = 1024


class AdjustState(NamedTuple):
    """What adjusts the logits of each row, on the device."""

    bias: torch.Tensor  # [B, V]
    recent_counts: torch.Tensor  # [B, V] how often each token is in the window of the repetition penalty
    output_counts: torch.Tensor  # [B, V] how often each token was generated
    penalties: torch.Tensor  # [B, 3] repetition, frequency, presence
    window: torch.Tensor  # [B] tokens that the repetition penalty looks back over; -1: all
    length: torch.Tensor  # [B] tokens so far
    ring: torch.Tensor  # [B, RING] the last of them
    mask: torch.Tensor  # [B, V / 32] a grammar's mask, a bit a token
    masked: torch.Tensor  # [B] whether it applies to the next draw
    at_least: torch.Tensor  # [B] tokens that must come before a stop token may


class Adjustments:
    """Bias, penalties, masks and token counts of up to `rows` rows."""

    def __init__(self, rows: int, vocabulary: int, device: torch.device) -> None:
        self._rows, self._vocabulary, self._device = rows, vocabulary, device

        def ints(*shape: int) -> torch.Tensor:
            return torch.zeros(shape, dtype=torch.int32, device=device)

        self.state = AdjustState(
            bias=torch.zeros((rows, vocabulary), device=device),
            recent_counts=ints(rows, vocabulary),
            output_counts=ints(rows, vocabulary),
            penalties=torch.zeros((rows, 3), device=device),
            window=ints(rows),
            length=ints(rows),
            ring=ints(rows, RING),
            mask=ints(rows, -(-vocabulary // 32)),
            masked=ints(rows),
            at_least=ints(rows),
        )
        self.out = torch.empty((rows, vocabulary), device=device)

    def begin(self, draws: Sequence[Draw]) -> None:
        """One row a draw."""
        state, spare = self.state, self._rows - len(draws)
        how = [draw.sampling for draw in draws]
        for counts in (state.bias, state.recent_counts, state.output_counts):
            counts.zero_()
        rings, lengths = np.zeros((self._rows, RING), np.int32), np.zeros(self._rows, np.int32)
        for row, draw in enumerate(draws):
            s = draw.sampling
            if s.logit_bias:
                state.bias[row, self._put(list(s.logit_bias))] = self._put(
                    list(s.logit_bias.values())
                ).float()
            if s.frequency_penalty or s.presence_penalty:
                self._count(state.output_counts[row], np.asarray(draw.output, np.int64))
            if s.repetition_penalty != 1:
                history = np.asarray([*draw.prompt, *draw.output], np.int64)
                window = len(history) if s.repeat_last_n is None else s.repeat_last_n
                self._count(state.recent_counts[row], history[max(0, len(history) - window) :])
                last = np.arange(max(0, len(history) - RING), len(history))
                rings[row, last % RING], lengths[row] = history[last], len(history)
        state.ring.copy_(self._put(rings))
        state.length.copy_(self._put(lengths))
        windows = [-1 if s.repeat_last_n is None else s.repeat_last_n for s in how] + [-1] * spare
        state.window.copy_(self._put(windows))
        state.masked.zero_()
        state.at_least.copy_(self._put([draw.at_least for draw in draws] + [0] * spare))
        each = [(s.repetition_penalty, s.frequency_penalty, s.presence_penalty) for s in how]
        state.penalties.copy_(self._put(np.array(each + [(1.0, 0.0, 0.0)] * spare, np.float32)))

    def take_masks(self, masks: Sequence[np.ndarray | None]) -> None:
        """Masks of the next draw; None: all tokens are legal."""
        for row, mask in enumerate(masks):
            if mask is not None:
                self.state.mask[row].copy_(self._put(np.ascontiguousarray(mask)[: self.state.mask.shape[1]]))
                self.state.masked[row] = 1

    def _count(self, counts: torch.Tensor, tokens: np.ndarray) -> None:
        tokens, number = np.unique(tokens[(tokens >= 0) & (tokens < self._vocabulary)], return_counts=True)
        counts[self._put(tokens)] = self._put(number.astype(np.int32))

    def _put(self, values: object) -> torch.Tensor:
        return torch.from_numpy(np.asarray(values)).to(self._device)


@triton.jit
def load_settings(state, row, at, V):
    """What adjusts tokens `at`, as far as only the host writes it: before the wait."""
    words = (V + 31) // 32
    bias = tl.load(state.bias + row * V + at, mask=at < V, other=0.0)
    word = tl.load(state.mask + row * words + at // 32, mask=at < V, other=0)
    repetition = tl.load(state.penalties + row * 3)
    frequency = tl.load(state.penalties + row * 3 + 1)
    presence = tl.load(state.penalties + row * 3 + 2)
    return bias, word, repetition, frequency, presence


@triton.jit
def adjusted(logits, state, settings, stops, stop_count, row, at, V, STOPS: tl.constexpr):
    """The adjusted logits of tokens `at`. state is an `AdjustState`, row an int64."""
    bias, word, repetition, frequency, presence = settings
    x = tl.load(logits + row * V + at, mask=at < V, other=float("-inf"))
    limit = tl.where(repetition != 1.0, V, 0)  # counts are read for the rows that need them
    recent = tl.load(state.recent_counts + row * V + at, mask=at < limit, other=0)
    limit = tl.where((frequency != 0.0) | (presence != 0.0), V, 0)
    count = tl.load(state.output_counts + row * V + at, mask=at < limit, other=0)
    masked = tl.load(state.masked + row)
    at_least = tl.load(state.at_least + row)
    x += bias
    x = tl.where(recent > 0, tl.where(x > 0, tl.div_rn(x, repetition), x * repetition), x)
    x = tl.where(count > 0, x - frequency * count.to(tl.float32) - presence, x)
    # NaN and +inf stay whatever the mask, so that they are found and reported.
    fine = x < float("inf")
    if masked > 0:
        x = tl.where(((word >> (at % 32)) & 1 == 0) & fine, float("-inf"), x)
    if at_least > 0:
        for i in range(tl.load(stop_count + row)):
            x = tl.where((at == tl.load(stops + row * STOPS + i)) & fine, float("-inf"), x)
    return x


@triton.jit
def _adjust(logits, out, state, stops, stop_count, V, STOPS: tl.constexpr, CHUNK: tl.constexpr):
    row = tl.program_id(1).to(tl.int64)
    at = tl.program_id(0) * CHUNK + tl.arange(0, CHUNK)
    settings = load_settings(state, row, at, V)
    begin()
    x = adjusted(logits, state, settings, stops, stop_count, row, at, V, STOPS)
    tl.store(out + row * V + at, x, mask=at < V)


def adjust(
    logits: torch.Tensor, adjustments: Adjustments, stops: torch.Tensor, stop_count: torch.Tensor
) -> torch.Tensor:
    """The adjusted logits [B, V], where the host draws. (Chains adjust in the first kernel that draws.)"""
    rows, vocabulary = logits.shape
    _adjust[(-(-vocabulary // _CHUNK), rows)](
        logits, adjustments.out, adjustments.state, stops, stop_count, vocabulary,
        STOPS=stops.shape[1], CHUNK=_CHUNK, enable_fp_fusion=False, **LAUNCH,
    )  # fmt: skip
    return adjustments.out
