"""Kernels are compiled by a process of its own, whose failure does not matter. No GPU and no compiler here,
except where it is said."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import types
from pathlib import Path
from typing import Any

import pytest

import olivine
from olivine import loading
from olivine.backends import ahead, devices
from olivine.backends.ahead import Ahead, Request, compile_ahead
from olivine.formats import open_checkpoint
from olivine.models import Model
from oracles import tiny

READ = "import os, pickle, sys, time; pickle.load(sys.stdin.buffer); print('1 3', flush=True); "


@pytest.fixture
def model(tmp_path: Path) -> Model:
    return loading.model_of(open_checkpoint(tiny.write("tiny-qwen3", "Q4_K", tmp_path)))


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One with a GPU, by its cache of kernels."""
    monkeypatch.setattr(devices, "gpu_at", lambda index: devices.HOPPER)
    monkeypatch.setattr(devices, "open_early", lambda index: None)
    package = types.SimpleNamespace(origin=str(tmp_path / "__init__.py"))
    (tmp_path / "__init__.py").touch()
    (tmp_path / "version.py").write_text("debug = False\ncuda: Optional[str] = '12.8'\n")
    monkeypatch.setattr(ahead, "find_spec", lambda name: package)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def started(monkeypatch: pytest.MonkeyPatch, model: Model, code: str) -> Any:
    """What `compile_ahead` starts, with other code in the process."""
    monkeypatch.setattr(ahead, "_START", code.replace("{", "{{").replace("}", "}}"))
    return compile_ahead(model.plan, model.weights, None, 4096)


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"


def test_a_process_that_dies_is_not_waited_for(
    machine: Path, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[int, int]] = []
    with started(monkeypatch, model, READ + "os.kill(os.getpid(), 9)") as kernels:
        assert kernels.is_awaited
        kernels.wait(lambda done, total: told.append((done, total)))
    assert told == [(1, 3)]


