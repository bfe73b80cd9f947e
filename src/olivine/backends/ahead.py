"""Kernels of the CUDA backend, compiled before they are needed, by a process of its own.

It is started before this one imports torch. It finds the kernels that a plan needs (cuda/foresee.py) and
compiles them on all cores (cuda/compile_kernels.py) into Triton's cache, while this one loads the weights.
Those of first answers are waited for; those of longer prompts and of several sequences come after them. If
the process fails, nothing is lost: a kernel that is not in the cache is compiled when it is first launched.
"""

from __future__ import annotations

import atexit
import os
import pickle
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from olivine.backends import devices
from olivine.backends.base import Progress, Weights
from olivine.dtypes import DType
from olivine.plan import Plan
from olivine.tensor import Tensor

if TYPE_CHECKING:
    import subprocess

# It imports what this process would, from the same places; -c alone would put the working folder first.
_START = "import sys; sys.path[:] = {path!r}; from olivine.backends.ahead import serve; serve()"


@dataclass(frozen=True)
class Request:
    """What the kernels of a program depend on."""

    plan: Plan
    weights: dict[str, list[tuple[DType, tuple[int, ...], bool]]]  # type, shape, and whether it has scales
    cache_type: str
    context: int
    gpu: devices.Gpu

    @staticmethod
    def of(plan: Plan, weights: Weights, cache_type: str, context: int, gpu: devices.Gpu) -> Request:
        kinds = {weight.name: _kinds(weights[weight.name]) for weight in plan.weights}
        return Request(plan, kinds, cache_type, context, gpu)

    def stand_ins(self) -> dict[str, list[Tensor]]:
        """The weights; all bytes of a matrix lie at one address."""
        return {
            name: [
                Tensor(
                    name, dtype, shape, _bytes(dtype.block_bytes, dtype, shape),
                    _bytes(dtype.scale_bytes, dtype, shape) if scaled else None,
                )
                for dtype, shape, scaled in parts
            ]
            for name, parts in self.weights.items()
        }  # fmt: skip

    def digest(self) -> str:
        """Of all that decides which kernels are compiled, and of the code that decides it."""
        import hashlib  # where there is a GPU

        told: list[object] = [
            str(self.plan),
            self.weights,
            self.cache_type,
            self.context,
            self.gpu,
            sys.version,
        ]
        for package in ("triton", "torch"):
            spec = find_spec(package)
            told.append(_stamp(Path(spec.origin)) if spec is not None and spec.origin else package)
        here = Path(__file__).parent
        told += [
            _stamp(path) for folder in (here, here.parent / "plan") for path in sorted(folder.rglob("*.py"))
        ]
        return hashlib.sha256(repr(told).encode()).hexdigest()[:32]


def _kinds(parts: Sequence[Tensor]) -> list[tuple[DType, tuple[int, ...], bool]]:
    """Of a weight's parts. Those of one type are one part: a mixture may have thousands, of which each would
    take milliseconds to plan."""
    kinds = [(part.dtype, part.shape, part.scales is not None) for part in parts]
    if len(kinds) == 1 or len({(dtype, shape[-1], scaled) for dtype, shape, scaled in kinds}) > 1:
        return kinds
    dtype, shape, scaled = kinds[0]
    return [(dtype, (sum(part.row_count for part in parts), shape[-1]), scaled)]


def _bytes(each: int, dtype: DType, shape: tuple[int, ...]) -> Any:
    size = int(np.prod(shape)) // dtype.block_size * each
    if len(shape) == 1:
        return np.full(size, 0x3F, np.uint8)  # as floats about 1: some vectors are computed with
    return np.broadcast_to(np.zeros(1, np.uint8), (size,))


def _stamp(path: Path) -> tuple[str, int, int]:
    found = path.stat()
    return str(path), found.st_size, found.st_mtime_ns


def _markers(request: Request) -> tuple[Path, Path]:
    """Files in Triton's cache that say that the first kernels of a program are there, and that all are."""
    home = Path(os.environ.get("TRITON_HOME") or Path.home())
    folder = Path(os.environ.get("TRITON_CACHE_DIR") or home / ".triton" / "cache")
    name = f"olivine-{request.digest()}"
    return folder / f"{name}-first", folder / name


