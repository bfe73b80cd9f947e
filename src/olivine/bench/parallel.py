"""Throughput of several concurrent streams: tokens per second of all together.

One process per engine, with the same number of threads, greedy decoding and no speculation. `repeats` times,
for each number of streams, the engines alternately prefill that many prompts of random tokens and decode, so
other load on the machine affects all engines alike, and ratios are taken within each repeat.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from olivine.backends.cpu import default_threads
from olivine.bench.child import Child
from olivine.bench.measure import SETTLE, explaining_llama_cpp
from olivine.bench.spread import Spread


@dataclass(frozen=True)
class Settings:
    """What to measure."""

    model: Path
    streams: tuple[int, ...]
    prompt: int = 128
    generate: int = 64
    threads: int | None = None
    repeats: int = 5
    device: str = "auto"
    llama_python: str | None = None  # the interpreter that has llama_cpp; None: do not compare

    @property
    def context(self) -> int:
        """KV cache per stream, in tokens."""
        return -(-(self.prompt + self.generate) // 256) * 256


@dataclass
class Figures:
    """Tokens per second of all streams together."""

    total: Spread  # from the first prompt's start to the last token
    decode: Spread  # after all prompts are prefilled


@dataclass
class Report:
    """Figures by engine and number of streams; Olivine first."""

    settings: Settings
    threads: int
    device: str
    llama_cpp: str | None
    engines: dict[str, dict[int, Figures]]

    def over_one(self, engine: str, streams: int, figure: str) -> Spread:
        """The throughput of that many streams over that of one."""
        by_streams = self.engines[engine]
        many, one = (getattr(by_streams[count], figure) for count in (streams, 1))
        assert isinstance(many, Spread) and isinstance(one, Spread)
        return many.over(one)

    def ratio(self, streams: int, figure: str) -> Spread | None:
        """Olivine over llama.cpp."""
        if len(self.engines) < 2:
            return None
        ours, theirs = (getattr(by_streams[streams], figure) for by_streams in self.engines.values())
        assert isinstance(ours, Spread) and isinstance(theirs, Spread)
        return ours.over(theirs)

    def to_json(self) -> dict[str, Any]:
        s = self.settings

        def entry(engine: str, streams: int, figures: Figures) -> dict[str, Any]:
            return {
                "total_tok_s": figures.total.to_json(),
                "decode_tok_s": figures.decode.to_json(),
                "total_over_one": self.over_one(engine, streams, "total").to_json(),
                "decode_over_one": self.over_one(engine, streams, "decode").to_json(),
            }

        def ratios(streams: int) -> dict[str, Any]:
            found = {figure: self.ratio(streams, figure) for figure in ("total", "decode")}
            return {f"{figure}_tok_s": ratio.to_json() for figure, ratio in found.items() if ratio}

        return {
            "model": str(s.model),
            "device": self.device,
            "threads": self.threads,
            "prompt": s.prompt,
            "generate": s.generate,
            "repeats": s.repeats,
            "llama_cpp": self.llama_cpp,
            "engines": {
                engine: {str(count): entry(engine, count, figures) for count, figures in by_streams.items()}
                for engine, by_streams in self.engines.items()
            },
            "ratios": {str(count): ratios(count) for count in self.engines["olivine"]},
        }


def measure(settings: Settings, tell: Callable[[str], None] = lambda _: None) -> Report:
    """Measures; `tell` is called with progress messages. One stream is always included."""
    s = settings
    threads = s.threads or default_threads()
    streams = sorted({1, *s.streams})
    opening = {"model": str(s.model), "threads": threads, "context": s.context, "sequences": streams[-1]}
    facts: dict[str, dict[str, Any]] = {}
    with ExitStack() as stack:
        tell("loading")
        ours = stack.enter_context(Child("olivine", [sys.executable, "-m", "olivine.bench.worker"]))
        facts[ours.name] = ours.ask("open_streams", device=s.device, **opening)
        children = [ours]
        if s.llama_python is not None:
            script = Path(__file__).with_name("llama_worker.py")
            theirs = stack.enter_context(Child("llama.cpp", [s.llama_python, str(script)]))
            with explaining_llama_cpp(s.llama_python):
                facts[theirs.name] = theirs.ask("open", **opening)
            children.append(theirs)
        seen: dict[str, dict[int, list[tuple[float, float]]]] = {
            child.name: {count: [] for count in streams} for child in children
        }
        for repeat in range(-1, s.repeats):  # the first one warms up
            for count in streams:
                what = f"repeat {repeat + 1} of {s.repeats}" if repeat >= 0 else "warming up"
                tell(f"{what}: {count} at once")
                for child in children:
                    time.sleep(SETTLE)
                    took = child.ask("streams", count=count, prompt=s.prompt, generate=s.generate)
                    if repeat >= 0:
                        speeds = (
                            count * s.generate / took["seconds"],
                            took["decoded"] / took["decode_seconds"],
                        )
                        seen[child.name][count].append(speeds)
    engines = {
        name: {
            count: Figures(Spread.of(a for a, _ in pairs), Spread.of(b for _, b in pairs))
            for count, pairs in by_streams.items()
        }
        for name, by_streams in seen.items()
    }
    version = facts.get("llama.cpp")
    about = None if version is None else f"{version['version']} ({version['system']})"
    return Report(s, threads, facts["olivine"]["device"], about, engines)