def test_one_that_does_not_start_is_not_waited_for(
    machine: Path, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    with started(monkeypatch, model, "raise SystemExit(1)") as kernels:
        kernels.wait(lambda done, total: pytest.fail("nothing was compiled"))


def test_first_kernels_are_waited_for_and_the_others_go_on(
    machine: Path, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    with started(monkeypatch, model, READ + "print('3 3', flush=True); time.sleep(600)") as kernels:
        told: list[tuple[int, int]] = []
        kernels.wait(lambda done, total: told.append((done, total)))
    assert told == [(1, 3), (3, 3)]
    assert is_running(kernels._process.pid)
    kernels.close()
    assert not is_running(kernels._process.pid)


def test_all_kernels_can_be_waited_for(machine: Path, model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    later = "print('3 3', flush=True); time.sleep(0.3)"
    with started(monkeypatch, model, READ + later) as kernels:
        kernels.join()
    assert kernels._process.returncode == 0
    Ahead().join()  # of no process


def test_a_process_that_is_silent_is_ended(
    machine: Path, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ahead, "PATIENCE", 0.5)
    with started(monkeypatch, model, "import time; time.sleep(600)") as kernels:
        kernels.wait()
    assert not is_running(kernels._process.pid)


def test_first_kernels_that_are_there_are_not_waited_for(
    machine: Path, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the first command on a machine ended before those of long prompts were compiled."""
    machine.mkdir()
    request = Request.of(model.plan, model.weights, "BF16", 4096, devices.HOPPER)
    (machine / f"olivine-{request.digest()}-first").touch()
    with started(monkeypatch, model, "import time; time.sleep(600)") as kernels:
        assert not kernels.is_awaited
        kernels.wait(lambda done, total: pytest.fail("it was waited for"))
    assert is_running(kernels._process.pid)
    kernels.close()


def test_an_interrupted_load_ends_the_process_and_its_workers(
    machine: Path, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = "pid = os.fork(); pid and print(pid, 7, flush=True); time.sleep(600)"
    told: list[int] = []

    def interrupted(done: int, total: int) -> None:
        told.append(done)
        if total == 7:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), started(monkeypatch, model, READ + worker) as kernels:
        kernels.wait(interrupted)
    deadline = time.monotonic() + 30
    while (left := [pid for pid in (kernels._process.pid, told[-1]) if is_running(pid)]) and (
        time.monotonic() < deadline
    ):
        time.sleep(0.01)
    assert not left


def test_no_process_where_all_is_compiled_or_nothing_can_be(
    machine: Path, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    def process(context: int = 4096) -> Any:
        found = compile_ahead(model.plan, model.weights, None, context)
        found.close()
        return found._process

    assert process() is not None
    machine.mkdir()
    request = Request.of(model.plan, model.weights, "BF16", 4096, devices.HOPPER)
    (machine / f"olivine-{request.digest()}").touch()
    assert process() is None
    assert process(8192) is not None  # whose kernels are others
    old = devices.Gpu((7, 5), 40, 64 << 10)
    for name, value in (("gpu_at", lambda index: None), ("gpu_at", lambda index: old)):
        with monkeypatch.context() as patch:
            patch.setattr(devices, name, value)
            assert process(8192) is None
    with monkeypatch.context() as patch:
        patch.setattr(ahead, "find_spec", lambda name: None)
        assert process(8192) is None
    (machine.parent / "version.py").write_text("debug = False\ncuda: Optional[str] = None\n")
    assert process(8192) is None


def test_weights_travel_as_types_and_shapes(model: Model) -> None:
    request = Request.of(model.plan, model.weights, "BF16", 4096, devices.HOPPER)
    made = request.stand_ins()
    for weight in model.plan.weights:
        for part, given in zip(made[weight.name], model.weights[weight.name], strict=True):
            assert (part.dtype, part.shape, part.nbytes) == (given.dtype, given.shape, given.nbytes)
    other = Request.of(model.plan, model.weights, "Q8_0", 4096, devices.HOPPER)
    assert request.digest() != other.digest()


def test_experts_stored_one_by_one_are_planned_as_one_matrix(tmp_path: Path) -> None:
    model = loading.model_of(open_checkpoint(tiny.write("tiny-gemma4", "Q4_K", tmp_path)))
    made = Request.of(model.plan, model.weights, "BF16", 4096, devices.HOPPER).stand_ins()
    assert max(map(len, model.weights.values())) == 6  # a file has gate and up of an expert together
    for weight in model.plan.weights:
        (part,), given = made[weight.name], model.weights[weight.name]
        assert (part.dtype, part.shape[-1]) == (given[0].dtype, given[0].shape[-1])
        assert part.nbytes == sum(each.nbytes for each in given)


@pytest.mark.parametrize(("device", "ended"), [("cpu", True), ("cuda", False)])
def test_a_load_waits_for_kernels_only_on_a_gpu(
    device: str, ended: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []

    class Fake(Ahead):
        def wait(self, progress: Any = None) -> None:
            events.append(f"wait {progress}")

        def close(self) -> None:
            events.append("close")

    def compile_on_cpu(model: Any, device: str, *rest: Any) -> Any:
        events.append("load")
        return compile_model(model, "cpu", *rest)

    compile_model = loading.compile_model
    monkeypatch.setattr(loading, "compile_ahead", lambda *given: Fake())
    monkeypatch.setattr(Fake, "is_awaited", True)
    monkeypatch.setattr(loading, "choose_device", lambda wanted: (device, ()))
    monkeypatch.setattr(loading, "fitting_context", lambda model, device, context, *rest: (context, []))
    monkeypatch.setattr(loading, "compile_model", compile_on_cpu)
    path = tiny.write("tiny-qwen3", "Q8_0", tmp_path)

    def told(done: int, total: int) -> None:
        events.append(f"{done} of {total}")

    options = loading.LoadOptions(compile_progress=told, threads=1)
    loading.load_engine(open_checkpoint(path), options).engine.close()
    assert events == ["0 of 0", *(["close"] if ended else []), "load", f"wait {told}"]


COMPILE = """
import os, sys
from olivine import loading
from olivine.backends import devices
from olivine.formats import open_checkpoint
devices.assume(devices.HOPPER)
from olivine.backends.cuda import compile_kernels, foresee
from triton import knobs
model = loading.model_of(open_checkpoint(sys.argv[1]))
program = foresee.program_of(model.plan, model.weights, "BF16")
kernels = foresee.first_kernels(program, 256).values()
kernels = [each for each in kernels if each.name in ("_count", "_embed")]
told = []
compile_kernels.Pool(kernels, lambda *counts: told.append(counts)).join()
hits = []
knobs.compilation.listener = lambda **given: hits.append(given["cache_hit"])
for each in kernels:
    each.compile()  # as a launch does
print(told, hits)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="kernels are compiled by forked processes")
def test_what_was_compiled_is_found(tmp_path: Path) -> None:
    """With Triton's compiler, by two processes, into an empty cache."""
    pytest.importorskip("triton")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {
        "TRITON_CACHE_DIR": str(tmp_path / "cache"),
        "PYTHONPATH": str(Path(olivine.__file__).parents[1]),
    }
    path = tiny.write("tiny-qwen3", "Q4_K", tmp_path)
    run = subprocess.run(
        [sys.executable, "-c", COMPILE, str(path)], capture_output=True, text=True, env=environment
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout == "[(1, 3), (2, 3), (3, 3)] [True, True]\n"
