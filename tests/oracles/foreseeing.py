"""The kernels that runs of a program launch, and those that were foreseen (backends/cuda/foresee.py).

As a program it prints both, of a model's file or folder, as JSON: a process has either Triton's interpreter,
as that of the tests, or its compiler, which says what it would compile.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import olivine

CONTEXT, SEQUENCES = 1200, 3  # 38 pages a sequence, which 16 does not divide


def kernels(path: Path, cache_type: str = "BF16") -> dict[str, set[str]]:
    """By "short" and "long" those that prompts of up to 128 tokens and all others launch; by "first" and
    "later" those that were foreseen."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    paths = [str(Path(__file__).parents[1]), str(Path(olivine.__file__).parents[1])]
    run = subprocess.run(
        [sys.executable, __file__, str(path), cache_type],
        capture_output=True,
        text=True,
        env={**environment, "PYTHONPATH": os.pathsep.join(paths)},
        timeout=500,
    )
    assert run.returncode == 0, run.stderr[-4000:]
    return {name: set(found) for name, found in json.loads(run.stdout).items()}


def _forget(found: dict[Any, Any]) -> set[str]:
    """Their names; Triton knows none of them any more."""
    for kernel in found.values():
        kernel.function.device_caches.clear()
    return {":".join(map(str, key)) for key in found}


def _main(path: Path, cache_type: str) -> None:
    import torch

    from olivine.backends import devices
    from olivine.backends.ahead import Request
    from olivine.backends.cuda import CudaProgram, foresee
    from oracles import running

    devices.assume(devices.HOPPER)
    model = running.build(path)
    request = Request.of(model.plan, model.weights, cache_type, CONTEXT, devices.HOPPER)
    meta = foresee.program_of(model.plan, request.stand_ins(), cache_type)
    foreseen = foresee.first_kernels(meta, CONTEXT), foresee.later_kernels(meta, CONTEXT)
    told = dict(zip(("first", "later"), map(_forget, foreseen), strict=True))

    torch.empty = torch.zeros  # what no kernel fills may be an index
    counts = [SEQUENCES * -(-CONTEXT // 32)] * len(model.plan.groups)
    program = CudaProgram(model.plan, model.weights, page_counts=counts, device="cpu", cache_type=cache_type)
    with foresee.recorded() as short:
        _run_short(program)
    with foresee.recorded() as long:
        _run_long(program)
    told |= dict(zip(("short", "long"), map(_forget, (short, long)), strict=True))
    print(json.dumps({name: sorted(found) for name, found in told.items()}))


def _run_short(program: Any) -> None:
    """One sequence: prompts, and chains in the common ways to draw."""
    from dataclasses import replace

    import numpy as np

    from olivine.backends import Draw, Sampling
    from oracles import running

    for length in (1, 17, 40, 128):
        session = running.Session(program, 1, CONTEXT)
        batch = session.batch([(0, [1] * length, False)])
        last = np.array([length - 1], np.int32)
        program.generate(replace(batch, outputs=last), [Draw(Sampling())])
        for how in (
            Sampling(),
            Sampling(presence_penalty=0.5),
            Sampling(temperature=0.8),
            Sampling(temperature=0.8, top_k=40, top_p=0.95, min_p=0.05),
            Sampling(temperature=0.6, top_p=0.9),
            Sampling(temperature=0.6, top_p=0.9, repetition_penalty=1.1),
            Sampling(temperature=0.6, top_k=20, repetition_penalty=1.1),
        ):
            draw = Draw(how, prompt=[1], output=[1])
            program.generate(session.batch([(0, [1], True)]), [draw], 3)
    for position in (600, 1100):
        session.position = [position]
        program.generate(session.batch([(0, [1], True)]), [Draw(Sampling())], 2)


def _run_long(program: Any) -> None:
    """Several sequences, long prompts, other ways to draw, drafts."""
    from dataclasses import replace

    import numpy as np

    from olivine.backends import Draw, Sampling
    from oracles import running

    for lengths in ((300,), (1000,), (100, 3), (640, 20, 9)):
        session = running.Session(program, SEQUENCES, CONTEXT)
        batch = session.batch([(i, [1] * length, False) for i, length in enumerate(lengths)])
        outputs = np.cumsum(lengths).astype(np.int32) - 1
        draws = [Draw(Sampling(temperature=1.0, top_p=0.9))] * len(lengths)
        program.generate(replace(batch, outputs=outputs), draws, 2)
        session.step([(i, [1] * 4) for i in range(len(lengths))], generated=True)
        session.step_mixed([(0, [1], True), (1, [1] * 50, False)])
    ways = (Sampling(), Sampling(repetition_penalty=1.1), Sampling(temperature=0.8, logit_bias={3: -1.0}))
    for how in ways:
        for logprobs in (None, 5):
            draw = Draw(how, prompt=[1], output=[1], logprobs=logprobs)
            program.generate(session.batch([(0, [1], True), (1, [1], True)]), [draw, draw], 2)


if __name__ == "__main__":
    gc.disable()  # it ends soon
    _main(Path(sys.argv[1]), sys.argv[2])
