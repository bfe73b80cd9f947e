"""Scaling: decode time per token against the context, prefill time against the length of the prompt.

    python benches/scaling.py -o docs/cpu-scaling.png

A token reads all weights whatever the context, so its time is constant except for attention. Prefill is
linear in the length except for attention, which is quadratic in layers without a window. The dashed lines are
fits of that form: points off the lines indicate a defect. Run nothing else meanwhile.
"""

from __future__ import annotations

import argparse
import json
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from make_model import made
from olivine.backends.cpu import default_threads
from olivine.bench.child import Child

ROOT = Path(__file__).resolve().parent.parent
GENERATE = 16  # tokens a point
WARM_UP = 64


class Engine:
    """One model, in a child process."""

    def __init__(self, path: Path, threads: int, context: int) -> None:
        self.child = Child("olivine", [sys.executable, "-m", "olivine.bench.worker"])
        settings = {"device": "cpu", "threads": threads, "context": context, "prompt": 1}
        self.child.ask("open", model=str(path), **settings)
        self.child.ask("prefill", tokens=WARM_UP)
        self.child.ask("decode", tokens=2)

    def decode_seconds(self, contexts: list[int]) -> list[float]:
        """Seconds per token at each of the increasing contexts; each continues the previous one."""
        self.child.ask("reset")
        at, seconds = 0, []
        for context in contexts:
            if context > at:
                self.child.ask("prefill", tokens=context - at)
            seconds.append(self.child.ask("decode", tokens=GENERATE)["seconds"] / GENERATE)
            at = max(at, context) + GENERATE
        return seconds

    def prefill_seconds(self, lengths: list[int]) -> list[float]:
        seconds = []
        for length in lengths:
            self.child.ask("reset")
            seconds.append(self.child.ask("prefill", tokens=length)["seconds"])
        return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--shapes", nargs="+", default=["qwen3-0.6b", "gemma3-1b"])
    parser.add_argument("--type", default="Q8_0")
    parser.add_argument("-t", "--threads", type=int, default=default_threads())
    parser.add_argument("--longest", type=int, default=8192, help="tokens of context and of prompt")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=ROOT / "models" / "bench")
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "docs" / "cpu-scaling.png")
    given = parser.parse_args()

    if find_spec("matplotlib") is None:
        raise SystemExit("the plot needs matplotlib: pip install matplotlib")
    contexts = [0, *_doubling(256, given.longest)]
    lengths = _doubling(128, given.longest)
    figures: dict[str, Any] = {}
    for shape in given.shapes:
        path = made(shape, given.type, given.folder)
        # Contexts are measured from their end on, so the last one needs room for its tokens.
        engine = Engine(path, given.threads, given.longest + 2 * GENERATE * len(contexts))
        with engine.child:
            decode = np.median([engine.decode_seconds(contexts) for _ in range(given.repeats)], axis=0)
            prefill = np.median([engine.prefill_seconds(lengths) for _ in range(given.repeats)], axis=0)
        figures[f"{shape} {given.type}"] = {
            "decode": {"tokens": contexts, "seconds": decode.tolist()},
            "prefill": {"tokens": lengths, "seconds": prefill.tolist()},
        }
        print(json.dumps({shape: figures[f"{shape} {given.type}"]}), flush=True)
    plot(figures, given.threads, given.output)
    print(given.output)


def plot(figures: dict[str, Any], threads: int, output: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    for color, (name, kinds) in enumerate(figures.items()):
        _curve(left, kinds["decode"], 1e3, (0, 1), f"C{color}", name)
        _curve(right, kinds["prefill"], 1.0, (1, 2), f"C{color}", name)
    left.set(xlabel="context, tokens", ylabel="a token, ms", title=f"Generating, {threads} threads")
    right.set(xlabel="prompt, tokens", ylabel="the prompt, s", title=f"Reading a prompt, {threads} threads")
    for axes in (left, right):
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        axes.legend()
    figure.savefig(output, dpi=120)


def _curve(
    axes: Any, points: dict[str, Any], unit: float, powers: tuple[int, ...], color: str, name: str
) -> None:
    """Measured points, and the sum of the given powers of the length that fits them best."""
    tokens, seconds = np.array(points["tokens"], float), np.array(points["seconds"]) * unit
    axes.plot(tokens, seconds, "o", color=color, label=name)
    # Relative errors count, or the longest alone would decide.
    terms = np.stack([tokens**power for power in powers], axis=1) / seconds[:, None]
    factors = np.linalg.lstsq(terms, np.ones(len(tokens)), rcond=None)[0]
    line = np.linspace(0, tokens.max(), 200)
    fit = sum(factor * line**power for factor, power in zip(factors, powers, strict=True))
    axes.plot(line, fit, "--", color=color, alpha=0.6)


def _doubling(first: int, last: int) -> list[int]:
    lengths = [first]
    while lengths[-1] * 2 <= last:
        lengths.append(lengths[-1] * 2)
    return lengths


if __name__ == "__main__":
    main()