def compile_ahead(plan: Plan, weights: Weights, cache_type: str | None, context: int) -> Ahead:
    """Starts to compile the kernels of a plan, unless all are compiled, or there is no GPU or no way to do
    it."""
    if plan.input is not None or not hasattr(os, "fork") or os.environ.get("TRITON_INTERPRET") == "1":
        return Ahead()
    gpu = devices.gpu_at(0)
    if gpu is None or gpu.capability < devices.LEAST_CAPABILITY:
        return Ahead()
    request = Request.of(plan, weights, cache_type or "BF16", context, gpu)
    try:
        if find_spec("triton") is None or not _torch_has_cuda():
            return Ahead()
        devices.open_early(0)
        markers = _markers(request)
        return Ahead() if markers[1].exists() else Ahead((request, markers))
    except OSError:
        return Ahead()


def _torch_has_cuda() -> bool:
    """Whether there is a torch that is not built for the CPU; without importing it."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return False
    return "\ncuda: Optional[str] = None\n" not in Path(spec.origin).with_name("version.py").read_text()


PATIENCE = 120.0  # seconds for a kernel, and for importing torch before the first


class Ahead:
    """The process that compiles, if there is one, seen from the one that loads."""

    def __init__(self, task: tuple[Request, tuple[Path, Path]] | None = None) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        if task is None:
            return
        import subprocess  # most often there is no task

        self._first_are_there = task[1][0].exists()
        self._process = subprocess.Popen(
            [sys.executable, "-c", _START.format(path=sys.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            start_new_session=True,  # with its workers it is a group of its own, which `close` ends
        )
        atexit.register(self.close)
        assert self._process.stdin is not None
        with suppress(OSError):
            pickle.dump(task, self._process.stdin)
            self._process.stdin.close()

    def __enter__(self) -> Ahead:
        return self

    def __exit__(self, failure: type[BaseException] | None, *_: object) -> None:
        if failure is not None:
            self.close()

    @property
    def is_awaited(self) -> bool:
        """Whether `wait` will have to wait."""
        return self._process is not None and not self._first_are_there

    def wait(self, progress: Progress | None = None) -> None:
        """Returns when the kernels of first answers are compiled, or the process has failed; calls `progress`
        with how many are, and their number."""
        if self._process is None:
            return
        for done, total in self._counts() if self.is_awaited else ():
            if progress is not None:
                progress(done, total)
            if done == total:
                break
        # It goes on with others; the thread takes note of its end.
        threading.Thread(target=self._process.wait, daemon=True).start()

    def join(self) -> None:
        """Returns when the others are compiled too: for measurements, which that would disturb."""
        self.wait()
        if self._process is not None:
            self._process.wait()

    def _counts(self) -> Iterator[tuple[int, int]]:
        """How many of the first kernels are compiled, and their number: until the process ends, or is silent
        for so long that it is ended."""
        import select

        assert self._process is not None and self._process.stdout is not None
        pipe = self._process.stdout
        while select.select([pipe], [], [], PATIENCE)[0]:
            line = pipe.readline()
            if not line:
                return
            done, total = map(int, line.split())
            yield done, total
        self.close()

    def close(self) -> None:
        """Ends the process and its workers, if they still run."""
        atexit.unregister(self.close)
        if self._process is not None and self._process.poll() is None:
            import signal

            with suppress(OSError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


def serve() -> None:
    """The process: reads a request, writes how many of the first kernels are compiled, as lines."""
    request, (first_are_there, all_are_there) = pickle.load(sys.stdin.buffer)
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a compiler says is no answer
    devices.assume(request.gpu)
    hashing = devices.hash_triton()  # while torch is imported

    def report(done: int, total: int) -> None:
        if done == total:
            first_are_there.touch()
        print(done, total, file=out, flush=True)

    from olivine.backends.cuda import compile_kernels, foresee

    program = foresee.program_of(request.plan, request.stand_ins(), request.cache_type)
    first = foresee.first_kernels(program, request.context)
    hashing.join()  # before workers are forked: they need it too
    compile_kernels.Pool(first.values(), report).join()
    later = foresee.later_kernels(program, request.context)
    compile_kernels.Pool(later.values(), nice=10).join()
    all_are_there.touch()
