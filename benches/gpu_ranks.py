"""Ranks on one GPU against the whole model: their tokens, and NCCL with a world of one inside CUDA graphs.

python benches/gpu_ranks.py MODEL [--tokens 48]

Two ranks share the GPU: they meet on the host, by gloo and in shared memory. Right, not fast.
"""

from __future__ import annotations

import argparse
import time
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

import olivine
from olivine import cluster
from olivine.backends.cuda import CudaProgram
from olivine.cluster import compile_group
from olivine.cluster.rendezvous import Address, listening
from olivine.cluster.torch_collectives import NcclCollectives
from olivine.formats import open_checkpoint
from olivine.hub.find import find
from olivine.loading import model_of
from olivine.plan import Plan
from olivine.plan.layout import Layout
from olivine.plan.split import _Writer

PROMPTS = [
    "Once upon a time",
    "The capital of France is",
    "def fibonacci(n):",
    "A list of ten animals: cat, dog, horse,",
]


def texts(llm: olivine.LLM, tokens: int) -> tuple[list[list[int]], list[float], float]:
    """Tokens of prompts together, log-probabilities of a text, and tokens a second of one prompt."""
    options: dict[str, Any] = {"max_tokens": tokens, "temperature": 0, "ignore_eos": True}
    found = [each.tokens for each in llm.generate_many(PROMPTS, **options)]
    score = llm.score(PROMPTS[0], " there was a little girl who lived in a village near the sea.").logprobs
    llm.generate(PROMPTS[0], **options)
    began = time.perf_counter()
    llm.generate(PROMPTS[0], **options)
    return found, [float(each) for each in score], tokens / (time.perf_counter() - began)


def compare(path: Path, tokens: int) -> None:
    with olivine.load(path, device="cuda", context=1024) as llm:
        whole, scores, speed = texts(llm, tokens)
    print(f"whole: {speed:.1f} tokens/s", flush=True)
    for way in ("gloo", "shm"):
        for tensor, pipeline in ((2, 1), (1, 2)):
            gloo = patch.object(cluster, "compile_group", partial(compile_group, gloo=True))
            began = time.perf_counter()
            with gloo if way == "gloo" else nullcontext():
                llm = olivine.load(
                    path, device="cuda", context=1024, tensor_parallel=tensor, pipeline_parallel=pipeline
                )
            loaded = time.perf_counter() - began
            with llm:
                found, ours, speed = texts(llm, tokens)
            same = sum(a == b for a, b in zip(found, whole, strict=True))
            first = [
                next((i for i, (a, b) in enumerate(zip(x, y, strict=True)) if a != b), tokens)
                for x, y in zip(found, whole, strict=True)
            ]
            apart = [abs(a - b) for a, b in zip(ours, scores, strict=True)]
            print(
                f"{way}, {tensor} × {pipeline}: {same} of {len(whole)} texts equal "
                f"(first difference at {first}), "
                f"log-probabilities apart by {np.mean(apart):.4f}, at most {max(apart):.4f}; "
                f"{speed:.1f} tokens/s, loaded in {loaded:.1f} s",
                flush=True,
            )


def world_of_one(plan: Plan) -> Plan:
    """The plan as the only rank of a group runs it: with all of its collectives."""
    return _Writer(plan, Layout(plan, 1, lambda weight: 1), 1).write(0)


def nccl(path: Path, tokens: int) -> None:
    """The same plan with and without collectives, decoded in chains: CUDA graphs."""
    from olivine.backends import Batch, Draw, Sampling

    model = model_of(open_checkpoint(path), 1024)
    counts = [40] * len(model.plan.groups)
    table = np.arange(32, dtype=np.int32)[None]
    prompt = np.arange(5, 45, dtype=np.int32)
    rows = np.arange(len(prompt), dtype=np.int32)
    batch = Batch(
        prompt, np.zeros_like(rows), rows, rows[-1:], tuple(table for _ in counts), np.zeros(len(rows), bool)
    )
    results = []
    for divided in (False, True):
        plan = world_of_one(model.plan) if divided else model.plan
        collectives = None
        if divided:
            listener = listening("127.0.0.1")
            place = str(Address(*listener.getsockname()))
            collectives = NcclCollectives(place, 1, 1, 0, 0, 60.0, listener)
        program = CudaProgram(plan, model.weights, page_counts=counts, collectives=collectives)
        assert program.executable.recorder.enabled, "decode steps are CUDA graphs"
        drawn = program.generate(batch, [Draw(Sampling())], tokens)[0]
        began = time.perf_counter()
        drawn = program.generate(batch, [Draw(Sampling())], tokens)[0]
        seconds = time.perf_counter() - began
        kinds = [op.kind for op in plan.ops]
        meets = sum(kinds.count(kind) for kind in ("all_reduce", "all_gather"))
        results.append(drawn.tokens)
        print(
            f"{'NCCL, a world of one' if divided else 'whole'}: {meets} collectives in a graph, "
            f"{1e3 * seconds / tokens:.2f} ms a token",
            flush=True,
        )
        if collectives is not None:
            _latency(collectives)
        del program
    print("the same tokens" if results[0] == results[1] else f"other tokens: {results}", flush=True)


def _latency(collectives: NcclCollectives) -> None:
    import torch

    for count in (1, 512):
        x = torch.ones((count, 4096), device="cuda")
        for _ in range(20):
            collectives.all_reduce(x)
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(200):
            collectives.all_reduce(x)
        torch.cuda.synchronize()
        print(f"  {count} × 4096: {1e6 * (time.perf_counter() - began) / 200:.1f} µs", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--tokens", type=int, default=48)
    args = parser.parse_args()
    path = find(args.model)
    for part in (nccl, compare):
        try:
            part(path, args.tokens)
        except Exception as error:
            import traceback

            traceback.print_exc()
            print(f"{part.__name__} failed: {error}", flush=True)


if __name__ == "__main__":
    main()
