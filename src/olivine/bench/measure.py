"""The measurement behind `olivine bench`.

For each number of threads:
1. every engine is started `repeats` times, alternately: load time and time to first token;
2. the processes of the last round stay, asleep until they are called; each runs once to warm up;
3. `repeats` times: the machine's limits are measured, then each engine prefills a prompt, then each decodes.
So other load on the machine affects all engines alike, and ratios are taken within each repeat.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from olivine.backends.cpu import default_threads
from olivine.bench.child import Child
from olivine.bench.spread import Spread
from olivine.errors import OlivineError

SHORT_PROMPT = 8  # tokens, for the time to the first token
SETTLE = 0.05  # seconds for the threads of the previous engine to go to sleep

HOW_TO_GET_LLAMA_CPP = """\
llama-cpp-python is not there for {python}. Install it, compiled for this machine:

  {python} -m pip install llama-cpp-python --no-binary llama-cpp-python

or name an interpreter that has it: --llama-python PATH, or OLIVINE_LLAMA_PYTHON in the environment."""


@contextmanager
def explaining_llama_cpp(python: str) -> Iterator[None]:
    """Explains how to install llama-cpp-python if it is missing."""
    try:
        yield
    except OlivineError as error:
        if "No module named 'llama_cpp'" in str(error):
            raise OlivineError(HOW_TO_GET_LLAMA_CPP.format(python=python)) from error
        raise


@dataclass(frozen=True)
class Settings:
    """What to measure. `depth`: tokens of context before decode."""

    model: Path
    prompt: int = 512
    generate: int = 64
    depth: int = 0
    threads: tuple[int, ...] = ()  # each in turn; empty: the backend's default
    repeats: int = 5
    device: str = "auto"
    mmproj: Path | None = None  # None: the one beside the model
    llama_python: str | None = None  # the interpreter that has llama_cpp; None: do not compare

    @property
    def context(self) -> int:
        """KV cache in tokens, the same for every engine; llama.cpp rounds up to a multiple of 256."""
        needed = max(self.prompt, self.depth + self.generate + 2, SHORT_PROMPT)
        return -(-needed // 256) * 256


@dataclass
class Side:
    """One engine's figures."""

    name: str
    load_s: Spread
    first_token_s: Spread  # from the start of its process
    prefill_tok_s: Spread
    decode_tok_s: Spread
    peak_rss_bytes: int
    decode_bytes_s: Spread
    prefill_op_s: Spread
    decode_share: Spread | None = None  # of the memory bandwidth measured in the same repeat
    prefill_share: Spread | None = None  # of the arithmetic peak measured in the same repeat
    image_s: Spread | None = None  # to preprocess and encode a photo; None: the model takes none
    image_tokens: int | None = None


@dataclass
class Run:
    """The figures at one number of threads."""

    threads: int
    sides: list[Side]  # Olivine first
    isa: str | None = None
    bandwidth: Spread | None = None  # bytes per second; None if it was not measured
    peak: dict[str, Spread] = field(default_factory=dict)  # operations per second by type, as far as measured

    def ratio(self, figure: str) -> Spread | None:
        """Olivine's figure over llama.cpp's."""
        if len(self.sides) < 2:
            return None
        ours, theirs = (getattr(side, figure) for side in self.sides)
        assert isinstance(ours, Spread) and isinstance(theirs, Spread)
        return ours.over(theirs)


@dataclass
class Report:
    """All figures, and what was measured."""

    settings: Settings
    architecture: str
    file_bytes: int
    device: str
    decode_bytes: int
    prefill_int8: int
    prefill_float: int
    llama_cpp: str | None  # the version of llama-cpp-python, and what it was compiled with
    runs: list[Run]

    def to_json(self) -> dict[str, Any]:
        s = self.settings
        return {
            "model": str(s.model),
            "architecture": self.architecture,
            "file_bytes": self.file_bytes,
            "device": self.device,
            "prompt": s.prompt,
            "generate": s.generate,
            "depth": s.depth,
            "repeats": s.repeats,
            "decode_bytes": self.decode_bytes,
            "prefill_int8_ops": self.prefill_int8,
            "prefill_float_ops": self.prefill_float,
            "llama_cpp": self.llama_cpp,
            "runs": [_run_json(run) for run in self.runs],
        }


