"""The CUDA backend on one GPU: first whether it is right (gpu_right.py), then how fast it is.

    PYTHONPATH=src:tests:benches python benches/gpu.py                     everything
    PYTHONPATH=src:tests:benches python benches/gpu.py --only right,decode --models qwen3-0.6b --types BF16
    PYTHONPATH=src:tests:benches python benches/gpu.py --only prefill --models gemma3-4b --types BF16,Q4_K_M
    PYTHONPATH=src:tests:benches python benches/gpu.py --against ~/llama.cpp/build --types BF16,Q4_K_M
    PYTHONPATH=src:tests:benches python benches/gpu.py --against ~/llama.cpp/build --types Q4_K_M \\
        --models qwen3-30b-a3b,gemma4-26b-a4b --rounds 1 --cells decode,prompt-4096,many-64

The last two run llama.cpp's benchmarks in turn with ours, on the same files (llama_bench.py). Models have
published shapes and random weights. Shares are of the time that reading the weights once takes.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median

import numpy as np
import torch

from gpu_right import right, right_attention, right_pairs, right_products, right_sampling, say
from llama_bench import LlamaCpp
from olivine import models
from olivine.backends import Batch, Draw, Sampling
from olivine.backends.ahead import compile_ahead
from olivine.backends.cuda import PAGE_SIZE, CudaProgram
from olivine.plan import ops
from side_by_side import Row, Run, side_by_side
from synthetic import SHAPES
from synthetic.in_memory import hollow_model, model_in_memory

BANDWIDTH = 4.09e12  # bytes a second that a matrix-vector product reads on an H200
TARGETS = {"qwen3-0.6b": 1400, "gemma3-1b": 900, "gemma3-4b": 390}
PREFILL = {"qwen3-0.6b": 1.3 * 74523, "gemma3-1b": 1.3 * 81456, "gemma3-4b": 1.3 * 41318}
PROMPTS = (16, 128, 512, 4096)  # tokens
MANY = (64, 256)  # sequences at once
CELLS = ("decode", *(f"prompt-{rows}" for rows in PROMPTS), *(f"many-{count}" for count in MANY))
TOP = Sampling(temperature=1.0, top_k=64, top_p=0.95, seed=1)

# Ways to draw, each measured against greedy decoding.
WAYS = {
    "top-k 64, top-p 0.95": Draw(TOP),
    "all tokens": Draw(Sampling(temperature=1.0, seed=1)),
    "top-p 0.9": Draw(Sampling(temperature=0.8, top_p=0.9, seed=1)),
    # Random weights make flat logits, of which this temperature leaves top-p a dozen tokens.
    "top-p 0.9, peaked": Draw(Sampling(temperature=0.2, top_p=0.9, seed=1)),
    "min-p 0.05": Draw(Sampling(temperature=0.8, top_k=40, top_p=0.95, min_p=0.05, seed=1)),
    "min-p 0.05 alone": Draw(Sampling(temperature=0.8, min_p=0.05, seed=1)),
    "top-k 1000": Draw(Sampling(temperature=0.8, top_k=1000, seed=1)),
    "penalties": Draw(
        Sampling(temperature=0.8, top_k=40, repetition_penalty=1.1, presence_penalty=0.2, seed=1),
        prompt=list(range(128)),
    ),
    "bias": Draw(Sampling(logit_bias={5: 1.0, 7: -1.0})),
    "20 log-probabilities": Draw(Sampling(), logprobs=20),
    "sampled, with those": Draw(TOP, logprobs=20),
}


def program_of(model: models.Model, length: int, sequences: int) -> CudaProgram:
    pages = -(-length // PAGE_SIZE) * sequences
    return CudaProgram(model.plan, model.weights, page_counts=[pages] * len(model.plan.groups))


def batch_of(
    program: CudaProgram, sequences: int, length: int, start: int, rows: int, generated: bool
) -> Batch:
    """`rows` tokens of each sequence from `start` on; page tables in order."""
    rng = np.random.default_rng(0)
    pages = -(-length // PAGE_SIZE)
    table = np.arange(sequences * pages, dtype=np.int32).reshape(sequences, pages)
    count = sequences * rows
    return Batch(
        tokens=rng.integers(0, 1000, count).astype(np.int32),
        sequences=np.repeat(np.arange(sequences), rows).astype(np.int32),
        positions=np.tile(np.arange(start, start + rows), sequences).astype(np.int32),
        outputs=(np.arange(1, sequences + 1) * rows - 1).astype(np.int32),
        tables=tuple(table for _ in program.page_counts),
        generated=np.full(count, generated),
    )


def weight_bytes(model: models.Model) -> int:
    """Bytes that a decode step of one row must read: of experts the chosen ones, and no embedding that is no
    head."""
    read = {w.name: 1.0 for op in model.plan.ops if not isinstance(op, ops.Embed) for w in op.weights()}
    for op in model.plan.ops:
        if isinstance(op, ops.MoE):
            read |= {w.name: op.top_k / op.gate.shape[0] for w in (op.gate, op.up, op.down)}
    return int(sum(part.nbytes * share for name, share in read.items() for part in model.weights[name]))


class Stream:
    """Sequences after a prompt of 128, whose next tokens are made again and again."""

    def __init__(
        self, program: CudaProgram, sequences: int, how: Sampling | Draw, n: int = 256, length: int = 512
    ):
        draw = how if isinstance(how, Draw) else Draw(how)
        self._program, self._draws, self._n = program, [draw] * sequences, n
        program.generate(batch_of(program, sequences, length, 0, 128, False), self._draws, 1)
        self._batch = batch_of(program, sequences, length, 128, 1, True)

    def speed(self) -> float:
        """Tokens a second, all sequences together."""
        torch.cuda.synchronize()
        started = time.perf_counter()
        drawn = self._program.generate(self._batch, self._draws, self._n)
        seconds = time.perf_counter() - started
        made = sum(len(d.tokens) for d in drawn)
        if made != self._n * len(self._draws):
            say(f"  only {made} tokens: {[d.error for d in drawn][:2]}")
        return made / seconds


class Prompt:
    """A prompt that is read again and again."""

    def __init__(self, program: CudaProgram, rows: int = 4096):
        self._program, self._rows = program, rows
        self._batch = batch_of(program, 1, rows, 0, rows, False)

    def speed(self) -> float:
        torch.cuda.synchronize()
        started = time.perf_counter()
        self._program.generate(self._batch, [Draw(Sampling())], 1)
        return self._rows / (time.perf_counter() - started)


def in_turn(measured: dict[str, Stream | Prompt], rounds: int = 7) -> dict[str, np.ndarray]:
    """The speeds of each, taken in turn, because the GPU's clock is not always the same; after two rounds, in
    which kernels are compiled and graphs recorded."""
    found = [[each.speed() for each in measured.values()] for _ in range(rounds + 2)][2:]
    return dict(zip(measured, np.array(found).T, strict=True))


def spread(speeds: np.ndarray) -> str:
    return f"{np.median(speeds):>8.0f} tok/s [{speeds.min():.0f}–{speeds.max():.0f}]"


def against(speeds: np.ndarray, others: np.ndarray) -> str:
    """How much faster than the others, round by round."""
    ratios = speeds / others - 1
    return f"{np.median(ratios):+.1%} [{ratios.min():+.1%} to {ratios.max():+.1%}]"


def clock() -> str:
    asked = ["nvidia-smi", "--query-gpu=clocks.sm,clocks.max.sm,power.draw", "--format=csv,noheader"]
    try:
        return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError) as error:
        return f"unknown: {error}"


def profile(program: CudaProgram, how: Sampling, sequences: int = 1) -> None:
    """Kernel times of a decode step, by name."""
    batch = batch_of(program, sequences, 512, 128, 1, True)
    program.generate(batch, [Draw(how)] * sequences, 8)
    kernel_times(lambda: program.generate(batch, [Draw(how)] * sequences, 32), 32)


def profile_prompt(program: CudaProgram, rows: int) -> None:
    """Kernel times of a prompt, by name."""
    say(f"    a prompt of {rows}:")
    batch = batch_of(program, 1, rows, 0, rows, False)
    for _ in range(2):
        program.generate(batch, [Draw(Sampling())], 1)
    kernel_times(lambda: program.generate(batch, [Draw(Sampling())], 1), 1)


def kernel_times(run: Callable[[], object], steps: int) -> None:
    """How long a step waits for its kernels: each from the end of the one before it to its own end. (They
    start early, so what they take by themselves would be more than the step.)"""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as record

    with record(activities=[ProfilerActivity.CUDA]) as found:
        run()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        found.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    kernels = [event for event in events if event.get("cat") == "kernel"]
    ended = sorted(((event["ts"] + event["dur"], event) for event in kernels), key=lambda pair: pair[0])
    totals: dict[str, list[float]] = {}
    for (before, _), (end, event) in pairwise(ended):
        grid = "×".join(str(size) for size in event["args"].get("grid", ()))
        took = totals.setdefault(f"{event['name'][:30]} {grid}", [0.0, 0.0])
        took[0] += (end - before) / steps
        took[1] += 1 / steps
    say(f"    {sum(took for took, _ in totals.values()):.1f} µs a step, {len(kernels) / steps:.0f} launches")
    for name, (took, count) in sorted(totals.items(), key=lambda item: -item[1][0])[:20]:
        say(f"    {name:<42}{took:>9.1f} µs a step, {count:>6.1f} launches, {took / count:>7.2f} µs each")


def fast(names: list[str], kinds: list[str], parts: set[str], sequences: int) -> None:
    for name in names:
        made = {kind: model_in_memory(SHAPES[name], kind) for kind in kinds}
        limits = {kind: BANDWIDTH / weight_bytes(model) for kind, model in made.items()}
        say(f"{name}: at most {', '.join(f'{limit:.0f} tok/s in {kind}' for kind, limit in limits.items())}")
        if parts & {"decode", "sampled", "prefill", "profile"}:
            steps(name, made, limits, parts, sequences)
        gc.collect()
        if "served" in parts:
            served(program_of(made[kinds[0]], 4352, 16), 4352)
        if "many" in parts:
            for kind, model in made.items():
                many(kind, program_of(model, 512, max(MANY)), "profile" in parts)
                gc.collect()
        say(f"  clock, its most, and power after that: {clock()}")
        del made
        gc.collect()
        torch.cuda.empty_cache()


def many(kind: str, program: CudaProgram, profiled: bool) -> None:
    """Sequences at once, against one."""
    streams = {count: Stream(program, count, TOP, 128) for count in (1, *MANY)}
    speeds = in_turn({str(count): stream for count, stream in streams.items()}, 5)
    for count in MANY:
        found = speeds[str(count)]
        times = np.median(found / speeds["1"])
        step = f"{1e3 * count / float(np.median(found)):.2f} ms a step"
        say(f"  {kind:<7} {count:>3} sequences {spread(found)}, {step}, {times:.1f}× of one")
        if profiled:
            profile(program, TOP, count)


def served(program: CudaProgram, length: int) -> None:
    """Through the engine, as users have it: how long until the first token, and many who come at once."""
    from olivine.engine import Engine, Generate, Request

    engine = Engine(program, length, sequences=16, speculate=False)
    rng = np.random.default_rng(0)

    def asked(rows: int, tokens: int) -> Request:
        return Request(rng.integers(0, 1000, rows).tolist(), Generate(TOP, max_tokens=tokens))

    def seconds(requests: list[Request]) -> float:
        started = time.perf_counter()
        for ticket in [engine.submit(request) for request in requests]:
            list(ticket)
        return time.perf_counter() - started

    words = []
    for rows in (16, 128, 512, 2048, 4096):
        took = [seconds([asked(rows, 1)]) for _ in range(9)][2:]
        middle, least, most = (1e3 * float(of(took)) for of in (np.median, np.min, np.max))
        words.append(f"{rows}: {middle:.1f} ms [{least:.1f}–{most:.1f}]")
    say(f"    first token after a prompt of {', '.join(words)}")
    took = [seconds([asked(512, 128) for _ in range(16)]) for _ in range(5)][1:]
    say(f"    16 at once, 512 tokens of prompt and 128 more each: {2048 / float(np.median(took)):.0f} tok/s")
    engine.close()


def steps(
    name: str, made: dict[str, models.Model], limits: dict[str, float], parts: set[str], sequences: int
) -> None:
    """Types and ways to draw take turns; the first type is what the others are compared with."""
    length = 4096 if parts & {"prefill", "profile"} else 512
    programs = {kind: program_of(model, length, sequences) for kind, model in made.items()}
    first = next(iter(made))
    measured: dict[str, Stream | Prompt] = {}
    if parts & {"decode", "sampled"}:
        measured = {kind: Stream(program, sequences, Sampling()) for kind, program in programs.items()}
    if "sampled" in parts:
        measured |= {name: Stream(programs[first], sequences, draw) for name, draw in WAYS.items()}
    speeds = in_turn(measured) if measured else {}
    for kind, found in speeds.items():
        alone = sequences == 1
        share = f", {np.median(found) / limits[kind]:.1%} of the limit" if alone and kind in limits else ""
        target = f", target {TARGETS[name]}" if alone and kind == "BF16" and name in TARGETS else ""
        than = "" if kind == first else f", {against(found, speeds[first])} against {first}"
        say(f"  {kind:<22} decode {spread(found)}{share}{target}{than}")
    if "prefill" in parts:
        for rows in PROMPTS:
            prompts = in_turn({kind: Prompt(program, rows) for kind, program in programs.items()}, 6)
            for kind, found in prompts.items():
                known = name in PREFILL and kind == "BF16" and rows == 4096
                target = f", target {PREFILL[name]:.0f}" if known else ""
                than = (
                    "" if kind == first else f", {np.median(found / prompts[first]):.1%} of {first}'s speed"
                )
                took = f"{1e3 * rows / float(np.median(found)):.2f} ms"
                say(f"  {kind:<7} prompt of {rows:<5}{took:>10}, {spread(found)}{target}{than}")
        say(f"  {clock()}")
    if "profile" in parts:
        profile(programs[first], TOP, sequences)
        if "prefill" in parts:
            for rows in PROMPTS:
                profile_prompt(programs[first], rows)


def compare(
    build: Path, names: list[str], kinds: list[str], folder: Path | None, rounds: int, cells: list[str]
) -> None:
    """Ours and llama.cpp's speeds of one file, taken in turn, and their ratio."""
    llama = LlamaCpp(build)
    say(f"{'tok/s, ours / llama.cpp':<24}" + "".join(f"{cell:>26}" for cell in cells))
    for name, kind in ((name, kind) for name in names for kind in kinds):
        row = Row()
        with tempfile.TemporaryDirectory() as temporary:
            try:
                row = compared(llama, name, kind, folder or Path(temporary), rounds, cells)
            except Exception:
                row.failures.append(traceback.format_exc(limit=-4)[-1500:])
        say(f"{name + ' ' + kind:<24}" + "".join(f"{row.cell(cell):>26}" for cell in cells))
        for reason in row.failures:
            say(f"  FAILED: {reason}")
        gc.collect()
        torch.cuda.empty_cache()
    say(f"clock, its most, and power after that: {clock()}")


