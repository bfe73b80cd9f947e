"""Time to first token by stage, and the speed of the tokenizer.

    python benches/startup.py [MODEL]

Every line is the median of five new processes, in milliseconds, with the file in the page cache. The last two
are the whole command, including the interpreter; byte-compile the modules first. On a GPU there are two more,
medians of three: the command on a machine that has compiled no kernel, and the next one there, for which
kernels of longer prompts may still be missing. Without MODEL, a GPU runs Qwen3-0.6B in BF16 with random
weights, which is written to the folder for temporary files, and a CPU the model in the box.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

REPEATS = 5
PROMPT = "The quick brown fox jumps over the lazy dog."
QUESTION = "Tell me a story about a dragon"


def stages(path: str) -> dict[str, float]:
    """Milliseconds of each stage, in this process."""
    laps: dict[str, float] = {}
    last = time.perf_counter()

    def lap(name: str) -> None:
        nonlocal last
        now = time.perf_counter()
        laps[name] = 1e3 * (now - last)
        last = now

    from olivine import loading
    from olivine.engine import Engine, Generate, Request
    from olivine.formats import open_checkpoint

    lap("imports")
    checkpoint = open_checkpoint(path)
    lap("open and read the header")
    tokenizer = loading.tokenizer_of(checkpoint)
    lap("build the tokenizer")
    model = loading.model_of(checkpoint)
    lap("trace the plan")
    device, _ = loading.choose_device("auto")
    if device == "cuda":
        import torch

        lap("import torch")
        torch.cuda.init()
        torch.zeros(1, device="cuda")
        lap("open the GPU")
        importlib.import_module("olivine.backends.cuda")
        lap("import the kernels")
    program = loading.compile_model(model, device, 4096, loading.LoadOptions(sequences=1)).program
    lap("compile" if device == "cpu" else "load the weights, compile the kernels")
    tokens = tokenizer.encode(PROMPT)
    lap("encode a short prompt")
    engine = Engine(program, 4096)
    list(engine.submit(Request(tokens, Generate(max_tokens=1))))
    engine.close()
    lap("first token of a short prompt")
    laps["sum"] = sum(laps.values())
    last = time.perf_counter()
    tokenizer.encode("The sea was calm, and 3 ships lay at anchor.\n" * 23_000)
    lap("(encode 1 MB of text)")
    return laps


def first_output(path: str, *asked: str, cache: str | None = None) -> float:
    """Milliseconds from the start of `olivine run` to the first byte of its answer; `cache`: a folder for the
    kernels of a GPU."""
    command = [sys.executable, "-m", "olivine", "run", path, *asked, "-n", "8", "--quiet"]
    environment = None if cache is None else {**os.environ, "TRITON_CACHE_DIR": cache}
    started = time.perf_counter()
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=environment
    ) as process:
        assert process.stdout is not None
        if not process.stdout.read(1):
            raise SystemExit("olivine run said nothing")
        return 1e3 * (time.perf_counter() - started)


def first_outputs(path: str) -> tuple[float, float]:
    """As `first_output`, of the first and the second command on a machine that has compiled no kernel."""
    with tempfile.TemporaryDirectory() as folder:
        return first_output(path, "-p", PROMPT, cache=folder), first_output(path, "-p", PROMPT, cache=folder)


def default_model() -> str:
    from make_model import made  # not above: imports are a stage
    from olivine.backends.devices import cuda_obstacle

    if cuda_obstacle() is not None:
        return "olivine-mini"
    return str(made("qwen3-0.6b", "BF16", Path(tempfile.gettempdir())))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?")
    parser.add_argument("--once", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.once:
        print(json.dumps(stages(arguments.model)))
        return
    model = arguments.model or default_model()
    command = [sys.executable, __file__, model, "--once"]
    runs = [
        json.loads(subprocess.run(command, capture_output=True, check=True).stdout) for _ in range(REPEATS)
    ]
    for name in runs[0]:
        print(f"{name:<40}{statistics.median(run[name] for run in runs):8.0f} ms")
    for name, asked in (("olivine run -p", ["-p", PROMPT]), ("olivine run, a question", [QUESTION])):
        whole = statistics.median(first_output(model, *asked) for _ in range(REPEATS))
        print(f"{name:<40}{whole:8.0f} ms")
    if "open the GPU" in runs[0]:
        cold = [first_outputs(model) for _ in range(3)]
        for name, times in zip(("no kernel compiled", "the next"), zip(*cold, strict=True), strict=True):
            print(f"{f'olivine run -p, {name}':<40}{statistics.median(times):8.0f} ms")


if __name__ == "__main__":
    main()
