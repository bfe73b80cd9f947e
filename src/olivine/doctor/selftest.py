"""Each backend against the reference: the logits of olivine-mini for a short text.

The tests run in a child process, `python -m olivine.doctor.selftest NAME…`, which prints a line of JSON when
a test begins and one when it ends: a kernel that ends the process is named, and the others are tested still.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from olivine.errors import OlivineError

TEXT = "Once upon a time, there was a little fox who had a red boat. One day, she met a turtle."
CONTEXT = 64
# Errors of the logits, as a share of their spread, that nine of ten rows stay below. Rounding to bfloat16 and
# int8 makes up to 2 %; a kernel that is wrong makes many times this bound.
BOUND = 0.05
LONGEST = 300.0  # seconds of a child: Triton compiles its kernels at the first time


@dataclass(frozen=True)
class Outcome:
    """The result of a test: `error` is the largest error of the logits; None if there are none."""

    name: str
    ok: bool
    error: float | None = None
    seconds: float = 0.0
    problem: str = ""


def run_tests(
    names: Sequence[str], tell: Callable[[str], None] = lambda _: None, command: Sequence[str] = ()
) -> list[Outcome]:
    """Runs the tests of these backends: "cuda", "cpu avx2", …. `tell` gets the name of each that begins.
    `command` is the child's, for tests."""
    outcomes: list[Outcome] = []
    left = list(names)
    while left:
        found = list(_child(command or (sys.executable, "-m", __name__), left, tell))
        outcomes += found
        left = left[len(found) :]
        if not found:  # it ended before the first test began
            outcomes += [Outcome(name, False, problem="the test did not start") for name in left]
            break
    return outcomes


def _child(command: Sequence[str], names: Sequence[str], tell: Callable[[str], None]) -> Iterator[Outcome]:
    """The outcomes of one child; one that dies fails the test that it was at, and one that takes too long the
    next, if it was at none."""
    variables = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "PYTHONIOENCODING": "utf-8",
    }
    process = subprocess.Popen(
        [*command, *names],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        errors="replace",
        env=variables,
    )
    watch = _Watch(process)
    running: str | None = None
    done = 0
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if not line.startswith("{"):
                continue
            told = json.loads(line)
            if "begin" in told:
                running = told["begin"]
                tell(told["begin"])
            else:
                running = None
                done += 1
                yield Outcome(**told)
        _, errors = process.communicate()
    finally:
        watch.stop()
    if watch.why and done < len(names):
        yield Outcome(names[done], False, problem=watch.why)
    elif running is not None:
        yield Outcome(running, False, problem=_death(process.returncode, errors))


class _Watch:
    """Ends a child that takes too long."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        from threading import Timer

        self.why = ""
        self._process = process
        self._timer = Timer(LONGEST, self._end)
        self._timer.daemon = True
        self._timer.start()

    def _end(self) -> None:
        self.why = f"it took longer than {LONGEST:.0f} s"
        self._process.kill()

    def stop(self) -> None:
        self._timer.cancel()
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()


def _death(status: int, errors: str) -> str:
    if status < 0:
        return f"the process was ended by {signal.Signals(-status).name}"
    lines = errors.strip().splitlines()
    return lines[-1] if lines else f"the process ended with status {status}"


# ---- in the child


def main(names: Sequence[str]) -> None:
    expected = None
    for name in names:
        _print({"begin": name})
        started = time.perf_counter()
        try:
            if expected is None:
                expected = _logits("reference", generated=False)
            outcome = _outcome(name, expected)
        except Exception as error:  # of any library below: it is the result of the test
            outcome = {"ok": False, "problem": f"{type(error).__name__}: {error}".splitlines()[0]}
        _print({"name": name, "seconds": round(time.perf_counter() - started, 3), **outcome})


def _print(told: dict[str, Any]) -> None:
    print(json.dumps(told), flush=True)


def _outcome(name: str, expected: Any) -> dict[str, Any]:
    import numpy as np

    device, _, isa = name.partition(" ")
    if isa:
        from olivine.backends.cpu import native

        if native.lib().olv_set_isa(isa.encode()):
            raise OlivineError(f"there is no {isa} here")
    worst = 0.0
    for generated in (False, True):
        found = _logits(device, generated=generated)
        if not np.isfinite(found).all():
            return {"ok": False, "problem": "the logits are not finite"}
        rows = np.sqrt(np.mean(np.square(found - expected), axis=1)) / expected.std()
        worst = max(worst, float(np.quantile(rows, 0.9)))
    problem = "" if worst <= BOUND else f"the logits differ from the reference by {worst:.1%} of their spread"
    return {"ok": worst <= BOUND, "error": worst, "problem": problem}


def _logits(device: str, *, generated: bool) -> Any:
    """The logits of every token of the text: as one prompt, or as tokens that were generated one by one."""
    import numpy as np

    from olivine import box
    from olivine.backends import Batch, ClosingProgram
    from olivine.formats import open_checkpoint
    from olivine.loading import LoadOptions, compile_model, model_of, tokenizer_of

    checkpoint = open_checkpoint(box.packaged())
    tokens = tokenizer_of(checkpoint).encode(TEXT)
    model = model_of(checkpoint, CONTEXT)
    program = compile_model(model, device, CONTEXT, LoadOptions(sequences=1), checkpoint).program
    pages = np.arange(-(-len(tokens) // program.page_size), dtype=np.int32)[None]
    size = 1 if generated else len(tokens)
    rows = []
    for start in range(0, len(tokens), size):
        part = np.array(tokens[start : start + size], np.int32)
        batch = Batch(
            tokens=part,
            sequences=np.zeros(len(part), np.int32),
            positions=np.arange(start, start + len(part), dtype=np.int32),
            outputs=np.arange(len(part), dtype=np.int32),
            tables=tuple(pages for _ in program.plan.groups),
            generated=np.full(len(part), generated),
        )
        rows.append(program.step(batch).logits)
    if isinstance(program, ClosingProgram):
        program.close()
    return np.concatenate(rows)


if __name__ == "__main__":
    main(sys.argv[1:])