def compared(llama: LlamaCpp, name: str, kind: str, folder: Path, rounds: int, cells: list[str]) -> Row:
    """One model. Kernels are compiled while the file is written, and all of them before a measurement."""
    from make_model import made
    from oracles import running

    prompts = [rows for rows in PROMPTS if f"prompt-{rows}" in cells]
    counts = [count for count in MANY if f"many-{count}" in cells]
    started = time.perf_counter()
    hollow = hollow_model(SHAPES[name], kind)
    with compile_ahead(hollow.plan, hollow.weights, None, 512) as kernels:
        path = made(name, kind, folder)
        written = time.perf_counter()
        program = program_of(running.build(path), 512, max(counts, default=8))
        loaded = time.perf_counter()
        kernels.join()
    waited = time.perf_counter() - loaded
    say(
        f"  {name} {kind}: file written in {written - started:.1f} s, loaded in {loaded - written:.1f} s, "
        f"kernels compiled {waited:.1f} s after that"
    )

    def of_prompts() -> list[float]:
        found = llama.prompts(path, prompts)
        return [median(found[rows]) for rows in prompts]

    ours: dict[str, Callable[[], Stream | Prompt]] = {}
    theirs: list[Run] = []
    if "decode" in cells:
        ours["decode"] = lambda: Stream(program, 1, Sampling())
        theirs.append(Run(["decode"], lambda: [median(llama.decode(path, 256, 128))]))
    if prompts:
        ours |= {f"prompt-{rows}": partial(Prompt, program, rows) for rows in prompts}
        theirs.append(Run([f"prompt-{rows}" for rows in prompts], of_prompts))
    for count in counts:
        ours[f"many-{count}"] = partial(Stream, program, count, Sampling(), 128)
        theirs.append(Run([f"many-{count}"], lambda count=count: [llama.streams(path, count, 128, 128)]))
    return side_by_side(ours, theirs, rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--only", default="right,products,attention,sampling,decode,sampled,prefill,many,served,profile"
    )
    parser.add_argument("--models", default="qwen3-0.6b,gemma3-1b,gemma3-4b,gemma4-e2b")
    parser.add_argument("--types", default="BF16,Q8_0,Q4_K")
    parser.add_argument("--case", default="", help="part of the names of the small models to check")
    parser.add_argument(
        "--sequences", type=int, default=1, help="at once, of decode and sampled (default: 1)"
    )
    parser.add_argument("--share", default="0/1", help="i/n: every n-th of what is checked, from the i-th")
    parser.add_argument(
        "--against", type=Path, metavar="BUILD", help="a folder in which llama.cpp was built: compare with it"
    )
    parser.add_argument("--cells", default=",".join(CELLS), help="with --against, of: %(default)s")
    parser.add_argument("--rounds", type=int, default=2, help="with --against: of both in turn")
    parser.add_argument(
        "--folder", type=Path, help="of model files for --against, kept there (default: a temporary one)"
    )
    given = parser.parse_args()
    if not torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1":
        parser.error("there is no NVIDIA GPU; with TRITON_INTERPRET=1, --only sampling runs without one")
    names, kinds, cells = (chosen.split(",") for chosen in (given.models, given.types, given.cells))
    for what, chosen, known in (("model", names, SHAPES), ("cell", cells, CELLS)):
        for each in sorted(set(chosen) - set(known)):
            parser.error(f"there is no {what} {each}: {', '.join(known)}")
    if given.against is not None:
        compare(given.against, names, kinds, given.folder, given.rounds, cells)
        return
    parts = set(given.only.split(","))
    fine = True
    if "right" in parts:
        fine = right(given.case, given.share) and fine
    if "products" in parts:
        fine = right_products(given.share) and right_pairs(given.share) and fine
    if "attention" in parts:
        fine = right_attention(given.share) and fine
    if "sampling" in parts:
        fine = right_sampling() and fine
    if parts - {"right", "products", "attention", "sampling"}:
        fast(names, kinds, parts, given.sequences)
    sys.exit(0 if fine else 1)


if __name__ == "__main__":
    main()
