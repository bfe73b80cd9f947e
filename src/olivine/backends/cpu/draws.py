"""Draws as structs of the native library, and their results."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from olivine.backends.base import BROKEN, NOTHING_LEGAL, Draw, Drawn, Sampling, TokenLogprobs
from olivine.backends.cpu import native
from olivine.backends.cpu.lower import array_of
from olivine.errors import RequestError

_ERRORS = {native.BROKEN: BROKEN, native.NOTHING: NOTHING_LEGAL}


class NativeDraws:
    """One draw per output row, of up to n tokens each, and the memory for the results."""

    def __init__(self, draws: Sequence[Draw], n: int, vocabulary: int) -> None:
        self._draws = draws
        self._vocabulary = vocabulary
        self._keep: list[npt.NDArray[Any]] = []
        self._refused = [draw.refusal(vocabulary) for draw in draws]
        refused = [refusal is not None for refusal in self._refused]
        rows = len(draws)
        top = max((_likeliest(draw, vocabulary) for draw in draws), default=0)
        self._tokens = np.empty((rows, n), np.int32)
        self._counts = np.zeros(rows, np.int64)
        self._ends = np.where(refused, native.REFUSED, native.OPEN).astype(np.uint8)
        self._logprobs = np.empty((rows, n), np.float64)
        self._top_tokens = np.empty((rows, n, top), np.int32)
        self._top_logprobs = np.empty((rows, n, top), np.float64)
        kept = [native.Draw() if bad else self._native(d) for d, bad in zip(draws, refused, strict=True)]
        self.how = array_of(native.Draw, kept)
        self.out = native.Drawn(
            tokens=self._tokens.ctypes.data,
            counts=self._counts.ctypes.data,
            ends=self._ends.ctypes.data,
            logprobs=self._logprobs.ctypes.data,
            top=top,
            top_tokens=self._top_tokens.ctypes.data,
            top_logprobs=self._top_logprobs.ctypes.data,
        )

    def result(self) -> list[Drawn]:
        """The tokens that the library has drawn."""
        return [self._drawn(row) for row in range(len(self._draws))]

    @property
    def masked(self) -> bool:
        return any(draw.mask is not None for draw in self._draws)

    def take_masks(self) -> None:
        """Called by the library between the forward pass and the first draws."""
        for row, draw in enumerate(self._draws):
            if self._refused[row] is not None:
                continue
            try:
                legal = draw.legal(self._vocabulary)
            except RequestError as error:
                self._refused[row], self._ends[row] = str(error), native.REFUSED
            else:
                if legal is not None:
                    self.how[row].mask = self._array(legal).ctypes.data

    def _native(self, draw: Draw) -> native.Draw:
        sampling = draw.sampling
        repeats = sampling.repetition_penalty != 1
        counts = sampling.frequency_penalty != 0 or sampling.presence_penalty != 0
        # Only what a penalty reads is copied: a long history takes a while.
        prompt = self._array(draw.prompt if repeats else ())
        output = self._array(draw.output if repeats or counts else ())
        stop = self._array(draw.stop)
        return native.Draw(
            sampling=self._native_sampling(sampling),
            prompt=prompt.ctypes.data,
            prompt_count=len(prompt),
            output=output.ctypes.data,
            output_count=len(output),
            stop=stop.ctypes.data,
            stop_count=len(stop),
            at_least=draw.at_least,
            logprobs=-1 if draw.logprobs is None else _likeliest(draw, self._vocabulary),
            forced=-1 if draw.forced is None else draw.forced,
        )

    def _native_sampling(self, sampling: Sampling) -> native.Sampling:
        bias_tokens = self._array(list(sampling.logit_bias.keys()))
        bias = np.array(list(sampling.logit_bias.values()), np.float32)
        self._keep.append(bias)
        return native.Sampling(
            temperature=sampling.temperature,
            top_k=min(sampling.top_k, self._vocabulary),
            top_p=sampling.top_p,
            log_min_p=math.log(sampling.min_p) if sampling.min_p > 0 else -math.inf,
            repetition_penalty=sampling.repetition_penalty,
            presence_penalty=sampling.presence_penalty,
            frequency_penalty=sampling.frequency_penalty,
            repeat_last_n=-1 if sampling.repeat_last_n is None else sampling.repeat_last_n,
            seed=sampling.seed,
            bias_tokens=bias_tokens.ctypes.data,
            bias=bias.ctypes.data,
            bias_count=len(bias),
        )

    def _array(self, values: Sequence[int] | npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        array = np.ascontiguousarray(values, np.int32)
        self._keep.append(array)
        return array

    def _drawn(self, row: int) -> Drawn:
        if (refusal := self._refused[row]) is not None:
            return Drawn(error=refusal)
        count, end, draw = int(self._counts[row]), int(self._ends[row]), self._draws[row]
        drawn = Drawn(self._tokens[row, :count].tolist(), end == native.STOPPED, error=_ERRORS.get(end))
        if draw.logprobs is not None:
            width = _likeliest(draw, self._vocabulary)
            own = self._logprobs[row, :count].tolist()
            tokens = self._top_tokens[row, :count, :width].tolist()
            values = self._top_logprobs[row, :count, :width].tolist()
            drawn.logprobs += map(TokenLogprobs, own, tokens, values)
        return drawn


def _likeliest(draw: Draw, vocabulary: int) -> int:
    return max(0, min(draw.logprobs or 0, vocabulary))
