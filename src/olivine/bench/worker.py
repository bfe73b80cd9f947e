"""Olivine in a child process: loads a model and times its steps. `python -m olivine.bench.worker`"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import numpy as np

from olivine.backends import Batch, cpu
from olivine.bench.costs import costs
from olivine.bench.serve import peak_memory, serve
from olivine.errors import ContextError, ModelError, OlivineError
from olivine.llm import LLM, load
from olivine.plan.ops import Embed

# Prompt rows per step, the same for every engine.
CHUNK = 512
IMAGE = (768, 1024, 3)  # rows, columns and colours of the photo that is encoded


class Runner:
    """A program with one sequence. Batches are built beforehand: only steps are timed."""

    def __init__(self, model: str, device: str, threads: int, context: int, mmproj: str | None) -> None:
        started = time.perf_counter()
        self.llm = load(
            model,
            device=device,
            threads=threads,
            context=context,
            sequences=1,
            mmproj=mmproj,
            speculate=False,
        )
        self.load_seconds = time.perf_counter() - started
        self.program = self.llm.program
        embeddings = (op for op in self.program.plan.ops if isinstance(op, Embed))
        self.vocabulary = min(op.weight.shape[0] for op in embeddings)
        self.tables = tuple(self._table(group, context) for group in range(len(self.program.plan.groups)))
        self.random = np.random.default_rng(0)
        self.position = 0

    def _table(self, group: int, context: int) -> np.ndarray[Any, np.dtype[np.int32]]:
        """The page table of the sequence. With a window, the pages are reused cyclically."""
        pages = -(-context // self.program.page_size)
        there = self.program.page_counts[group]
        if there < pages and self.program.plan.groups[group].window is None:
            raise ModelError(f"the KV cache has {there} pages and {context} tokens need {pages}")
        return (np.arange(pages, dtype=np.int32) % there)[None]

    def prefill(self, tokens: int) -> float:
        """Seconds to prefill that many more prompt tokens, with the logits of the last."""
        ends = [*range(CHUNK, tokens, CHUNK), tokens]
        starts = [0, *ends[:-1]]
        return self._time(
            [
                self._batch(end - start, start, wanted=end == tokens, generated=False)
                for start, end in zip(starts, ends, strict=True)
            ]
        )

    def decode(self, tokens: int) -> float:
        """Seconds for that many decode steps of one token, each with its logits. On a GPU they are what a
        request takes from its first token on: logits stay there, and many steps run without the host."""
        if self.llm.device.startswith("cuda"):
            prompt = self.random.integers(self.vocabulary, size=max(1, self.position)).tolist()
            arrivals = asyncio.run(_arrivals(self.llm, prompt, tokens + 1))
            return arrivals[-1] - arrivals[0]
        return self._time([self._batch(1, i, wanted=True, generated=True) for i in range(tokens)])

    def image(self) -> tuple[float, int]:
        """Seconds to preprocess and encode a photo of new content, and its soft tokens."""
        pixels = self.random.integers(0, 256, IMAGE, np.uint8)
        started = time.perf_counter()
        request = self.llm.conversations.prepare(
            [{"role": "user", "content": [{"type": "image", "image": pixels}]}]
        )
        return time.perf_counter() - started, sum(len(block.embeddings) for block in request.media)

    def _batch(self, rows: int, offset: int, *, wanted: bool, generated: bool) -> Batch:
        start = self.position + offset
        return Batch(
            tokens=self.random.integers(self.vocabulary, size=rows, dtype=np.int32),
            sequences=np.zeros(rows, np.int32),
            positions=np.arange(start, start + rows, dtype=np.int32),
            outputs=np.array([rows - 1] if wanted else [], np.int32),
            tables=self.tables,
            generated=np.full(rows, generated),
        )

    def _time(self, batches: list[Batch]) -> float:
        started = time.perf_counter()
        for batch in batches:
            logits = self.program.step(batch).logits
        seconds = time.perf_counter() - started
        self.position += sum(len(batch.tokens) for batch in batches)
        if not np.isfinite(logits).all():
            raise ModelError("the model's logits are not finite: its speed means nothing")
        return seconds


class Streams:
    """An engine that serves several streams at once. No speculation: it depends on the text."""

    def __init__(self, model: str, device: str, threads: int, context: int, sequences: int) -> None:
        self.llm = load(
            model, device=device, threads=threads, context=context, sequences=sequences, speculate=False
        )
        self.random = np.random.default_rng(0)

    def run(self, count: int, prompt: int, generate: int) -> dict[str, float]:
        """Seconds in total; seconds and tokens since every stream has its first token."""
        prompts = self.random.integers(self.llm.vocabulary, size=(count, prompt)).tolist()
        started = time.perf_counter()
        arrivals = asyncio.run(self._all(prompts, generate))
        all_begun = max(times[0] for times in arrivals)
        end = max(times[-1] for times in arrivals)
        late = sum(at > all_begun for times in arrivals for at in times)
        return {"seconds": end - started, "decode_seconds": end - all_begun, "decoded": late}

    async def _all(self, prompts: list[list[int]], generate: int) -> list[list[float]]:
        return await asyncio.gather(*(_arrivals(self.llm, prompt, generate) for prompt in prompts))


async def _arrivals(llm: LLM, prompt: list[int], generate: int) -> list[float]:
    """The arrival time of each token."""
    times: list[float] = []
    async for piece in llm.astream(prompt, temperature=0.0, max_tokens=generate, ignore_eos=True):
        times += [time.perf_counter()] * len(piece.tokens)
    return times


class Worker:
    """The calls that the parent makes."""

    def __init__(self) -> None:
        self.runner: Runner | None = None
        self.many: Streams | None = None

    def open(
        self, model: str, device: str, threads: int, context: int, prompt: int, mmproj: str | None = None
    ) -> dict[str, Any]:
        self.runner = runner = Runner(model, device, threads, context, mmproj)
        checkpoint = runner.llm.checkpoint
        return {
            "load_s": runner.load_seconds,
            "device": runner.llm.device,
            "architecture": checkpoint.architecture,
            "file_bytes": checkpoint.file_bytes,
            "costs": vars(costs(runner.program.plan, runner.llm.model.weights, prompt)),
        }

    def reset(self) -> None:
        self._runner.position = 0

    def prefill(self, tokens: int) -> dict[str, float]:
        return {"seconds": self._runner.prefill(tokens)}

    def decode(self, tokens: int) -> dict[str, float]:
        return {"seconds": self._runner.decode(tokens)}

    def image(self) -> dict[str, Any]:
        """Nothing, if the model takes no images, or its context is too short for one."""
        if all(tower.kind != "vision" for tower in self._runner.llm.towers):
            return {}
        try:
            seconds, tokens = self._runner.image()
        except OlivineError as error:
            if isinstance(error, ContextError) or error.code == "media_not_installed":
                return {}
            raise
        return {"seconds": seconds, "tokens": tokens}

    def open_streams(self, **how: Any) -> dict[str, Any]:
        self.many = Streams(**how)
        return {"device": self.many.llm.device}

    def streams(self, **how: int) -> dict[str, float]:
        if self.many is None:
            raise OlivineError("no model is open")
        return self.many.run(**how)

    def machine(self, threads: int, bytes: int) -> dict[str, Any]:
        """The machine's limits, measured now, for weights of that many bytes."""
        return {
            "isa": cpu.isa(),
            "bandwidth": cpu.read_bandwidth(threads, min(bytes, 1 << 30)),
            "peak": cpu.arithmetic_peak(threads),
        }

    @property
    def _runner(self) -> Runner:
        if self.runner is None:
            raise OlivineError("no model is open")
        return self.runner


def main() -> None:
    worker = Worker()
    names = ("open", "reset", "prefill", "decode", "image", "open_streams", "streams", "machine")
    serve({"peak_memory": peak_memory} | {name: getattr(worker, name) for name in names})


if __name__ == "__main__":
    main()
