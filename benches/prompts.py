"""Steps of prompt rows on the CPU, by kind of op: `PYTHONPATH=src:benches python benches/prompts.py`.

    --shape NAME --types TYPE... --threads N    published shapes with random weights, in memory
    --rows N                                    prompt rows of a step, of one sequence

The vocabulary is cut to 8,192: only the last row has logits. OLIVINE_LIBRARY names another build of the
native library, to be measured in turn.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import replace

import numpy as np

from olivine.backends import Batch
from olivine.backends.cpu import default_threads, isa
from olivine.backends.cpu.program import CpuProgram
from synthetic import SHAPES
from synthetic.in_memory import model_in_memory

PAGE_SIZE = 32


def batch_of(rows: int, groups: int) -> Batch:
    table = np.arange(-(-rows // PAGE_SIZE), dtype=np.int32)[None]
    return Batch(
        tokens=np.random.default_rng(0).integers(0, 1000, rows).astype(np.int32),
        sequences=np.zeros(rows, np.int32),
        positions=np.arange(rows, dtype=np.int32),
        outputs=np.array([rows - 1], np.int32),
        tables=(table,) * groups,
    )


def main() -> None:
    told = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=told)
    parser.add_argument("--shape", default="qwen3-0.6b", choices=SHAPES)
    parser.add_argument("--types", nargs="+", default=["Q8_0", "Q4_K_M", "BF16"])
    parser.add_argument("--threads", type=int, default=default_threads())
    parser.add_argument("--rows", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=7)
    given = parser.parse_args()
    for kind in given.types:
        model = model_in_memory(replace(SHAPES[given.shape], vocabulary=8192), kind)
        groups = len(model.plan.groups)
        pages = [-(-given.rows // PAGE_SIZE)] * groups
        program = CpuProgram(model.plan, model.weights, page_counts=pages, threads=given.threads)
        batch, seconds = batch_of(given.rows, groups), []
        for _ in range(2):
            program.step(batch)
        program.profile()
        for _ in range(given.repeats):
            start = time.perf_counter()
            program.step(batch)
            seconds.append(time.perf_counter() - start)
        taken = statistics.median(seconds)
        spread = f"[{1e3 * min(seconds):.1f}–{1e3 * max(seconds):.1f}]"
        parts = {name: 1e3 * s / given.repeats for name, s in program.profile().items()}
        named = ", ".join(f"{name} {ms:.1f}" for name, ms in parts.items() if ms > 0.1)
        print(
            f"{given.shape} {kind}, {isa()}×{given.threads}: {1e3 * taken:.1f} ms {spread}, "
            f"{given.rows / taken:.0f} tok/s; {named}",
            flush=True,
        )
        program.close()


if __name__ == "__main__":
    main()
