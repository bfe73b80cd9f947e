"""Where a decode step's time goes: a chain of one sequence, each time without the launches of one kind.

    PYTHONPATH=src:benches python benches/gpu_parts.py --models qwen3-0.6b,gemma3-1b --types Q4_K

Kernels of a step overlap, so their own times say little; what a step saves without them is what they cost.
The variants take turns, and the best round of each is compared with the best whole step. Results are nonsense
where a kernel is missing, so none is drawn from, and every step is at one position: a row that ends would
cost less. Routing stays: without it, experts would be read that do not exist.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from triton.runtime.jit import JITFunction

from gpu import batch_of, program_of
from olivine.backends import Draw, Sampling
from olivine.backends.cuda import CudaProgram
from olivine.backends.cuda.chain import Chains
from synthetic import SHAPES
from synthetic.in_memory import model_in_memory

KEPT = ("_route", "_rank", "_place")  # others depend on what these write
DRAWING = ("_chunk_maxima", "_count", "_threshold", "_collect", "_draw")


def kind_of(kernel: Any, args: tuple[Any, ...], given: dict[str, Any]) -> str:
    """A kernel's name; of products also the size."""
    name = str(kernel.__name__)
    if name == "_gemv":
        experts = "" if args[5] is None else " of experts"
        return f"{name} {args[8]} × {args[0][2]}{experts}"
    if name == "_gemv_alone":
        return f"{name} {args[3][0]} × {args[0][2]}{'' if args[7] is None else ' of experts'}"
    if name == "_gemv_pair":
        told = f"{name} {args[3][0]} × {args[1][2]}{'' if args[11] is None else ' of experts'}"
        return f"{told} + {args[8][0]} × {args[6][2]}"
    return name


@contextmanager
def launches(allowed: Callable[[str], bool]) -> Iterator[Counter[str]]:
    """While it lasts, only launches of allowed kinds take place; all are counted."""
    whole, found = JITFunction.run, Counter[str]()

    def run(self: Any, *args: Any, **given: Any) -> Any:
        kind = kind_of(self, args, given)
        found[kind] += 1
        return whole(self, *args, **given) if allowed(kind) else None

    JITFunction.run = run
    try:
        yield found
    finally:
        JITFunction.run = whole


class Variant:
    """A chain without launches of one kind."""

    def __init__(self, program: CudaProgram, without: str, n: int) -> None:
        self._program, self._n, self._chains = program, n, Chains(program.executable)
        self._batch = batch_of(program, 1, 512, 128, 1, True)
        with launches(lambda kind: kind not in (*DRAWING, without)) as found:
            self.seconds()
        self.launches = Counter(
            {kind: count // 2 for kind, count in found.items()}
        )  # run once, recorded once

    def seconds(self) -> float:
        self._program._chains = self._chains
        torch.cuda.synchronize()
        started = time.perf_counter()
        self._program.generate(self._batch, [Draw(Sampling())], self._n)
        return (time.perf_counter() - started) / self._n


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--models", default="qwen3-0.6b")
    parser.add_argument("--types", default="Q4_K")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--tokens", type=int, default=128)
    given = parser.parse_args()
    for name in given.models.split(","):
        for kind in given.types.split(","):
            program = program_of(model_in_memory(SHAPES[name], kind), 512, 1)
            whole = Variant(program, "", given.tokens)
            kinds = [each for each in whole.launches if each not in (*KEPT, *DRAWING)]
            variants = {each: Variant(program, each, given.tokens) for each in kinds}
            variants["whole"] = whole
            best = dict.fromkeys(variants, float("inf"))
            for _ in range(given.rounds):
                for each, variant in variants.items():
                    best[each] = min(best[each], variant.seconds())
            total = 1e6 * best["whole"]
            print(f"{name} {kind}: a step without drawing {total:.0f} µs")
            for each in sorted(kinds, key=lambda each: best[each]):
                saved, count = total - 1e6 * best[each], whole.launches[each]
                told = f"{saved:>8.1f} µs less, {count:>4} launches, {saved / count:>6.2f} µs each"
                print(f"  without {each:<44}{told}")
            del program, whole, variants
            gc.collect()
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