def measure(settings: Settings, tell: Callable[[str], None] = lambda _: None) -> Report:
    """Measures; `tell` is called with progress messages."""
    first, *more = settings.threads or (default_threads(),)
    with ExitStack() as stack:
        measurement = _Measurement(settings, first, stack, tell)
        runs = [measurement.run()]
    report = measurement.report(runs)
    for threads in more:
        with ExitStack() as stack:
            runs.append(_Measurement(settings, threads, stack, tell).run())
    return report


class _Measurement:
    """The measurement at one number of threads."""

    def __init__(
        self, settings: Settings, threads: int, stack: ExitStack, tell: Callable[[str], None]
    ) -> None:
        self.settings = settings
        self.threads = threads
        self.stack = stack
        self.tell = tell
        self.facts: dict[str, dict[str, Any]] = {}  # what each engine reports about itself
        self.loads: dict[str, list[float]] = {}
        self.firsts: dict[str, list[float]] = {}

    def run(self) -> Run:
        s = self.settings
        children = self._start_all()
        for child in children:
            self.tell(f"{self.threads} threads: warming up {child.name}")
            self._prefill(child)
            child.ask("reset")
            child.ask("decode", tokens=min(s.generate, 2))
        ours = children[0]
        tokens = ours.ask("image").get("tokens")  # the first one starts what it needs
        images: list[float] = []
        machine = self._machine(ours)
        prefills: dict[str, list[float]] = {child.name: [] for child in children}
        decodes: dict[str, list[float]] = {child.name: [] for child in children}
        moments: list[dict[str, Any]] = []
        for repeat in range(s.repeats):
            self.tell(f"{self.threads} threads: repeat {repeat + 1} of {s.repeats}")
            if machine is not None:
                moments.append(
                    machine.ask("machine", threads=self.threads, bytes=self._costs["decode_bytes"])
                )
            for child in children:
                prefills[child.name].append(s.prompt / self._prefill(child))
            for child in children:
                decodes[child.name].append(s.generate / self._decode(child))
            if tokens is not None:
                images.append(ours.ask("image")["seconds"])
        run = Run(self.threads, [])
        if moments:
            run.isa = moments[0]["isa"]
            if all(moment["bandwidth"] for moment in moments):  # 0: the buffer could not be allocated
                run.bandwidth = Spread.of(moment["bandwidth"] for moment in moments)
            kinds = moments[0]["peak"]
            run.peak = {kind: Spread.of(moment["peak"][kind] for moment in moments) for kind in kinds}
        for child in children:
            memory = child.ask("peak_memory")["bytes"]
            prefill, decode = (Spread.of(figures[child.name]) for figures in (prefills, decodes))
            run.sides.append(self._side(child.name, prefill, decode, memory, run))
        if images:
            run.sides[0].image_s, run.sides[0].image_tokens = Spread.of(images), tokens
        return run

    def report(self, runs: list[Run]) -> Report:
        facts = self.facts["olivine"]
        theirs = self.facts.get("llama.cpp")
        return Report(
            settings=self.settings,
            architecture=facts["architecture"],
            file_bytes=facts["file_bytes"],
            device=facts["device"],
            **facts["costs"],
            llama_cpp=None if theirs is None else f"{theirs['version']} ({theirs['system']})",
            runs=runs,
        )

    def _start_all(self) -> list[Child]:
        """Starts every engine `repeats` times, alternately, and keeps those of the last round."""
        s = self.settings
        starters = [self._start_ours] + ([self._start_llama] if s.llama_python is not None else [])
        for repeat in range(s.repeats):
            self.tell(f"{self.threads} threads: start {repeat + 1} of {s.repeats}")
            round_ = [start() for start in starters]
            if repeat < s.repeats - 1:
                for child in round_:
                    child.close()
        return round_

    def _start_ours(self) -> Child:
        s = self.settings
        child = self.stack.enter_context(Child("olivine", [sys.executable, "-m", "olivine.bench.worker"]))
        mmproj = None if s.mmproj is None else str(s.mmproj)
        return self._first_token(child, device=s.device, prompt=s.prompt, mmproj=mmproj)

    def _start_llama(self) -> Child:
        python = self.settings.llama_python
        assert python is not None
        script = Path(__file__).with_name("llama_worker.py")
        child = self.stack.enter_context(Child("llama.cpp", [python, str(script)]))
        with explaining_llama_cpp(python):
            return self._first_token(child)

    def _first_token(self, child: Child, **extra: Any) -> Child:
        s = self.settings
        facts = child.ask("open", model=str(s.model), threads=self.threads, context=s.context, **extra)
        child.ask("prefill", tokens=SHORT_PROMPT)
        self.firsts.setdefault(child.name, []).append(time.perf_counter() - child.started)
        self.loads.setdefault(child.name, []).append(facts["load_s"])
        self.facts[child.name] = facts
        return child

    def _machine(self, ours: Child) -> Child | None:
        """A separate process to measure the machine, so that no engine's peak RSS includes its buffers."""
        if not self.facts[ours.name]["device"].startswith("cpu"):
            return None  # NumPy is far from any limit, and the native library may be missing
        return self.stack.enter_context(Child("olivine", [sys.executable, "-m", "olivine.bench.worker"]))

    def _prefill(self, child: Child) -> float:
        child.ask("reset")
        time.sleep(SETTLE)
        return float(child.ask("prefill", tokens=self.settings.prompt)["seconds"])

    def _decode(self, child: Child) -> float:
        child.ask("reset")
        if self.settings.depth:
            child.ask("prefill", tokens=self.settings.depth)
        time.sleep(SETTLE)
        return float(child.ask("decode", tokens=self.settings.generate)["seconds"])

    def _side(self, name: str, prefill: Spread, decode: Spread, memory: int, run: Run) -> Side:
        costs = self._costs
        int8, floats = costs["prefill_int8"], costs["prefill_float"]
        side = Side(
            name=name,
            load_s=Spread.of(self.loads[name]),
            first_token_s=Spread.of(self.firsts[name]),
            prefill_tok_s=prefill,
            decode_tok_s=decode,
            peak_rss_bytes=memory,
            decode_bytes_s=decode.times(costs["decode_bytes"]),
            prefill_op_s=prefill.times((int8 + floats) / self.settings.prompt),
        )
        if run.bandwidth is not None:
            side.decode_share = side.decode_bytes_s.over(run.bandwidth)
        # The limit of prefill: every operation at the peak of the type that kernels compute it in.
        peaks = [run.peak.get(kind, run.peak.get("f32")) for kind in ("int8", "bf16")]
        if peaks[0] is not None and peaks[1] is not None:
            least = zip(peaks[0].values, peaks[1].values, strict=True)
            fastest = Spread.of(self.settings.prompt / (int8 / a + floats / b) for a, b in least)
            side.prefill_share = prefill.over(fastest)
        return side

    @property
    def _costs(self) -> dict[str, int]:
        costs: dict[str, int] = self.facts["olivine"]["costs"]
        return costs


def _run_json(run: Run) -> dict[str, Any]:
    figures = ("load_s", "first_token_s", "prefill_tok_s", "decode_tok_s")
    ratios = {figure: run.ratio(figure) for figure in figures}
    return {
        "threads": run.threads,
        "isa": run.isa,
        "bandwidth": _json(run.bandwidth),
        "peak": {kind: _json(spread) for kind, spread in run.peak.items()},
        "engines": {
            side.name: {key: _json(value) for key, value in vars(side).items() if key != "name"}
            for side in run.sides
        },
        "ratios": {figure: _json(ratio) for figure, ratio in ratios.items() if ratio is not None},
    }


def _json(value: Any) -> Any:
    return value.to_json() if isinstance(value, Spread) else value
