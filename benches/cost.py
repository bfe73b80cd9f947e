"""What the cost model foretells for GPUs and machines, and how near it is for two processes.

python benches/cost.py            the tables of docs/cluster.md
python benches/cost.py --measure  two ranks with a thread each; run nothing else meanwhile
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from unittest.mock import patch

import collectives
import olivine
from olivine import cluster
from olivine.backends.cpu import read_bandwidth
from olivine.cluster import Parallel, compile_group
from olivine.cluster.cost import Device, Link, step_cost
from synthetic import SHAPES
from synthetic.in_memory import hollow_model

CONTEXT = 4096
# An H200 reads weights with 3.4 TB/s in this backend (docs/cuda.md); links: NCCL's all-gather of a row.
GPU = Device(3.4e12, 4e14, 5e-4)
GPU_LINKS = {"NVLink": Link(4e11, 1.2e-5, 1e-6), "PCIe 5": Link(4.5e10, 2.5e-5, 3e-6)}
# A server with eight channels of DDR5; gloo's meeting of two takes 0.3 ms on a quiet machine.
CPU = Device(2e11, 4e12)
CPU_LINKS = {
    "10 Gb/s": Link(1.15e9, 3e-4, 3e-5),
    "25 Gb/s": Link(2.9e9, 3e-4, 3e-5),
    "100 Gb/s": Link(1.15e10, 3e-4, 3e-5),
}
MOST = 16  # ranks of a stage


def foretell(name: str, kind: str, counts: list[int], device: Device, links: dict[str, Link]) -> None:
    model = hollow_model(SHAPES[name], kind)
    print(f"| {name}, {kind} | {' | '.join(f'{link}, tok/s' for link in links)} |")
    for count in counts:
        tensor = min(count, MOST)
        parallel = Parallel(tensor, count // tensor)
        costs = [
            step_cost(model.plan, model.weights, parallel, device, link, context=CONTEXT)
            for link in links.values()
        ]
        print(f"| {count} | {' | '.join(f'{1 / cost.seconds:.1f}' for cost in costs)} |", flush=True)


def seconds_a_token(llm: olivine.LLM, tokens: int = 96) -> float:
    options = {"max_tokens": tokens, "temperature": 0.0, "ignore_eos": True}
    llm.generate("Once upon a time", **options)  # type: ignore[arg-type]
    times = []
    for _ in range(5):
        began = time.perf_counter()
        llm.generate("Once upon a time", **options)  # type: ignore[arg-type]
        times.append((time.perf_counter() - began) / tokens)
    return min(times)


def measure(path: str) -> None:
    """All that a whole step takes beyond reading its weights is taken to be divided too."""
    load = partial(olivine.load, path, device="cpu", threads=1, context=512, speculate=False)
    with load() as llm:
        whole = seconds_a_token(llm)
        plan, weights = llm.model.plan, llm.model.weights
    stored = sum(part.nbytes for weight in plan.weights for part in weights[weight.name])
    device = Device(stored / whole, 1e15)
    print(f"whole: {1e3 * whole:.2f} ms a token; memory gives {read_bandwidth(1) / 1e9:.1f} GB/s")
    for way in ("shm", "gloo"):
        times = collectives.run(way, 2, [(1, plan.hidden.width)], 1.0)[1, plan.hidden.width]
        link = Link(1e9, times[len(times) // 2])
        for tensor, pipeline in ((2, 1), (1, 2)):
            cost = step_cost(plan, weights, Parallel(tensor, pipeline), device, link)
            gloo = patch.object(cluster, "compile_group", partial(compile_group, gloo=way == "gloo"))
            with gloo, load(tensor_parallel=tensor, pipeline_parallel=pipeline) as llm:
                found = seconds_a_token(llm)
            print(
                f"{way}, {tensor} × {pipeline}: foretold {1e3 * cost.seconds:.2f} ms a token "
                f"({1e6 * link.latency:.0f} µs a meeting), measured {1e3 * found:.2f}: "
                f"{found / cost.seconds:.2f} times",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--measure", action="store_true")
    parser.add_argument("--model", default="olivine-mini")
    args = parser.parse_args()
    if args.measure:
        measure(args.model)
        return
    foretell("llama-70b", "BF16", [1, 2, 4, 8], GPU, GPU_LINKS)
    foretell("gemma3-27b", "Q4_0", [1, 2, 4, 8, 16, 32, 64], CPU, CPU_LINKS)


if __name__ == "__main__":
    main()
