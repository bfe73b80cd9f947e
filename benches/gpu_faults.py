"""Which part of a decode step fails on a GPU: a chain of one sequence, each time without one part.

    PYTHONPATH=src:benches python benches/gpu_faults.py --model qwen3-30b-a3b --type Q4_K_M --layers 4

After an illegal access a process can no longer use the GPU, so each chain has a process of its own. The one
that waits for every launch names the kernel that fails, and checks the experts that it takes. A part without
which nothing fails is where to look.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from olivine.backends import Batch, Draw, Sampling
from olivine.backends.cuda import (
    PAGE_SIZE,
    CudaProgram,
    launch_attention,
    launch_mixture,
    launch_products,
    program,
)
from olivine.backends.cuda.graphs import GraphRecorder
from olivine.backends.cuda.kernels import decode_attention, gemv, pdl
from synthetic import SHAPES
from synthetic.in_memory import model_in_memory

LENGTH = 512  # positions of the sequence; the chain begins at a quarter of it


def without_graphs() -> None:
    program.GraphRecorder = lambda _: GraphRecorder(torch.device("cpu"))


def without_overlap() -> None:
    """Every kernel starts when the one before is done."""
    pdl.LAUNCH.clear()


def without_split_k() -> None:
    tiles = launch_products.gemv_tiles
    launch_products.gemv_tiles = lambda weight, _: tiles(weight, False)


def without_transforming() -> None:
    """Keys are rotated and stored by a kernel of their own, before attention."""
    launch_attention.MOST_TRANSFORMED = 0


def without_single_rows() -> None:
    """Experts take blocks of rows, as with many sequences."""
    launch_mixture.GROUPED_DECODE_ROWS = 0


def without_carveout() -> None:
    decode_attention.set_shared_memory_carveout = lambda *_: None


def without_register_limits() -> None:
    gemv.registers = lambda _: {}


def waiting() -> None:
    """For each launch, one by one."""
    from triton.runtime.jit import JITFunction

    without_graphs()
    without_overlap()
    run, route = JITFunction.run, launch_mixture.route

    def run_and_wait(self: Any, *values: Any, **named: Any) -> Any:
        found = run(self, *values, **named)
        try:
            torch.cuda.synchronize()
        except Exception as error:
            shapes = [tuple(x.shape) for x in values if isinstance(x, torch.Tensor)]
            constants = {k: v for k, v in named.items() if k.isupper()}
            raise RuntimeError(f"{self.__name__} {named.get('grid')} {shapes} {constants}: {error}") from None
        return found

    def checked(logits: torch.Tensor, *values: Any, **named: Any) -> Any:
        shares, ids = route(logits, *values, **named)
        assert bool(((ids >= 0) & (ids < logits.shape[-1])).all()), f"no such experts: {ids.tolist()}"
        return shares, ids

    JITFunction.run, launch_mixture.route = run_and_wait, checked


PARTS: dict[str, Callable[[], None]] = {
    "nothing": lambda: None,
    "graphs": without_graphs,
    "overlap": without_overlap,
    "split-k": without_split_k,
    "transforming": without_transforming,
    "single-rows": without_single_rows,
    "carveout": without_carveout,
    "register-limits": without_register_limits,
    "waiting": waiting,
}


def chain(name: str, kind: str, layers: int, tokens: int, part: str, device: str) -> None:
    shape = SHAPES[name]
    model = model_in_memory(replace(shape, layers=min(layers, shape.layers)), kind)
    PARTS[part]()
    pages = LENGTH // PAGE_SIZE
    counts = [pages] * len(model.plan.groups)
    made = CudaProgram(model.plan, model.weights, page_counts=counts, device=device)
    table, one = np.arange(pages, dtype=np.int32)[None], np.zeros(1, np.int32)
    batch = Batch(one, one, one + LENGTH // 4, one, (table,) * len(counts), np.ones(1, bool))
    (drawn,) = made.generate(batch, [Draw(Sampling())], tokens)
    if drawn.error is not None:
        sys.exit(drawn.error)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", choices=list(SHAPES), default="qwen3-30b-a3b")
    parser.add_argument("--type", default="Q4_K_M")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--without", choices=list(PARTS), help="one part only, in this process")
    parser.add_argument("--device", default="cuda")
    given = parser.parse_args()
    if given.without is not None:
        chain(given.model, given.type, given.layers, given.tokens, given.without, given.device)
        return
    for part in PARTS:
        run = subprocess.run(
            [sys.executable, *sys.argv, "--without", part], capture_output=True, text=True, check=False
        )
        last = (run.stderr.strip().splitlines() or [f"status {run.returncode}"])[-1]
        print(f"{part:<16} {'fine' if run.returncode == 0 else last}", flush=True)


if __name__ == "__main__":
    main()
