"""llama.cpp's own benchmarks, from a folder that it was built in, on the same files as ours.

cmake -B build -DGGML_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES=90
cmake --build build -j --target llama-bench llama-batched-bench
"""

from __future__ import annotations

import json
import statistics
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

MICRO_BATCHES = "512,2048"  # rows at once: its default, and what may be faster on a large GPU


class LlamaCpp:
    """Every call is a process of its own, with all layers on the GPU and flash attention."""

    def __init__(self, build: Path) -> None:
        folders = [folder for folder in (build / "bin", build) if (folder / "llama-bench").exists()]
        if not folders:
            raise SystemExit(f"{build} has no llama-bench: see {Path(__file__).name} for how to build it")
        self._folder = folders[0]

    def prompts(self, model: Path, rows: Sequence[int]) -> dict[int, list[float]]:
        """Tokens a second of prompts, by their length, in the micro-batches that are faster."""
        asked = ["-p", ",".join(map(str, rows)), "-n", "0", "-b", "4096", "-ub", MICRO_BATCHES]
        found: dict[int, list[float]] = {}
        for run in self._bench(model, asked):
            length, speeds = run["n_prompt"], run["samples_ts"]
            found[length] = max(found.get(length, speeds), speeds, key=statistics.median)
        return found

    def decode(self, model: Path, tokens: int, depth: int) -> list[float]:
        """Tokens a second of one sequence after `depth` tokens."""
        runs = self._bench(model, ["-p", "0", "-n", str(tokens), "-d", str(depth)])
        return [speed for run in runs for speed in run["samples_ts"]]

    def streams(self, model: Path, count: int, prompt: int, tokens: int) -> float:
        """Tokens a second of `count` sequences together, after their prompts."""
        asked = ["-npp", str(prompt), "-ntg", str(tokens), "-npl", str(count)]
        room = str(count * (prompt + tokens))
        out = self._run(
            "llama-batched-bench",
            [*_on_gpu(model, "on"), *asked, "-c", room, "-b", "4096", "--output-format", "jsonl"],
        )
        runs = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
        return float(next(run["speed_tg"] for run in runs if run["pl"] == count))

    def _bench(self, model: Path, asked: Sequence[str]) -> list[dict[str, Any]]:
        out = self._run("llama-bench", [*_on_gpu(model, "1"), *asked, "-r", "3", "-o", "json"])
        return list(json.JSONDecoder().raw_decode(out, out.index("[\n"))[0])

    def _run(self, program: str, arguments: Sequence[str]) -> str:
        run = subprocess.run([self._folder / program, *arguments], capture_output=True, text=True)
        if run.returncode:
            raise RuntimeError(f"{program} {' '.join(arguments)}: {(run.stderr or run.stdout)[-1000:]}")
        return run.stdout + run.stderr  # what is logged may go to either


def _on_gpu(model: Path, flash_attention: str) -> list[str]:
    return ["-m", str(model), "-ngl", "99", "-fa", flash_attention]
