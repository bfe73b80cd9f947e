"""Microseconds per draw on the CPU backend, by vocabulary and parameters: `python benches/sampling.py`."""

from __future__ import annotations

import argparse
import ctypes
import time

import numpy as np

from olivine.backends import Draw, Sampling
from olivine.backends.cpu import isa, native
from olivine.backends.cpu.draws import NativeDraws

HISTORY = np.random.default_rng(1).integers(0, 150_000, 4000).tolist()
PENALTIES = Sampling(repetition_penalty=1.1, frequency_penalty=0.2, presence_penalty=0.1)
CASES = {
    "greedy": Draw(Sampling()),
    "T = 1": Draw(Sampling(temperature=1.0, seed=1)),
    "top-k 40": Draw(Sampling(temperature=1.0, top_k=40, seed=1)),
    "top-k 64, top-p 0.95": Draw(Sampling(temperature=1.0, top_k=64, top_p=0.95, seed=1)),
    "top-p 0.95": Draw(Sampling(temperature=1.0, top_p=0.95, seed=1)),
    "top-p 0.95, min-p 0.05": Draw(Sampling(temperature=1.0, top_p=0.95, min_p=0.05, seed=1)),
    "greedy, penalties over 4,000": Draw(PENALTIES, prompt=HISTORY[:3000], output=HISTORY[3000:]),
    "greedy, 5 log-probabilities": Draw(Sampling(), logprobs=5),
}


def microseconds(logits: np.ndarray, draw: Draw, repeats: int) -> float:
    """The median; the logits are restored before each draw, because a draw may modify them."""
    draws = NativeDraws([draw], 1, len(logits))
    times = []
    x = logits.copy()
    for position in range(repeats):
        x[:] = logits
        start = time.perf_counter()
        native.lib().olv_sample(x.ctypes.data, len(x), draws.how, position, ctypes.byref(draws.out))
        times.append(time.perf_counter() - start)
    assert draws.result()[0].error is None
    return float(np.median(times)) * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=200)
    arguments = parser.parse_args()
    rng = np.random.default_rng(0)
    # A standard deviation of 2 is a nearly flat distribution over so many tokens; 6 is a peaked one.
    shapes = [(v, spread) for v in (151_936, 262_144) for spread in (6.0, 2.0)]
    print(f"{isa():<32}" + "".join(f"{v:>9,} σ={spread:.0f}" for v, spread in shapes))
    for name, draw in CASES.items():
        found = [
            microseconds((rng.standard_normal(v) * spread).astype(np.float32), draw, arguments.repeats)
            for v, spread in shapes
        ]
        print(f"{name:<32}" + "".join(f"{value:>13.0f}" for value in found))


if __name__ == "__main__":
    main()
