"""Before the tests: kernels of the CUDA backend run in an interpreter, and Ctrl-C is heard."""

import gc
import os
import signal
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
os.environ.setdefault("TRITON_INTERPRET", "1")  # before anything imports triton
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # hundreds of processes would compile all modules again
os.environ["OLIVINE_CONFIG"] = os.devnull  # no settings of whoever runs the tests
# A shell that starts the tests in the background makes them, and what they start, ignore Ctrl-C.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_xdist_auto_num_workers() -> int | None:
    """Half as many again as there are cores: tests of servers, terminals and the browser mostly wait."""
    if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ:
        return None
    return (os.cpu_count() or 1) * 3 // 2


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, Any, Any]:
    """Modules and tests live until the end: a million objects, which the garbage collector would look through
    again and again, a quarter of the time that this takes."""
    gc.disable()
    _begin_elsewhere(session.config)
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def _begin_elsewhere(config: pytest.Config) -> None:
    """Workers that collect all tests each begin with others: what one has compiled the next ones find. In a
    new environment, this is most of the time that it takes."""
    told = getattr(config, "workerinput", None)
    if told is None or [Path(arg).resolve() for arg in config.args] != [HERE]:
        return
    files = [path.relative_to(HERE) for path in sorted(HERE.rglob("test_*.py"))]
    # A worker that takes the place of one that crashed has a number beyond the count.
    number = int(told["workerid"].removeprefix("gw")) % told["workercount"]
    first = files[len(files) * number // told["workercount"]]
    parts = list(dict.fromkeys(path.parts[0] for path in files))
    start = parts.index(first.parts[0])
    config.args[:] = [str(HERE / part) for part in parts[start:] + parts[:start]]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The same order in all workers."""
    items.sort(key=lambda item: item.path)


def pytest_collection_finish(session: Any) -> None:
    """Requests of httpx wait longer than its five seconds, for machines that are busy. Where tests run
    kernels in Triton's interpreter, without work that it repeats."""
    if "httpx" in sys.modules:
        default = sys.modules["httpx"]._config.DEFAULT_TIMEOUT_CONFIG
        default.connect = default.read = default.write = default.pool = 300.0
    if os.environ["TRITON_INTERPRET"] == "1" and "triton.runtime.interpreter" in sys.modules:
        from oracles import interpreting

        interpreting.prepare()
